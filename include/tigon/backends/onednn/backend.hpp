// Child of highway with oneDNN's product of bf16 matrices: what that library does better, and nothing else. Opt-in; a
// program that uses it links libdnnl.
#ifndef TIGON_BACKENDS_ONEDNN_BACKEND_HPP
#define TIGON_BACKENDS_ONEDNN_BACKEND_HPP

#if defined(__has_include) && !__has_include(<oneapi/dnnl/dnnl.hpp>)
#error "tigon: backend onednn needs <oneapi/dnnl/dnnl.hpp>; install libdnnl-dev (vcpkg and Conan onednn)"
#include <the_error_above_ends_compilation>
#endif

#include <tigon/backends/highway/backend.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {

struct onednn : highway {
  using self = onednn;
  using parent = highway;
  static constexpr backend_info info{"onednn", {device::cpu}, {}};
  using overrides = op_list<op::gemm>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

// Everything it overrides:
#include <tigon/backends/onednn/gemm.hpp>

#endif  // TIGON_BACKENDS_ONEDNN_BACKEND_HPP

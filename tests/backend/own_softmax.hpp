// A second vendor's backend, for a default that takes operators from two others.
#ifndef TIGON_TESTS_BACKEND_OWN_SOFTMAX_HPP
#define TIGON_TESTS_BACKEND_OWN_SOFTMAX_HPP

#include <tigon/ops/softmax.hpp>

#include "own_backend.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

struct bolt : generic {
  using self = bolt;
  using parent = generic;
  static constexpr backend_info info{"bolt", {device::cpu}};
  using overrides = op_list<op::softmax>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

template <>
struct tigon::kernel<tigon::op::softmax, tigon::backends::bolt>
    : tigon::kernel<tigon::op::softmax, tigon::backends::generic> {
  using generic = kernel<op::softmax, backends::generic>;

  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt, context& ctx) {
    note<op::softmax, B>("forward");
    generic::template forward<B, T>(x, y, opt, ctx);
  }
};

#endif  // TIGON_TESTS_BACKEND_OWN_SOFTMAX_HPP

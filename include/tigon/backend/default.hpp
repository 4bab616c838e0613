// The default backend by name. The type is only declared here; select.hpp, at the end of every operator header,
// brings its definition and its kernels.
#ifndef TIGON_BACKEND_DEFAULT_HPP
#define TIGON_BACKEND_DEFAULT_HPP

#include <tigon/config.hpp>

// No wish: the registry decides, in its order of preference.
#ifndef TIGON_BACKEND
#include <tigon/backends/registry.hpp>
#endif

namespace tigon {
namespace backends {
inline namespace TIGON_ABI {
struct TIGON_BACKEND;
}
}  // namespace backends

/// What a door uses when it is given no backend.
using default_backend = backends::TIGON_BACKEND;

}  // namespace tigon

#endif  // TIGON_BACKEND_DEFAULT_HPP

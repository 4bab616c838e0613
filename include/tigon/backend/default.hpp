// The default backend by name. The type is only declared here; select.hpp, at the end of every operator header,
// brings its definition and its kernels.
#ifndef TIGON_BACKEND_DEFAULT_HPP
#define TIGON_BACKEND_DEFAULT_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/backends/registry.hpp>

namespace tigon {
namespace backends {
inline namespace TIGON_ABI {
struct TIGON_BACKEND;
}
}  // namespace backends

/// What a door uses when it is given no backend.
using default_backend = backends::TIGON_BACKEND;

namespace detail {

/// At a door, where the backend's definition is known: the default one has to run on the device that was asked for.
template <class B>
consteval bool runs_where_wanted() {
  if constexpr (std::same_as<B, default_backend>)
    static_assert(B::info.devices.contains(device::TIGON_DEVICE),
                  "tigon: backend " TIGON_STRING(TIGON_BACKEND) " does not run on device " TIGON_STRING(
                      TIGON_DEVICE) " (TIGON_BACKEND, TIGON_DEVICE); registered are " TIGON_REGISTERED);
  return true;
}

}  // namespace detail
}  // namespace tigon

#endif  // TIGON_BACKEND_DEFAULT_HPP

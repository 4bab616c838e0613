// What TIGON_BACKEND_HEADER names in the twin of the same name.
#pragma once
#include <tigon/backends/generic/backend.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {
struct mine : generic {
  using parent = generic;
  static constexpr backend_info info{"mine", {device::cpu}};
};
}  // namespace TIGON_ABI
}  // namespace tigon::backends

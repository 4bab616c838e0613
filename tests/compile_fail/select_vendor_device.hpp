// What TIGON_BACKEND_HEADER names in the twin of the same name: a vendor's device, and a backend for it.
#pragma once
#include <tigon/backends/generic/backend.hpp>

namespace mine {
constexpr tigon::device card{"card"};
}

namespace tigon::backends {
inline namespace TIGON_ABI {
struct mine : generic {
  using parent = generic;
  static constexpr backend_info info{"mine", {::mine::card}, {::mine::card}};
};
}  // namespace TIGON_ABI
}  // namespace tigon::backends

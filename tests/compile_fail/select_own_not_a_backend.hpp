// What TIGON_BACKEND_HEADER names in the twin of the same name.
#pragma once
#include <tigon/backends/generic/backend.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {
#ifdef SHOULD_NOT_COMPILE
struct mine {};
#else
struct mine : generic {};
#endif
}  // namespace TIGON_ABI
}  // namespace tigon::backends

// A tile whose extents the compiler knows does not compile where it cannot fit.
// expect: tigon: the fixed extents of this tile exceed the capacity
#include <tigon/backend/tiling.hpp>

#ifdef SHOULD_NOT_COMPILE
constexpr std::size_t width = 100000;
#else
constexpr std::size_t width = 10000;
#endif
constexpr tigon::tiling::budget budget{.capacity_bits = 192 * 8192, .margin = {9, 10}, .tiles = {1}};
static_assert(tigon::tiling::fixed(budget, {1000, width}, {0})[0] <= 2);

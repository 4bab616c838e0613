// expect: tigon: a tiled dimension lies outside the shape
#include <tigon/backend/tiling.hpp>

#ifdef SHOULD_NOT_COMPILE
constexpr int dimension = 2;
#else
constexpr int dimension = 1;
#endif
static_assert(tigon::tiling::fixed({.capacity_bits = 192 * 8192}, {100, 300}, {dimension})[0] == 128);

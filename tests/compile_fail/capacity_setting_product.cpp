// The number becomes a part of symbols.
// expect: tigon: TIGON_TILE_CAPACITY_BITS is 192 * 8192; expected a positive number of bits, written as one number
#ifdef SHOULD_NOT_COMPILE
#define TIGON_TILE_CAPACITY_BITS 192 * 8192
#else
#define TIGON_TILE_CAPACITY_BITS 1572864
#endif
#include <tigon/backend/capacity.hpp>

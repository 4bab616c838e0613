// errors: 1
// expect: tigon: TIGON_TILE_CAPACITY_BITS is 0; expected a positive number of bits, written as one number
#ifdef SHOULD_NOT_COMPILE
#define TIGON_TILE_CAPACITY_BITS 0
#else
#define TIGON_TILE_CAPACITY_BITS
#endif
#include <tigon/backend/capacity.hpp>

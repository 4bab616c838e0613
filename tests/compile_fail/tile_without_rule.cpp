// Blocks of an operator for which no backend on the chain has a rule.
// expect: tigon: no backend on the chain of parents states a tile_rule for this operator and pass
#include <tigon/backends/ascend/backend.hpp>

struct polish;
#ifdef SHOULD_NOT_COMPILE
using Op = polish;
#else
using Op = tigon::op::swiglu;
#endif
static_assert(tigon::block_of<Op, tigon::tiling::pass::forward, tigon::backends::ascend, float>() == 8192);

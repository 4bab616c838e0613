#include "operators.hpp"

using tigon::bfloat16;

template class example::timed_operators<bfloat16>;
namespace example {
EXAMPLE_PRODUCT(bfloat16, bfloat16, bfloat16, bfloat16);
EXAMPLE_PRODUCT(bfloat16, bfloat16, bfloat16, float);
EXAMPLE_PRODUCT(bfloat16, float, bfloat16, bfloat16);
EXAMPLE_PRODUCT(bfloat16, float, bfloat16, float);
}  // namespace example

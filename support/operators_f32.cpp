#include "operators.hpp"

template class example::timed_operators<float>;
namespace example {
EXAMPLE_PRODUCT(float, float, float, float);
}

#include "operators.hpp"

template class example::operators<float>;

#include "operators.hpp"

template class example::operators<tigon::bfloat16>;

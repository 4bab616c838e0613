#include "model_operators.hpp"

template class example::model_operators<tigon::bfloat16>;

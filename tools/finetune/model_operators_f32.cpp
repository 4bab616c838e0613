#include "model_operators.hpp"

template class example::model_operators<float>;

// A choice whose backend nobody has defined.
// expect: tigon: a mix takes an operator from a backend that is not defined here: include its header, or name it in TIGON_BACKEND_HEADER
// flags: -DTIGON_BACKEND=generic
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND_OF_softmax turbo
#else
#define TIGON_BACKEND_OF_softmax eigen
#endif
#include <tigon/ops/softmax.hpp>

void use(tigon::matrix_view<const float> x, tigon::matrix_view<float> y) { tigon::softmax_forward(x, y); }

// expect: tigon: softmax_forward does not take these arguments; expected views, such as tigon::matrix_view(data, rows, cols) for a matrix, not a std::vector or another range in their place
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/softmax.hpp>
#include <vector>

void use(std::vector<float>& x, std::vector<float>& y) {
#ifdef SHOULD_NOT_COMPILE
  tigon::softmax_forward(x, y);
#else
  tigon::softmax_forward(tigon::matrix_view(x.data(), 1, x.size()), tigon::matrix_view(y.data(), 1, y.size()));
#endif
}

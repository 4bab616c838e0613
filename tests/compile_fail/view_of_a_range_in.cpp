// expect: tigon: rms_norm_forward does not take these arguments; expected views, such as tigon::matrix_view(data, rows, cols) for a matrix
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>
#include <vector>

#ifdef SHOULD_NOT_COMPILE
using in = std::vector<float>;
#else
using in = tigon::matrix_view<const float>;
#endif
void use(in x, const std::vector<float>& w, tigon::matrix_view<float> y, std::vector<float>& rstd) {
  tigon::rms_norm_forward(x, w, y, rstd);
}

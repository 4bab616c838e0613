// expect: tigon: rms_norm_forward does not take these arguments; expected those of its contract, matrices by their names, such as tigon::matrix_view(data, rows, cols): outputs in braces have no element type
// expect: tigon: rms_norm_backward does not take these arguments; expected those of its contract
// expect: tigon: softmax_forward does not take these arguments; expected those of its contract
// errors: 3
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <vector>

using floats = std::vector<float>;

void use(floats& x, const floats& w, floats& y, floats& rstd, floats& dw) {
#ifdef SHOULD_NOT_COMPILE
  tigon::rms_norm_forward({x.data(), 2, 3}, w, {y.data(), 2, 3}, rstd);
  tigon::rms_norm_backward({x.data(), 2, 3}, {x.data(), 2, 3}, w, rstd, {y.data(), 2, 3}, dw);
  tigon::softmax_forward({x.data(), 2, 3}, {y.data(), 2, 3});
#else
  const tigon::matrix_view out(y.data(), 2, 3);
  tigon::rms_norm_forward({x.data(), 2, 3}, w, out, rstd, {1e-5, 1});
  tigon::rms_norm_backward({x.data(), 2, 3}, {x.data(), 2, 3}, w, rstd, out, dw, {.eps = 1e-5});
  tigon::softmax_forward({x.data(), 2, 3}, out);
#endif
}

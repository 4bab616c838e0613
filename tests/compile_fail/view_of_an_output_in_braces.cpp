// An output in braces behind an input that has a name, and pointers in the place of views.
// expect: tigon: softmax_forward does not take these arguments; expected those of its contract, matrices by their names, such as tigon::matrix_view(data, rows, cols)
// expect: tigon: softmax_backward does not take these arguments
// expect: tigon: rms_norm_forward does not take these arguments
// expect: tigon: swiglu_forward does not take these arguments
// errors: 4
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>
#include <vector>

using floats = std::vector<float>;

void use(floats& x, const floats& w, floats& y, floats& rstd) {
  const tigon::matrix_view in(x.data(), 2, 3);
#ifdef SHOULD_NOT_COMPILE
  tigon::softmax_forward(in, {y.data(), 2, 3});
  tigon::softmax_backward(in, in, {y.data(), 2, 3});
  tigon::rms_norm_forward(in, w, {y.data(), 2, 3}, rstd);
  tigon::swiglu_forward(x.data(), x.data(), y.data(), 2, 3);
#else
  const tigon::matrix_view out(y.data(), 2, 3);
  tigon::softmax_forward(in, out);
  tigon::softmax_backward(in, {x.data(), 2, 3}, out);
  tigon::rms_norm_forward(in, w, out, rstd);
  tigon::swiglu_forward(in, {x.data(), 2, 3}, out);
#endif
}

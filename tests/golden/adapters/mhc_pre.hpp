#include <tigon/ops/mhc_pre.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct mhc_pre {
  using op = tigon::op::mhc_pre;

  template <class B, class T>
  static results run(const problem& p) {
    const tensor& shape = p.input("x");  // [batch, seq, streams, channels]
    const std::size_t n = shape.shape[2], channels = shape.cols(), tokens = shape.rows() / n;
    matrix<T> x(shape), dx(x.rows, x.cols), y(tokens, channels);
    const matrix<T> dy(p.upstream("y"));
    const matrix<float> h(p.input("h_pre"));
    matrix<float> dh(tokens, n);
    const auto streams = [=](matrix<T>& m) { return tigon::matrix_view<T>(m.elements.data(), tokens, n * channels); };
    tigon::mhc_pre_forward<B>(streams(x), h, y.view());
    tigon::mhc_pre_backward<B>(dy, streams(x), h, tigon::mhc_pre_gradients<T>{streams(dx), dh.view()});
    return {{"y", values_of(y)}, {"d_x", values_of(dx)}, {"d_h_pre", values_of(dh)}};
  }
};

}  // namespace golden::adapters

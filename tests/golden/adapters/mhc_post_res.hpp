#include <tigon/ops/mhc_post_res.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct mhc_post_res {
  using op = tigon::op::mhc_post_res;

  template <class B, class T>
  static results run(const problem& p) {
    const tensor& shape = p.input("x");  // [batch, seq, streams, channels]
    const std::size_t n = shape.shape[2], channels = shape.cols(), tokens = shape.rows() / n;
    matrix<T> x(shape), dy(p.upstream("y")), dx(x.rows, x.cols), y(x.rows, x.cols), df(tokens, channels);
    const matrix<T> f(p.input("f_out"));
    matrix<float> h_post(p.input("h_post")), h_res(p.input("h_res")), dh_post(tokens, n), dh_res(tokens * n, n);
    const auto streams = [=](matrix<T>& m) { return tigon::matrix_view<T>(m.elements.data(), tokens, n * channels); };
    const auto mixers = [=](matrix<float>& m) { return tigon::matrix_view<float>(m.elements.data(), tokens, n * n); };
    tigon::mhc_post_res_forward<B>(streams(x), f, h_post, mixers(h_res), streams(y));
    tigon::mhc_post_res_backward<B>(
        streams(dy), streams(x), f, h_post, mixers(h_res),
        tigon::mhc_post_res_gradients<T>{streams(dx), df.view(), dh_post.view(), mixers(dh_res)});
    return {{"y", values_of(y)},
            {"d_x", values_of(dx)},
            {"d_f_out", values_of(df)},
            {"d_h_post", values_of(dh_post)},
            {"d_h_res", values_of(dh_res)}};
  }
};

}  // namespace golden::adapters

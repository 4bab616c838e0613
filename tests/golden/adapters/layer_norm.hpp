#include <tigon/ops/layer_norm.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct layer_norm {
  using op = tigon::op::layer_norm;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::layer_norm_options opt{.eps = p.opt.number("eps")};
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    const std::vector<T> w = vector_of<T>(p.input("w")), b = vector_of<T>(p.input("b"));
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols);
    std::vector<T> dw(x.cols), db(x.cols);
    std::vector<float> mean(x.rows), rstd(x.rows);
    tigon::layer_norm_forward<B>(x, w, b, y.view(), mean, rstd, opt);
    tigon::layer_norm_backward<B>(dy, x, w, mean, rstd, tigon::norm_gradients{dx.view(), dw, db}, opt);
    return {{"y", values_of(y)}, {"d_x", values_of(dx)}, {"d_w", values_of(dw)}, {"d_b", values_of(db)}};
  }
};

}  // namespace golden::adapters

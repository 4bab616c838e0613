#include <tigon/ops/poly_norm.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct poly_norm {
  using op = tigon::op::poly_norm;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::poly_norm_options opt{.eps = p.opt.number("eps")};
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    const std::vector<T> w = vector_of<T>(p.input("w")), b = vector_of<T>(p.input("b"));
    matrix<T> y(x.rows, x.cols), dx = dy;
    std::vector<T> dw(3), db(1);
    std::vector<float> rstd(3 * x.rows);
    tigon::poly_norm_forward<B>(x, w, b, y.view(), rstd, opt);
    // In place, dx takes the memory of dy.
    tigon::poly_norm_backward<B>(p.opt.flag("in_place") ? dx : dy, x, w, rstd, tigon::norm_gradients{dx.view(), dw, db},
                                 opt);
    return {{"y", values_of(y)}, {"d_x", values_of(dx)}, {"d_w", values_of(dw)}, {"d_b", values_of(db)}};
  }
};

}  // namespace golden::adapters

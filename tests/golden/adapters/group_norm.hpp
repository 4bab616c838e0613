#include <tigon/ops/group_norm.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct group_norm {
  using op = tigon::op::group_norm;

  template <class B, class T>
  static results run(const problem& p) {
    // x is [batch, channels, positions]: a row a channel.
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    const std::vector<T> w = vector_of<T>(p.input("w")), b = vector_of<T>(p.input("b"));
    const tigon::group_norm_options opt{.groups = static_cast<std::size_t>(p.opt.number("num_groups")),
                                        .eps = p.opt.number("eps")};
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols);
    std::vector<T> dw(w.size()), db(w.size());
    std::vector<float> mean(x.rows / w.size() * opt.groups), rstd(mean.size());
    tigon::group_norm_forward<B>(x, w, b, y.view(), mean, rstd, opt);
    tigon::group_norm_backward<B>(dy, x, w, mean, rstd, tigon::norm_gradients{dx.view(), dw, db}, opt);
    return {{"y", values_of(y)}, {"d_x", values_of(dx)}, {"d_w", values_of(dw)}, {"d_b", values_of(db)}};
  }
};

}  // namespace golden::adapters

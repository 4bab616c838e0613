#include <tigon/ops/rms_norm.hpp>

#include "../casting.hpp"

namespace golden::adapters {

struct rms_norm {
  using op = tigon::op::rms_norm;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::rms_norm_options opt{
        .eps = p.opt.number("eps"), .offset = p.opt.number("offset"), .casting = casting_of(p)};
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols);
    std::vector<float> rstd(x.rows);
    const auto both_ways = [&](const auto& w, auto&& dw) {
      tigon::rms_norm_forward<B>(x, w, y.view(), rstd, opt);
      tigon::rms_norm_backward<B>(dy, x, w, rstd, dx.view(), dw, opt);
    };
    if (!p.opt.flag("affine", true)) {
      both_ways(tigon::absent, tigon::absent);
      return {{"y", values_of(y)}, {"d_x", values_of(dx)}};
    }
    std::vector<T> dw(x.cols);
    both_ways(vector_of<T>(p.input("w")), dw);
    return {{"y", values_of(y)}, {"d_x", values_of(dx)}, {"d_w", values_of(dw)}};
  }
};

}  // namespace golden::adapters

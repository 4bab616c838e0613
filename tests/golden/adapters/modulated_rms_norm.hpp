#include <tigon/ops/modulated_rms_norm.hpp>

#include "../casting.hpp"

namespace golden::adapters {

struct modulated_rms_norm {
  using op = tigon::op::modulated_rms_norm;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    matrix<T> scale(p.input("scale")), y(x.rows, x.cols), dx(x.rows, x.cols), dscale(scale.rows, scale.cols);
    const bool shifted = p.in.contains("shift");
    matrix<T> shift = shifted ? matrix<T>(p.input("shift")) : matrix<T>(0, 0), dshift(shift.rows, shift.cols);
    const tigon::modulated_rms_norm_options opt{.eps = p.opt.number("eps"),
                                                .offset = p.opt.number("offset"),
                                                .group_rows = x.rows / scale.rows,
                                                .casting = casting_of(p)};
    std::vector<float> rstd(x.rows);
    const auto both_ways = [&](const auto& w, auto&& dw) -> results {
      const auto of = [&](matrix<T>& m) { return shifted ? m.view() : tigon::matrix_view<T>{}; };
      tigon::modulated_rms_norm_forward<B>(x, w, scale.view(), of(shift), y.view(), rstd, opt);
      tigon::modulated_rms_norm_backward<B>(
          dy, x, w, scale, rstd, tigon::modulated_rms_norm_gradients{dx.view(), dw, dscale.view(), of(dshift)}, opt);
      results named{{"y", values_of(y)}, {"d_x", values_of(dx)}, {"d_scale", values_of(dscale)}};
      if (shifted) named.emplace("d_shift", values_of(dshift));
      return named;
    };
    if (!p.opt.flag("affine", true)) return both_ways(tigon::absent, tigon::absent);
    std::vector<T> dw(x.cols);
    results named = both_ways(vector_of<T>(p.input("w")), dw);
    named.emplace("d_w", values_of(dw));
    return named;
  }
};

}  // namespace golden::adapters

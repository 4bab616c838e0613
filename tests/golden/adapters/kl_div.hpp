#include <tigon/losses/kl_div.hpp>

#include "../divergences.hpp"

namespace golden::adapters {

struct kl_div {
  using op = tigon::op::kl_div;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> y(p.input("y_pred")), t(p.input("y_true"));
    matrix<T> dy(y.rows, y.cols);
    divergence_loss out(p, y.rows, y.cols);
    const tigon::kl_div_options opt{
        .reduction = divergence_reduction_of(p), .log_target = p.opt.flag("log_target"), .eps = p.opt.number("eps")};
    tigon::kl_div_forward<B>(y, t, out.loss.view(), tigon::matrix_view<T>{}, opt);
    tigon::kl_div_backward<B>(t, out.upstream.view(), dy.view(), opt);
    return {{"loss", values_of(out.loss)}, {"d_y_pred", values_of(dy)}};
  }
};

}  // namespace golden::adapters

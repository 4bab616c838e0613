#include <tigon/losses/tvd.hpp>

#include "../divergences.hpp"

namespace golden::adapters {

struct tvd {
  using op = tigon::op::tvd;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> q(p.input("p")), t(p.input("q"));
    matrix<T> dq(q.rows, q.cols);
    divergence_loss out(p, q.rows, q.cols);
    const tigon::tvd_options opt{.reduction = divergence_reduction_of(p),
                                 .ignore_index = static_cast<std::int64_t>(p.opt.number("ignore_index"))};
    with_labels(p, [&](const auto& labels) {
      tigon::tvd_forward<B>(q, t, out.loss.view(), dq.view(), opt, labels);
      tigon::tvd_backward<B>(q, t, out.upstream.view(), dq.view(), opt, labels);
    });
    return {{"loss", values_of(out.loss)}, {"d_p", values_of(dq)}};
  }
};

}  // namespace golden::adapters

#include <tigon/losses/jsd.hpp>

#include "../divergences.hpp"

namespace golden::adapters {

struct jsd {
  using op = tigon::op::jsd;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> x(p.input("x")), y(p.input("y"));
    matrix<T> dx(x.rows, x.cols);
    std::vector<float> loss(1);
    const auto upstream = vector_of<float>(p.upstream("loss"));
    with_labels(p, [&](const auto& labels) {
      tigon::jsd_forward<B>(
          x, y, loss, dx.view(),
          {.beta = p.opt.number("beta"), .ignore_index = static_cast<std::int64_t>(p.opt.number("ignore_index"))},
          labels);
    });
    tigon::jsd_backward<B>(dx, upstream, dx.view());
    return {{"loss", values_of(loss)}, {"d_x", values_of(dx)}};
  }
};

}  // namespace golden::adapters

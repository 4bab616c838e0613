#include <tigon/losses/cross_entropy.hpp>

#include "../losses.hpp"

namespace golden::adapters {

struct cross_entropy {
  using op = tigon::op::cross_entropy;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> x(p.input("x"));
    const auto target = vector_of<std::int64_t>(p.input("target"));
    matrix<T> dx(x.rows, x.cols);
    loss_results out(p, x.rows);
    with_class_weight(p, [&](const auto& class_weight) {
      tigon::cross_entropy_forward<B>(x, target, out.loss, dx.view(), loss_options(p), class_weight, out.metrics());
    });
    tigon::cross_entropy_backward<B>(dx, out.upstream, dx.view());
    results named = out.named();
    named["d_x"] = values_of(dx);
    return named;
  }
};

}  // namespace golden::adapters

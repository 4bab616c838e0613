#include <tigon/ops/dyt.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct dyt {
  using op = tigon::op::dyt;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    const std::vector<T> alpha = vector_of<T>(p.input("alpha")), gamma = vector_of<T>(p.input("gamma"));
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols);
    std::vector<T> dalpha(1), dgamma(x.cols), dbeta(x.cols);
    const auto both_ways = [&](const auto& beta, auto&& db) {
      tigon::dyt_forward<B>(x, alpha, gamma, beta, y.view());
      tigon::dyt_backward<B>(dy, x, alpha, gamma, tigon::dyt_gradients{dx.view(), dalpha, dgamma, db});
    };
    if (p.opt.flag("has_beta"))
      both_ways(vector_of<T>(p.input("beta")), dbeta);
    else
      both_ways(tigon::absent, tigon::absent);
    return {{"y", values_of(y)},
            {"d_x", values_of(dx)},
            {"d_alpha", values_of(dalpha)},
            {"d_gamma", values_of(dgamma)},
            {"d_beta", values_of(dbeta)}};
  }
};

}  // namespace golden::adapters

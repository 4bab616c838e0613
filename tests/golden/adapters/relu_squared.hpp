#include <tigon/ops/relu_squared.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct relu_squared {
  using op = tigon::op::relu_squared;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols);
    tigon::relu_squared_forward<B>(x, y.view());
    tigon::relu_squared_backward<B>(dy, x, dx.view());
    return {{"y", values_of(y)}, {"d_x", values_of(dx)}};
  }
};

}  // namespace golden::adapters

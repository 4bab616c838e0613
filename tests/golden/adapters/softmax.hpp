#include <tigon/ops/softmax.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct softmax {
  using op = tigon::op::softmax;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols);
    tigon::softmax_forward<B>(x, y.view());
    tigon::softmax_backward<B>(dy, y, dx.view());
    return {{"y", values_of(y)}, {"d_x", values_of(dx)}};
  }
};

}  // namespace golden::adapters

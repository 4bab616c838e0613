#include <tigon/ops/sparsemax.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct sparsemax {
  using op = tigon::op::sparsemax;

  template <class B, class T>
  static results run(const problem& p) {
    matrix<T> x(p.input("x")), dy(p.upstream("y"));
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols);
    const auto& shape = p.input("x").shape;
    const double dim = p.opt.number("dim", -1);
    const std::size_t at = static_cast<std::size_t>(dim < 0 ? dim + static_cast<double>(shape.size()) : dim);
    if (at + 1 == shape.size()) {
      tigon::sparsemax_forward<B>(x, y.view());
      tigon::sparsemax_backward<B>(dy, y, dx.view());
    } else {
      std::size_t outer = 1, inner = 1;
      for (std::size_t k = 0; k < shape.size(); ++k) (k < at ? outer : inner) *= k == at ? 1 : shape[k];
      const auto along = [&](matrix<T>& m) { return tigon::axis_view(m.elements.data(), outer, shape[at], inner); };
      tigon::sparsemax_forward<B>(along(x), along(y));
      tigon::sparsemax_backward<B>(along(dy), along(y), along(dx));
    }
    return {{"y", values_of(y)}, {"d_x", values_of(dx)}};
  }
};

}  // namespace golden::adapters

#include <tigon/ops/swiglu_fused.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

/// Gate and up side by side in one buffer, and so their gradients, which replace them in cases that work in place.
struct swiglu_fused_gate_up {
  using op = tigon::op::swiglu_fused;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> dc(p.upstream("c"));
    matrix<T> y(p.input("y")), c(dc.rows, dc.cols), dy(y.rows, y.cols);
    const bool in_place = p.opt.flag("in_place", false);
    tigon::swiglu_fused_forward<B>(y, c.view());
    tigon::swiglu_fused_backward<B>(dc, y, in_place ? y.view() : dy.view());
    return {{"c", values_of(c)}, {"d_y", values_of(in_place ? y : dy)}};
  }
};

}  // namespace golden::adapters

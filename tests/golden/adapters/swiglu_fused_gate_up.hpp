#include <tigon/ops/swiglu.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

/// Gate and up side by side in one buffer: two views of it, and so for their gradients.
struct swiglu_fused_gate_up {
  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> dc(p.upstream("c"));
    matrix<T> y(p.input("y")), c(dc.rows, dc.cols), dy(y.rows, y.cols);
    const auto gate = [&](matrix<T>& m) { return m.view().cols_from(0, c.cols); };
    const auto up = [&](matrix<T>& m) { return m.view().cols_from(c.cols, c.cols); };
    tigon::swiglu_forward<B>(gate(y), up(y), c.view());
    tigon::swiglu_backward<B>(dc, gate(y), up(y), gate(dy), up(dy));
    return {{"c", values_of(c)}, {"d_y", values_of(dy)}};
  }
};

}  // namespace golden::adapters

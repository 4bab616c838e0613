#include <tigon/ops/swiglu.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct swiglu {
  using op = tigon::op::swiglu;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::swiglu_options opt{.gate_multiplier = p.opt.number("gate_multiplier", 1),
                                    .down_multiplier = p.opt.number("down_multiplier", 1)};
    const matrix<T> a(p.input("a")), b(p.input("b")), dc(p.upstream("c"));
    matrix<T> c(a.rows, a.cols), da(a.rows, a.cols), db(a.rows, a.cols);
    tigon::swiglu_forward<B>(a, b, c.view(), opt);
    tigon::swiglu_backward<B>(dc, a, b, da.view(), db.view(), opt);
    return {{"c", values_of(c)}, {"d_a", values_of(da)}, {"d_b", values_of(db)}};
  }
};

}  // namespace golden::adapters

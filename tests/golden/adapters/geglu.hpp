#include <tigon/ops/geglu.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct geglu {
  using op = tigon::op::geglu;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> a(p.input("a")), b(p.input("b")), dc(p.upstream("c"));
    matrix<T> c(a.rows, a.cols), da(a.rows, a.cols), db(a.rows, a.cols);
    tigon::geglu_forward<B>(a, b, c.view());
    tigon::geglu_backward<B>(dc, a, b, da.view(), db.view());
    return {{"c", values_of(c)}, {"d_a", values_of(da)}, {"d_b", values_of(db)}};
  }
};

}  // namespace golden::adapters

#include <tigon/ops/mlp.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct swiglu_mlp {
  using op = tigon::op::mlp;
  static constexpr bool products = true;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::mlp_options opt{.gate_multiplier = p.opt.number("gate_multiplier", 1),
                                 .down_multiplier = p.opt.number("down_multiplier", 1)};
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    matrix<T> wg(p.input("wg")), wu(p.input("wu")), wd(p.input("wd"));
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols), dwg(wg.rows, wg.cols), dwu(wu.rows, wu.cols),
        dwd(wd.rows, wd.cols);
    matrix<T> memory(x.rows, 3 * wg.rows);
    tigon::mlp_saved<T> saved{memory.view()};
    tigon::mlp_forward<B>(x, tigon::mlp_weights{wg.view(), wu.view(), wd.view()}, y.view(), saved, opt);
    tigon::mlp_backward<B>(dy, x, tigon::mlp_weights{wg.view(), wu.view(), wd.view()}, saved, dx.view(),
                           tigon::mlp_weights{dwg.view(), dwu.view(), dwd.view()}, opt);
    return {{"y", values_of(y)},
            {"d_x", values_of(dx)},
            {"d_wg", values_of(dwg)},
            {"d_wu", values_of(dwu)},
            {"d_wd", values_of(dwd)}};
  }
};

}  // namespace golden::adapters

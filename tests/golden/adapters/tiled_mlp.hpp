#include <tigon/ops/tiled_mlp.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

/// Liger cuts every sequence into shards in forward and all tokens together in backward; here it is all tokens always.
struct tiled_mlp {
  using op = tigon::op::tiled_mlp;
  static constexpr bool products = true;

  template <class B, class T>
  static results run(const problem& p) {
    const std::string act = p.opt.text("act", "silu");
    if (act != "silu" && act != "gelu") throw cannot_run("activation " + act + " is unknown");
    tigon::tiled_mlp_options opt{.mlp = {.gate = act == "silu" ? tigon::mlp_gate::swiglu : tigon::mlp_gate::geglu}};
    if (p.opt.has("num_shards")) opt.shards = static_cast<std::size_t>(p.opt.number("num_shards"));
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    matrix<T> wg(p.input("wg")), wu(p.input("wu")), wd(p.input("wd"));
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols), dwg(wg.rows, wg.cols), dwu(wu.rows, wu.cols),
        dwd(wd.rows, wd.cols);
    tigon::tiled_mlp_forward<B>(x, tigon::mlp_weights{wg.view(), wu.view(), wd.view()}, y.view(), opt);
    tigon::tiled_mlp_backward<B>(dy, x, tigon::mlp_weights{wg.view(), wu.view(), wd.view()}, dx.view(),
                                 tigon::mlp_weights{dwg.view(), dwu.view(), dwd.view()}, opt);
    return {{"y", values_of(y)},
            {"d_x", values_of(dx)},
            {"d_wg", values_of(dwg)},
            {"d_wu", values_of(dwu)},
            {"d_wd", values_of(dwd)}};
  }
};

}  // namespace golden::adapters

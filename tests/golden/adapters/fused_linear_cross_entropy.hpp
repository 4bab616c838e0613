#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include "../losses.hpp"

namespace golden::adapters {

struct fused_linear_cross_entropy {
  using op = tigon::op::fused_linear_cross_entropy;
  static constexpr bool products = true;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::fused_linear_cross_entropy_options opt{.loss = loss_options(p),
                                                        .token_scaling = p.opt.flag("use_token_scaling")};
    const matrix<T> x(p.input("x")), w(p.input("weight"));
    const auto target = vector_of<std::int64_t>(p.input("target"));
    const bool has_bias = p.in.contains("bias");
    const std::vector<T> bias = has_bias ? vector_of<T>(p.input("bias")) : std::vector<T>();
    matrix<T> dx(x.rows, x.cols), dw(w.rows, w.cols);
    std::vector<T> dbias(bias.size());
    const tigon::linear_layer<T> layer{x, w, bias};
    const tigon::linear_gradients<T> gradients{dx.view(), dw.view(), dbias};
    loss_results out(p, x.rows);
    with_class_weight(p, [&](const auto& class_weight) {
      if (opt.loss.reduction == tigon::reduction::none) {  // the upstream gradients are known only afterwards
        tigon::fused_linear_cross_entropy_forward<B>(layer, target, {out.loss, out.metrics()}, {}, opt, class_weight);
        tigon::fused_linear_cross_entropy_backward<B>(layer, target, out.upstream, gradients, opt, class_weight);
      } else {
        tigon::fused_linear_cross_entropy_forward<B>(layer, target, {out.loss, out.metrics()}, gradients, opt,
                                                     class_weight, out.upstream);
      }
    });
    results named = out.named();
    named["d_x"] = values_of(dx);
    named["d_weight"] = values_of(dw);
    if (has_bias) named["d_bias"] = values_of(dbias);
    return named;
  }
};

}  // namespace golden::adapters

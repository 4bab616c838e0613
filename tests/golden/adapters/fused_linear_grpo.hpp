#include <tigon/losses/fused_linear_grpo.hpp>

#include "../policy.hpp"

namespace golden::adapters {

struct fused_linear_grpo {
  using op = tigon::op::fused_linear_grpo;
  static constexpr bool products = true;

  template <class B, class T>
  static results run(const problem& p) {
    // Liger's chunked form averages luspo over all positions, with the loss of masked ones.
    tigon::policy_options opt = policy_options_of(p, tigon::luspo_reduction::padded);
    // Its tau is an f32 number, in the reference too. g++ 12 leaves out two such roundings that stand side by side (-O2
    // and higher, not at -O1); a volatile keeps them.
    const auto rounded = [](double v) {
      volatile float number = static_cast<float>(v);
      return static_cast<double>(number);
    };
    opt.tau_positive = rounded(opt.tau_positive), opt.tau_negative = rounded(opt.tau_negative);
    policy_case c(p, "selected_token_ids", "attention_mask", opt.reduce);
    if (opt.type == tigon::policy_loss::vespo) c.count_all_ratios();
    const auto optional = [&](std::string_view name) {
      return p.in.contains(name) ? vector_of<T>(p.input(name)) : std::vector<T>();
    };
    const matrix<T> x(p.input("x")), w(p.input("weight"));
    const std::vector<T> bias = optional("bias"), ref_bias = optional("ref_bias");
    const bool layer = p.in.contains("ref_x");
    const matrix<T> ref_x = layer ? matrix<T>(p.input("ref_x")) : matrix<T>(0, 0);
    const matrix<T> ref_w = layer ? matrix<T>(p.input("ref_weight")) : matrix<T>(0, 0);
    matrix<T> dx(x.rows, x.cols), dw(w.rows, w.cols);
    std::vector<T> dbias(bias.size());
    tigon::reference_model<T> reference;
    if (layer) reference.layer = {ref_x, ref_w, ref_bias};
    tigon::fused_linear_grpo_forward<B, T>({x, w, bias}, c.given(), {c.loss, c.metrics(layer || !c.ref_logp.empty())},
                                           {dx.view(), dw.view(), dbias}, opt, reference, c.upstream);
    results named = c.named();
    named["d_x"] = values_of(dx), named["d_weight"] = values_of(dw), named["d_bias"] = values_of(dbias);
    return named;
  }
};

}  // namespace golden::adapters

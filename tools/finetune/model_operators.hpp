// The operators of the model, each in a scope of the profile with its least work.
#ifndef EXAMPLE_FINETUNE_MODEL_OPERATORS_HPP
#define EXAMPLE_FINETUNE_MODEL_OPERATORS_HPP

#include <tigon/losses/fused_linear_cpo.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_jsd_distillation.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/fused_linear_simpo.hpp>
#include <tigon/losses/selective_logprob.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/rows/reduce_map.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../../support/operators.hpp"
#include "config.hpp"
#include "objective_options.hpp"

namespace example {

/// In the library's words, of the losses that fused_linear_dpo has.
inline tigon::dpo_loss dpo_loss_of(preference_loss loss) {
  using enum tigon::dpo_loss;
  switch (loss) {
    case preference_loss::hinge: return hinge;
    case preference_loss::ipo: return ipo;
    case preference_loss::exo_pair: return exo_pair;
    case preference_loss::nca_pair: return nca_pair;
    case preference_loss::robust: return robust;
    case preference_loss::bco_pair: return bco_pair;
    case preference_loss::sppo_hard: return sppo_hard;
    case preference_loss::apo_zero: return apo_zero;
    case preference_loss::apo_down: return apo_down;
    case preference_loss::discopop: return discopop;
    default: return sigmoid;
  }
}

/// The doors that the model calls, without the context.
template <tigon::element T>
class model_operators : public timed_operators<T> {
  using base = timed_operators<T>;
  using base::bytes, base::call, base::ctx_, base::product;
  using typename base::head_backend;

 public:
  using typename base::head_types, typename base::heads, typename base::tables;
  using head_layer = tigon::linear_layer<head_types>;
  using head_gradients = tigon::linear_gradients<head_types>;
  using base::base;

  void embedding_forward(matrix<const T> w, std::span<const std::int32_t> ids, double scale, matrix<T> y);
  /// `wide` is scratch of dy's extents where T has 16 bits; dy is not kept.
  void embedding_backward(matrix<T> dy, matrix<float> wide, std::span<const std::int32_t> ids, double scale,
                          matrix<float> dw, tigon::embedding_options opt);

  void rms_norm_backward(matrix<const T> dy, matrix<const T> x, std::span<const float> w, std::span<const float> rstd,
                         matrix<T> dx, std::span<float> dw, tigon::rms_norm_options opt);
  /// y = alpha x w^T + beta y + bias; the bias may be empty.
  void linear(matrix<const T> x, matrix<const T> w, std::span<const T> bias, matrix<T> y, double alpha = 1,
              double beta = 0);
  /// db[j] = sum of a column of dy.
  void column_sums(matrix<const T> dy, std::span<float> db, tigon::gradient mode);

  void qk_norm_rope_forward(tigon::qk_heads<T> x, std::span<const float> w_q, std::span<const float> w_k, tables by,
                            tigon::qk_heads<T> y, tigon::qk_norm_rope_options opt);
  /// In place: d becomes the gradient of x.
  void qk_norm_rope_backward(tigon::qk_heads<T> d, tigon::qk_heads<T> x, std::span<const float> w_q,
                             std::span<const float> w_k, tables by, std::span<float> dw_q, std::span<float> dw_k,
                             tigon::qk_norm_rope_options opt);

  /// y = act(gate) * up
  void gate_forward(activation act, matrix<const T> gate, matrix<const T> up, matrix<T> y);
  /// gate and up become their gradients.
  void gate_backward(activation act, matrix<const T> dy, matrix<T> gate, matrix<T> up);

  /// The sum of the losses of all targets, and the gradients that have memory.
  double cross_entropy(const head_layer& layer, std::span<const std::int32_t> targets, double softcap,
                       const head_gradients& to);
  /// log p of each target; 0 where there is none.
  void log_probabilities(const head_layer& layer, std::span<const std::int32_t> targets, double softcap,
                         std::span<float> out);
  /// A loss on pairs, summed over them; rows as its door has them. `reference` may be empty.
  void preference(const head_layer& layer, matrix<const std::int32_t> targets, const preference_options& o,
                  double softcap, std::span<const float> reference, const tigon::preference_results<float>& results,
                  const head_gradients& to);
  /// KTO's loss, summed over the answers; `kl` is the baseline of all of them.
  void labelled_preference(const head_layer& layer, const tigon::unpaired_batch& answers, const preference_options& o,
                           double softcap, float kl, std::span<const float> reference,
                           const tigon::unpaired_results<float>& results, const head_gradients& to);
  /// hard * cross entropy + soft * divergence from the teacher at a temperature, summed over the targets. beta = 0:
  /// KL(teacher || student), 1: KL(student || teacher), between: Jensen-Shannon.
  struct capped_head {
    const head_layer& layer;
    double softcap;
  };
  double distillation(const capped_head& student, const capped_head& teacher, std::span<const std::int32_t> targets,
                      const distillation_options& o, const head_gradients& to);

 private:
  struct column_sum {
    template <class V>
    TIGON_INLINE V map(V x, V sum) const {
      return sum + x;
    }
  };

  /// to = from * scale; the scale is rounded to T first, as frameworks do.
  template <class To>
  void multiply(matrix<const T> from, matrix<To> to, double scale) {
    if (scale == 1 && std::same_as<T, To>) return;
    const auto by = static_cast<float>(static_cast<T>(static_cast<float>(scale)));
    tigon::for_rows<tigon::default_backend>(ctx_, to.rows, to.cols, [=] TIGON_FN(auto row) {
      row.map(tigon::reads(from), tigon::writes(to), [=](auto v) { return v * by; });
    });
  }

  static tigon::gelu_form form_of(activation act) {
    return act == activation::gelu_tanh ? tigon::gelu_form::tanh : tigon::gelu_form::erf;
  }
};

template <tigon::element T>
void model_operators<T>::embedding_forward(matrix<const T> w, std::span<const std::int32_t> ids, double scale,
                                           matrix<T> y) {
  const auto timed = call("embedding", {0, 2 * bytes(y)});
  tigon::embedding_forward(w, ids, y, {}, ctx_);
  multiply(y, y, scale);
}

template <tigon::element T>
void model_operators<T>::embedding_backward(matrix<T> dy, matrix<float> wide, std::span<const std::int32_t> ids,
                                            double scale, matrix<float> dw, tigon::embedding_options opt) {
  const auto timed = call("embedding", {0, bytes(dy, dw)});
  if constexpr (std::same_as<T, float>) {
    multiply(dy, dy, scale);
    tigon::embedding_backward(dy, ids, dw, opt, ctx_);
  } else {
    multiply(dy, wide, scale);
    tigon::embedding_backward(wide, ids, dw, opt, ctx_);
  }
}

template <tigon::element T>
void model_operators<T>::rms_norm_backward(matrix<const T> dy, matrix<const T> x, std::span<const float> w,
                                           std::span<const float> rstd, matrix<T> dx, std::span<float> dw,
                                           tigon::rms_norm_options opt) {
  const auto timed = call("rms_norm", {0, bytes(dy, x, dx)});
  tigon::rms_norm_backward(dy, x, w, rstd, dx, dw, opt, ctx_);
}

template <tigon::element T>
void model_operators<T>::linear(matrix<const T> x, matrix<const T> w, std::span<const T> bias, matrix<T> y,
                                double alpha, double beta) {
  const auto timed = product(x.rows, x.cols, w.rows, bytes(x, w, y));
  const tigon::gemm_options opt{.alpha = alpha, .beta = beta, .b = tigon::transpose::yes};
  if (bias.empty())
    tigon::gemm(x, w, y, opt, ctx_);
  else
    tigon::gemm(x, w, y, bias, tigon::no_epilogue{}, opt, ctx_);
}

template <tigon::element T>
void model_operators<T>::column_sums(matrix<const T> dy, std::span<float> db, tigon::gradient mode) {
  const auto timed = call("column_sums", {0, bytes(dy)});
  using kernels = tigon::default_backend;
  ctx_.workspace().expect("column_sums", tigon::simd::partials_workspace<kernels, float>(dy.rows, dy.cols, 1));
  tigon::map_rows<kernels>(ctx_, column_sum(), tigon::reads(dy), tigon::writes(),
                           tigon::adds_to(tigon::parameter_gradient<float>{vector<float>{db.data(), db.size()}, mode}));
}

template <tigon::element T>
void model_operators<T>::qk_norm_rope_forward(tigon::qk_heads<T> x, std::span<const float> w_q,
                                              std::span<const float> w_k, tables by, tigon::qk_heads<T> y,
                                              tigon::qk_norm_rope_options opt) {
  const auto timed = call("qk_norm_rope", {0, 2 * bytes(x.q, x.k)});
  tigon::qk_norm_rope_forward<tigon::default_backend, T>({x.q, x.k}, tigon::qk_norm_weights{w_q, w_k}, by, y, opt,
                                                         ctx_);
}

template <tigon::element T>
void model_operators<T>::qk_norm_rope_backward(tigon::qk_heads<T> d, tigon::qk_heads<T> x, std::span<const float> w_q,
                                               std::span<const float> w_k, tables by, std::span<float> dw_q,
                                               std::span<float> dw_k, tigon::qk_norm_rope_options opt) {
  const auto timed = call("qk_norm_rope", {0, 2 * bytes(x.q, x.k) + bytes(d.q, d.k)});
  tigon::qk_norm_rope_backward<tigon::default_backend, T>({d.q, d.k}, {x.q, x.k}, tigon::qk_norm_weights{w_q, w_k}, by,
                                                          tigon::qk_norm_rope_gradients{d.q, d.k, dw_q, dw_k}, opt,
                                                          ctx_);
}

template <tigon::element T>
void model_operators<T>::gate_forward(activation act, matrix<const T> gate, matrix<const T> up, matrix<T> y) {
  const auto timed = call("gate", {0, bytes(gate, up, y)});
  if (act == activation::silu)
    tigon::swiglu_forward(gate, up, y, {}, ctx_);
  else
    tigon::geglu_forward(gate, up, y, {.form = form_of(act)}, ctx_);
}

template <tigon::element T>
void model_operators<T>::gate_backward(activation act, matrix<const T> dy, matrix<T> gate, matrix<T> up) {
  const auto timed = call("gate", {0, bytes(dy) + 2 * bytes(gate, up)});
  if (act == activation::silu)
    tigon::swiglu_backward(dy, gate, up, gate, up, {}, ctx_);
  else
    tigon::geglu_backward(dy, gate, up, gate, up, {.form = form_of(act)}, ctx_);
}

template <tigon::element T>
double model_operators<T>::cross_entropy(const head_layer& layer, std::span<const std::int32_t> targets, double softcap,
                                         const head_gradients& to) {
  const auto timed = base::head("fused_linear_cross_entropy", layer, to);
  float loss = 0;
  tigon::fused_linear_cross_entropy_options opt;
  opt.loss.reduction = tigon::reduction::sum, opt.loss.softcap = softcap;
  tigon::fused_linear_cross_entropy_forward<head_backend>(layer, targets, {std::span(&loss, 1)}, to, opt, tigon::absent,
                                                          {}, ctx_);
  return static_cast<double>(loss);
}

template <tigon::element T>
void model_operators<T>::log_probabilities(const head_layer& layer, std::span<const std::int32_t> targets,
                                           double softcap, std::span<float> out) {
  if (softcap != 0) {
    const auto timed = base::head("fused_linear_cross_entropy", layer, {});
    tigon::fused_linear_cross_entropy_options opt;
    opt.loss.reduction = tigon::reduction::none, opt.loss.softcap = softcap;
    tigon::fused_linear_cross_entropy_forward<head_backend>(layer, targets, {out}, {}, opt, tigon::absent, {}, ctx_);
    for (float& loss : out) loss = -loss;
    return;
  }
  const auto timed = base::head("selective_logprob", layer, {});
  std::vector<tigon::lse_parts<float>> unused(out.size());
  tigon::selective_logprob_forward<head_backend>(layer, targets, out, unused, {}, ctx_);
}

template <tigon::element T>
void model_operators<T>::preference(const head_layer& layer, matrix<const std::int32_t> targets,
                                    const preference_options& o, double softcap, std::span<const float> reference,
                                    const tigon::preference_results<float>& results, const head_gradients& to) {
  const auto timed = base::head("fused_linear_preference", layer, to);
  const tigon::token_ids ids(targets);
  std::size_t answers = 0;  // tokens of the chosen half
  for (std::size_t s = 0; s < targets.rows / 2; ++s)
    for (std::size_t t = 0; t < targets.cols; ++t) answers += targets.row(s)[t] >= 0;
  const double pairs = static_cast<double>(targets.rows / 2), nll = o.nll_weight();
  tigon::preference_options of_pairs;
  of_pairs.softcap = softcap;
  of_pairs.alpha = nll, of_pairs.denominator = 1, of_pairs.nll_denominator = static_cast<double>(answers) / pairs;
  const tigon::reference_model<head_types> before{.logps = reference};
  switch (o.loss) {
    case preference_loss::simpo:
      return tigon::fused_linear_simpo_forward<head_backend>(
          layer, ids, results, to, {of_pairs, o.beta, o.gamma, o.label_smoothing, nll != 0}, ctx_);
    case preference_loss::cpo:
      return tigon::fused_linear_cpo_forward<head_backend>(
          layer, ids, results, to, {of_pairs, o.beta, o.label_smoothing, nll != 0, false}, ctx_);
    case preference_loss::orpo:
      return tigon::fused_linear_orpo_forward<head_backend>(layer, {ids}, results, to, {of_pairs, o.beta, nll != 0},
                                                            ctx_);
    default: break;
  }
  tigon::fused_linear_dpo_options opt;
  opt.pairs = of_pairs, opt.loss = dpo_loss_of(o.loss), opt.beta = o.beta, opt.label_smoothing = o.label_smoothing;
  opt.compute_nll_loss = nll != 0;
  tigon::fused_linear_dpo_forward<head_backend>(layer, {ids}, results, to, opt, before, ctx_);
}

template <tigon::element T>
void model_operators<T>::labelled_preference(const head_layer& layer, const tigon::unpaired_batch& answers,
                                             const preference_options& o, double softcap, float kl,
                                             std::span<const float> reference,
                                             const tigon::unpaired_results<float>& results, const head_gradients& to) {
  const auto timed = base::head("fused_linear_kto", layer, to);
  tigon::fused_linear_kto_options opt;
  opt.sequences.denominator = 1, opt.sequences.softcap = softcap, opt.beta = o.beta;
  opt.desirable_weight = o.desirable_weight, opt.undesirable_weight = o.undesirable_weight;
  tigon::fused_linear_kto_forward<head_backend>(layer, answers, std::span<const float>(&kl, 1), results, to, opt,
                                                {.logps = reference}, ctx_);
}

template <tigon::element T>
double model_operators<T>::distillation(const capped_head& student, const capped_head& teacher,
                                        std::span<const std::int32_t> targets, const distillation_options& o,
                                        const head_gradients& to) {
  const auto timed = base::head("fused_linear_jsd_distillation", student.layer, to);
  float loss = 0;
  tigon::fused_linear_jsd_distillation_options opt;
  opt.beta = o.beta, opt.distillation.temperature = o.temperature, opt.distillation.denominator = 1;
  opt.distillation.weight_hard = o.hard, opt.distillation.weight_soft = o.soft();
  opt.distillation.softcap = student.softcap, opt.distillation.teacher_softcap = teacher.softcap;
  tigon::fused_linear_jsd_distillation_forward<head_backend>(student.layer, teacher.layer, targets,
                                                             {std::span(&loss, 1)}, to, opt, ctx_);
  return static_cast<double>(loss);
}

// Compiled once an element type, in model_operators_f32.cpp and model_operators_bf16.cpp.
extern template class model_operators<float>;
extern template class model_operators<tigon::bfloat16>;

}  // namespace example
#endif

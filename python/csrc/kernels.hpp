// What the library asks of its kernels, once for every instruction set: functions over pointers, sizes and strides.
// Neither PyTorch's types nor tigon's cross this border, and element types are values.
#ifndef TIGON_TORCH_KERNELS_HPP
#define TIGON_TORCH_KERNELS_HPP

#include <cstddef>
#include <cstdint>

namespace tigon_torch {

enum class type : int { f32, f64, bf16, f16, i32, i64 };

/// As tigon::matrix_view; without memory it stands for an argument that is not there.
struct matrix {
  void* data = nullptr;
  type of = type::f32;
  std::size_t rows = 0, cols = 0, stride = 0;
};
/// Contiguous.
struct vector {
  void* data = nullptr;
  type of = type::f32;
  std::size_t size = 0;
};
/// As tigon::heads_view.
struct heads {
  void* data = nullptr;
  type of = type::f32;
  std::size_t batch = 0, heads = 0, seq_len = 0, head_dim = 0;
  std::size_t batch_stride = 0, head_stride = 0, seq_stride = 0;
};

/// What a call runs on: PyTorch's threads and PyTorch's memory.
struct host {
  std::size_t workers = 1;
  /// work(of, i) once for every i below count, on up to count threads at once.
  void (*parallel)(std::size_t count, void (*work)(void* of, std::size_t i), void* of) = nullptr;
  /// So many bytes, which last as long as the call.
  void* (*scratch)(void* memory, std::size_t bytes) = nullptr;
  void* memory = nullptr;
};

// The numbers of the operators' schemas.
enum class casting : int { llama, gemma, none };
enum class reduction : int { mean, sum, none };

/// Weights and their gradients have the type of the sums: f32, f64 beside f64.
struct norm_options {
  double eps, offset;
  casting cast;
};
struct norm_kernels {
  void (*rms_norm)(const host&, matrix x, vector w, matrix y, vector rstd, norm_options);
  void (*rms_norm_backward)(const host&, matrix dy, matrix x, vector w, vector rstd, matrix dx, vector dw,
                            norm_options);
  void (*fused_add_rms_norm)(const host&, matrix x, matrix r, vector w, matrix y, matrix s, vector rstd, norm_options);
  void (*fused_add_rms_norm_backward)(const host&, matrix dy, matrix ds, matrix s, vector w, vector rstd, matrix dx,
                                      vector dw, norm_options);
  void (*layer_norm)(const host&, matrix x, vector w, vector b, matrix y, vector mean, vector rstd, double eps);
  void (*layer_norm_backward)(const host&, matrix dy, matrix x, vector w, vector mean, vector rstd, matrix dx,
                              vector dw, vector db);
};

/// Backwards, of two gradients one without memory is not made.
struct gate_kernels {
  void (*swiglu)(const host&, matrix gate, matrix up, matrix y);
  void (*swiglu_backward)(const host&, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup);
  void (*geglu)(const host&, matrix gate, matrix up, matrix y, bool tanh);
  void (*geglu_backward)(const host&, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup, bool tanh);
};

/// Tables have the type of the sums; backwards, q and k are gradients of the rotated ones. k may have no heads.
struct rotary_kernels {
  void (*rope)(const host&, heads q, heads k, matrix cos, matrix sin, heads q_out, heads k_out, bool backward);
  void (*mrope)(const host&, heads q, heads k, matrix cos, matrix sin, heads q_out, heads k_out,
                const std::int64_t* sections, bool backward);
};

struct attention_options {
  double scale = 0, softcap = 0;  ///< 0: 1 / sqrt(head_dim); none
  bool causal = true;
  std::int64_t window_left = -1, window_right = -1;  ///< keys beside its own that a query sees; -1: all
  std::int64_t offset = 0;                           ///< of the first query among the keys
  vector cumulative_lengths, sinks;                  ///< i32, f32
};
struct attention_saved {
  heads q, k, v, o;
  vector lse;
};
/// Gradients without memory are not computed; in 16 bits dk needs memory of dq.
struct attention_kernels {
  void (*attention)(const host&, heads q, heads k, heads v, heads o, vector lse, const attention_options&);
  void (*attention_backward)(const host&, heads d_o, const attention_saved&, heads dq, heads dk, heads dv,
                             vector dsinks, const attention_options&);
  void (*linear)(const host&, matrix x, matrix w, vector bias, matrix y);
  void (*linear_backward)(const host&, matrix dy, matrix x, matrix w, matrix dx, matrix dw);
};

struct cross_entropy_options {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0, z_loss = 0, softcap = 0;
  reduction reduce = reduction::mean;
};
struct linear_layer {
  matrix x, w;
  vector bias;
};
/// Those without memory are not computed.
struct linear_gradients {
  matrix dx, dw;
  vector dbias;
};
struct cross_entropy_kernels {
  void (*cross_entropy)(const host&, matrix logits, vector target, vector loss, const cross_entropy_options&);
  void (*cross_entropy_backward)(const host&, matrix logits, vector target, vector upstream, matrix dlogits,
                                 const cross_entropy_options&);
  void (*fused_linear_cross_entropy)(const host&, const linear_layer&, vector target, vector upstream, vector loss,
                                     const linear_gradients&, const cross_entropy_options&);
};

struct jsd_options {
  double beta = 0.5;
  std::int64_t ignore_index = -100;
};
struct kl_div_options {
  int reduce = 0;  ///< as tigon::divergence_reduction
  bool log_target = false;
  double eps = 0;
};
/// As tigon::policy_options, whose fields have the same meanings.
struct policy_options {
  int type = 0, level = 0, luspo = 0;
  bool reduce = true, bias_corrected_kl = false;
  double temperature, beta, epsilon_low, epsilon_high, delta, max_log_ratio, tau_positive, tau_negative, k_positive,
      lambda_positive, k_negative, lambda_negative, max_length, denominator;
};
/// ids in i64, everything else in the type of the sums.
struct policy_batch {
  matrix ids;
  vector advantages;
  matrix old_logp, ref_logp, sampling_ratio, mask;
};
struct loss_kernels {
  void (*jsd)(const host&, matrix student, matrix teacher, vector labels, vector loss, matrix dstudent,
              const jsd_options&);
  void (*kl_div)(const host&, matrix student, matrix teacher, matrix loss, const kl_div_options&);
  void (*kl_div_backward)(const host&, matrix student, matrix teacher, matrix upstream, matrix dstudent,
                          matrix dteacher, const kl_div_options&);
  void (*grpo_loss)(const host&, matrix logits, const policy_batch&, vector loss, vector saved, vector kl,
                    vector clipped, const policy_options&);
  void (*grpo_loss_backward)(const host&, matrix logits, const policy_batch&, vector saved, vector upstream,
                             matrix dlogits, const policy_options&);
};

enum class preference : int { dpo, orpo, simpo, cpo, kto };
struct preference_options {
  preference kind = preference::dpo;
  int dpo = 0;  ///< as tigon::dpo_loss
  std::int64_t ignore_index = -100;
  bool nll = false, average = false;
  double beta, label_smoothing, discopop_tau, gamma, alpha, desirable_weight, undesirable_weight;
};
/// logps in the type of the sums.
struct reference_model {
  linear_layer layer;
  vector logps;
};
struct preference_call {
  linear_layer layer;
  matrix target, nll_target;
  const unsigned char* desirable = nullptr;
  vector kl;
  reference_model reference;
  vector loss, results;  ///< of pairs: [4 pairs + 3], of kto: [2 sequences]
  linear_gradients to;
};
/// A reference without memory stands for none, an upstream gradient without it for 1.
struct linear_policy_call {
  linear_layer layer;
  policy_batch batch;
  linear_layer reference;
  vector upstream, loss, kl, clipped;
  linear_gradients to;
};
struct preference_kernels {
  void (*fused_linear_preference)(const host&, const preference_call&, const preference_options&);
  void (*fused_linear_grpo)(const host&, const linear_policy_call&, const policy_options&);
};

/// indices in i64, weights in the type of the sums.
struct moe_call {
  matrix x, indices, weights, gate_up, down;
  std::size_t experts;
  bool interleaved;
};
/// Those without memory are not computed.
struct moe_gradients {
  matrix dx, dgate_up, ddown, dweights;
};
struct moe_kernels {
  void (*moe)(const host&, const moe_call&, matrix y, matrix saved);
  void (*moe_backward)(const host&, matrix dy, const moe_call&, matrix saved, const moe_gradients&);
};

/// All of one type; gradients are read.
struct trained {
  vector w, g, m, v;
};
struct adamw_options {
  double learning_rate, beta1, beta2, eps, weight_decay;
  std::uint64_t step, seed;
  bool stochastic_rounding;
};
struct optimizer_kernels {
  void (*adamw)(const host&, const trained* parameters, std::size_t count, const adamw_options&);
};

/// A group that an instruction set was not compiled with is null.
struct kernel_table {
  const norm_kernels* norms;
  const gate_kernels* gates;
  const rotary_kernels* rotary;
  const attention_kernels* products;
  const cross_entropy_kernels* cross_entropies;
  const loss_kernels* losses;
  const preference_kernels* preferences;
  const moe_kernels* experts;
  const optimizer_kernels* optimizers;
};

}  // namespace tigon_torch

#endif  // TIGON_TORCH_KERNELS_HPP

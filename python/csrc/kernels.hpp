// What the library asks of its kernels, once for every instruction set, and for CUDA: functions over pointers, sizes
// and strides. Neither PyTorch's types nor tigon's cross this border, and element types are values.
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

/// [sizes[0], sizes[1], sizes[2]], contiguous.
struct cube {
  void* data = nullptr;
  type of = type::f32;
  std::size_t sizes[3] = {};
};
// The same in another type than the first operand has: that of the sums (f32, f64 beside f64), or i64. A plain vector
// has that of the sums.
struct wide_matrix : matrix {};
struct id_vector : vector {};
/// In the type of the first operand.
struct narrow_vector : vector {};

/// What the library passes for an operand of one of these kinds.
struct operand {
  void* data = nullptr;
  type of = type::f32;
  std::size_t sizes[4] = {}, strides[3] = {};
};

/// What a call runs on: PyTorch's threads, memory, stream and process groups.
struct host {
  std::size_t workers = 1;
  /// work(of, i) once for every i below count, on up to count threads at once.
  void (*parallel)(std::size_t count, void (*work)(void* of, std::size_t i), void* of) = nullptr;
  /// So many bytes, which last as long as the call.
  void* (*scratch)(void* memory, std::size_t bytes) = nullptr;
  void* memory = nullptr;
  /// So many bytes of every rank of a process group, in the order of ranks; returns 0, or 1 where that failed.
  int (*all_gather)(std::int64_t group, const void* mine, std::size_t bytes, void* all) = nullptr;
  /// Of CUDA, whose kernels have nothing to do with the threads.
  void* stream = nullptr;
  /// As all_gather; the bytes are a part for every rank, of which each gets its own.
  int (*all_to_all)(std::int64_t group, const void* mine, std::size_t bytes, void* all) = nullptr;
};

// The numbers of the operators' schemas.
enum class casting : int { llama, gemma, none };

/// Weights and their gradients have the type of the sums, f32, or f64 beside f64; on CUDA also that of x. All of one
/// call have one type.
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

/// As tigon::swiglu_options.
struct swiglu_options {
  double gate_multiplier, down_multiplier, limit, slope, up_offset;
};
/// Backwards, of two gradients one without memory is not made.
struct gate_kernels {
  void (*swiglu)(const host&, matrix gate, matrix up, matrix y, const swiglu_options&);
  void (*swiglu_backward)(const host&, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup,
                          const swiglu_options&);
  void (*geglu)(const host&, matrix gate, matrix up, matrix y, bool tanh);
  void (*geglu_backward)(const host&, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup, bool tanh);
};

struct rope_options {
  bool last, neighbours;  ///< columns of a head that are rotated, and their pairs; otherwise the first ones, halves
};
/// Tables have the type of the sums, on CUDA also that of q; backwards, q and k are gradients of the rotated ones. k
/// may have no heads.
struct rotary_kernels {
  void (*rope)(const host&, heads q, heads k, matrix cos, matrix sin, heads q_out, heads k_out, rope_options,
               bool backward);
  void (*mrope)(const host&, heads q, heads k, matrix cos, matrix sin, heads q_out, heads k_out,
                const std::int64_t* sections, bool backward);
};

struct attention_options {
  double scale = 0, softcap = 0;  ///< 0: 1 / sqrt(head_dim); none
  bool causal = true;
  std::int64_t window_left = -1, window_right = -1;  ///< keys beside its own that a query sees; -1: all
  std::int64_t offset = 0;                           ///< of the first query among the keys
  vector cumulative_lengths, sinks;                  ///< i32, f32
  vector key_begins, key_ends;                       ///< i32, of a batch entry
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

/// Row by row, of 8 bits, of 8 without a sign, or of 32.
struct integers {
  void* data = nullptr;
  std::size_t rows = 0, cols = 0, stride = 0;
};
struct integer_kernels {
  void (*matmul_int8_int2)(const host&, integers a, integers packed, integers c);
  void (*pack_weights)(const host&, integers w, integers packed);
  void (*unpack_weights)(const host&, integers packed, integers w);
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

/// An operator of which the library knows the operands alone; its schema is declared in Python. The kinds are a letter
/// for each operand: m(atrix), w(ide matrix), v(ector), n(arrow vector), i(d vector), h(eads), c(ube).
struct declared_operator {
  const char* name;
  const char* kinds;
  std::size_t numbers;
  void (*run)(const host&, const operand* operands, const double* numbers);  ///< null: not on CUDA
};
struct declared_operators {
  const declared_operator* first = nullptr;
  std::size_t count = 0;
};
/// The source files that have some.
enum class family : int {
  activations,
  norms,
  divergences,
  heads,
  depth,
  cross_entropies,
  linear_losses,
  layers,
  experts,
  ranks,
  count
};

/// A group that an instruction set was not compiled with is null, as is an operator that CUDA does not have.
struct kernel_table {
  declared_operators declared[static_cast<int>(family::count)];
  const norm_kernels* norms;
  const gate_kernels* gates;
  const rotary_kernels* rotary;
  const attention_kernels* products;
  const integer_kernels* integers;  ///< beside bf16, whose instruction sets are the most
  const loss_kernels* losses;
  const preference_kernels* preferences;
  const optimizer_kernels* optimizers;
};

}  // namespace tigon_torch

#endif  // TIGON_TORCH_KERNELS_HPP

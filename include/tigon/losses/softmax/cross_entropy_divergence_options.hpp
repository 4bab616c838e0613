// The contract of cross entropy and a divergence of the same logits.
#ifndef TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_OPTIONS_HPP

#include <tigon/losses/softmax/cross_entropy_options.hpp>

namespace tigon {

namespace op {
struct cross_entropy_tvd {
  static constexpr std::string_view name = "cross_entropy_tvd";
};
struct cross_entropy_jsd {
  static constexpr std::string_view name = "cross_entropy_jsd";
};
}  // namespace op

/// Cross entropy with labels and the distance from a teacher's distribution P, of the same logits z, which are read once.
/// With Q = softmax(z / temperature):
///
///   ce         as cross_entropy: smoothed, with class weights and z-loss
///   divergence c sum_i tvd(Q_i, P_i), or c sum_i jsd(Q_i, P_i)              as tvd and jsd have them
///   loss       = weight_ce ce + weight_divergence divergence
///   dlogits    = upstream dloss / dz
///   tvd(Q, P)  = 1/2 sum_j |Q_j - P_j|,   d tvd / dz_j = Q_j / (2 temperature) (sign(Q_j - P_j) - sum_k Q_k sign(Q_k - P_k))
///   jsd(Q, P)  = beta KL(P || M) + (1 - beta) KL(Q || M),   M = beta P + (1 - beta) Q
///              beta = 0: KL(P || Q),   beta = 1: KL(Q || P)
///   c = 1 / n (mean), 1 (sum, none)                n = number of rows whose target is not ignore_index, or denominator
///
/// Formula    docs/formulas/cross_entropy_divergence.md.
/// Shapes     logits, teacher, dlogits [rows, vocab]; target [rows]; class weight [vocab] or `absent`; losses [1], with
///            reduction::none [rows]. vocab >= 1, rows may be 0.
/// Types      logits, teacher and dlogits one of f32, bf16, f16, f64; losses f32 (f64 for f64); target std::int32_t or
///            std::int64_t. Of the teacher the probabilities (tvd) or their logarithms (jsd), of sum 1 in each row.
/// Precision  f32 (f64 for f64) inside; totals in f64; one rounding at dlogits.
/// Writes     loss, the other losses that have memory, dlogits (unless its data is null). A row whose target is
///            ignore_index is not read; its losses and gradient are 0. A divergence of weight 0 is not computed unless
///            its loss has memory. For another upstream gradient of the loss: cross_entropy_backward of dlogits.
/// Aliasing   dlogits may be logits or teacher, which are then gone. Otherwise any layout in which no written element
///            is shared.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace, and index (in
///            every build) for a target outside [0, vocab) that is not ignore_index; before the first write.
/// Edges      of ce as cross_entropy, of the divergence as tvd and jsd: no kept row: zeros. NaN or +inf in a row of
///            logits, or logits of -inf alone: that row is NaN. -inf is a probability of 0; there, KL(P || Q) is inf
///            where P is not 0. A gradient below the smallest normal f32 (f64) is written as 0.
/// Max error  each loss 1e-6 of |reference| + its root mean square where sums are f32; dlogits f32 2e-6, bf16 4e-3 of the
///            same (tests/losses/cross_entropy_divergence_test.cpp). Where the terms of jsd's gradient cancel, dlogits' is of
///            Q_j (|log Q_j| + |log P_j|) / temperature, with its weights, too (tests/fuzz/losses.cpp).
struct cross_entropy_divergence_options {
  std::int64_t ignore_index = -100;
  tigon::reduction reduction = tigon::reduction::mean;
  double label_smoothing = 0;    ///< of ce, in [0, 1]
  double lse_square_scale = 0;   ///< of ce, weight of the z-loss, at least 0
  double weight_ce = 1;          ///< of ce in the loss
  double weight_divergence = 1;  ///< of the divergence in the loss
  double temperature = 1;        ///< of Q, from 1e-30 to 1e30; ce is of the logits as they come
  double beta = 0.5;             ///< of jsd, in [0, 1]
  double denominator = 0;  ///< what mean divides by instead of its counts, for a batch in several calls; 0: counts
  double upstream = 1;     ///< dlogits is that of the loss times this
};

/// A span without memory is not written; ce and divergence are without their weights.
template <class A>
struct cross_entropy_divergence_losses {
  std::span<A> loss{}, ce{}, divergence{};
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_OPTIONS_HPP

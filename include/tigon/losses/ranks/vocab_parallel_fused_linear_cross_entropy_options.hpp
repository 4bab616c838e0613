// The contract of a fused linear cross entropy whose vocabulary is split over ranks.
#ifndef TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP
#define TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP

#include <tigon/losses/ranks/shard_linear.hpp>

namespace tigon {

namespace op {
struct vocab_parallel_fused_linear_cross_entropy {
  static constexpr std::string_view name = "vocab_parallel_fused_linear_cross_entropy";
};
}  // namespace op

/// fused_linear_cross_entropy where every rank has some of the classes: w, bias and their gradients are those of its
/// shard, the shards of all ranks one behind the other in the order of ranks.
///
///   z_r  = x w_r^T + b_r                          a chunk of rows at a time, on rank r
///   loss and D = d loss / d z over the classes of all ranks, as cross_entropy has them
///   dx   = upstream sum_r D_r w_r,   dw_r = upstream D_r^T x,   db_r[j] = upstream sum_i D_r[i,j]
///
/// Formula    docs/formulas/vocab_parallel_fused_linear_cross_entropy.md. For each chunk one gather of up to five
///            numbers a row and rank, merged in the order of ranks in f64, and one of the shares of dx.
/// Shapes     x, dx [rows, hidden]; w, dw [classes of this rank, hidden]; bias, dbias [classes of this rank], or none;
///            target [rows], in the whole vocabulary; class weight [vocab] or `absent`; loss and metrics as
///            cross_entropy; upstream of backward one number or [rows]. vocab >= 1; a shard may be empty; rows and
///            hidden may be 0. All but w, dw, bias and dbias are equal on all ranks; of x, whose numbers are not
///            compared, that is the caller's part.
/// Types      as fused_linear_cross_entropy, the same on all ranks.
/// Precision  logits, D, the sums of dw and db over all chunks and that of dx over all ranks in f32 (f64 for f64); one
///            rounding at each output.
/// Options    backward: as in forward.
/// Writes     as fused_linear_cross_entropy: loss, metrics and dx the same bits on all ranks. Whether dx is computed is
///            the same on all ranks; dw and dbias each rank may leave out for itself.
/// Ignored    as fused_linear_cross_entropy; nothing is sent for such rows.
/// Aliasing   none: any layout in which no written element is shared.
/// Memory     chunk * (classes of this rank) logits in f32; for 16-bit w an f32 dw; with dx two chunks of it in f32 and
///            up to 1 MiB a rank. See vocab_parallel_fused_linear_cross_entropy_workspace. w may come packed.
/// Threads    the same bits for any number of them, and for ranks that are threads or processes.
/// Throws     tigon::error as cross_entropy, the same on all ranks, whichever of them found it; state where ranks differ
///            in what has to be equal; before the first write.
/// Edges      as fused_linear_cross_entropy. NaN or +inf in a row of logits on any rank: that row is NaN on all.
/// Max error  as fused_linear_cross_entropy: loss 4e-7 of |reference| + its root mean square, in bf16 too, or where that
///            is more, as in a loss near 0, of what the rounding of logits changes it by; gradients f32 2e-6, bf16 8e-3
///            (tests/losses/vocab_parallel_fused_linear_cross_entropy_test.cpp, tests/fuzz/fused.cpp).
struct vocab_parallel_fused_linear_cross_entropy_options {
  cross_entropy_options loss;
  bool token_scaling = false;  ///< loss and gradient of a row times the probability of its target
  double upstream = 1;         ///< gradients of forward are those of the loss times this
};

}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP

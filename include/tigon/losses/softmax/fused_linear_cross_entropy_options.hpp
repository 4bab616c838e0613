// The contract of a fused linear cross entropy.
#ifndef TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP

#include <tigon/losses/linear/few_rows_linear.hpp>
#include <tigon/losses/softmax/cross_entropy_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_cross_entropy {
  static constexpr std::string_view name = "fused_linear_cross_entropy";
};
}  // namespace op

/// Cross entropy of z = x w^T + b, a chunk of rows at a time.
///
///   loss and D = d loss / d z as cross_entropy has them; token_scaling multiplies a row's loss and D by p_t
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j];   row i of D times upstream[i] first, where that is given
///
/// Formula    docs/formulas/fused_linear_cross_entropy.md.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; target [rows]; class weight
///            [vocab] or `absent`; loss and metrics as cross_entropy. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; loss and metrics f32 (f64 for f64);
///            target std::int32_t or std::int64_t.
///            With linear_types x and dx have one, w and bias one, their gradients one (no f64), and each its own
///            error.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output.
///            In a call of at most 8 rows of f32 everything is f64, because the memory of w takes the time of it, and
///            numbers of f64 are those that Edges speaks of. The rows of the call decide, not those that count.
/// Options    backward: as in forward.
/// Writes     loss, metrics, dx, dw, dbias; a gradient whose view has no memory is not computed. dw and dbias are added
///            to with gradient::accumulate.
/// Ignored    a row whose target is ignore_index is neither read, nor its upstream gradient, nor multiplied: the cost is
///            that of the rows that count. Its loss and dx are 0, whatever stands in x and w. The bits of a row's loss and
///            dx do not depend on which other rows count, where they stand and how many there are, unless a mean divides
///            by their number. dw and dbias have the same bits for the same rows in the same order, wherever ignored rows
///            stand between them, in calls of as many rows, both with dx or both without.
/// Aliasing   none: any layout in which no written element is shared.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB, or 128 MiB where 256 rows, on `amx` 1024,
///            take more (B::chunk, context::logit_rows); for 16-bit w also an f32 dw. With chunk_tuning::stream only rows
///            * cols logits, and for 16-bit w an f32 dx and cols rows of an f32 dw, for a fourth product: the logits are
///            made twice. More than 64 chunks (4096 where dw is large and has 16 bits) take two more f32 sums for dw, and
///            more than 64 tiles of columns two for dx, so that errors do not grow with their number. Rows that count
///            among ignored ones are copied to where their dx will be; without dx to the workspace, in chunks so much
///            smaller that they fit beside the logits, but of at least 64 rows. See fused_linear_cross_entropy_workspace. w may come packed (linear_layer); tiles and calls of few rows do not use it.
///            A call of at most 8 rows of f32 has rows * vocab logits in f64 instead, in any tuning, rows * hidden numbers
///            of x and up to 16 times as many for dx.
/// Throws     tigon::error as cross_entropy; before the first write.
/// Edges      as cross_entropy.
/// Max error  loss 4e-7 of |reference| + its root mean square, in bf16 too, or where that is more, of what the loss
///            changes by when every logit changes by the root of the sum of the squares of its terms x_k w_k: in a
///            loss near 0 the rounding of logits shows. Gradients f32 2e-6, bf16 8e-3. For any number of rows, chunks
///            and tiles. Of at most 8 rows of f32 loss and gradients within 2.4e-7 of their L2 norms, for logits of 20
///            and more (tests/losses/fused_linear_cross_entropy_test.cpp, chunk_policies_test.cpp,
///            tests/fuzz/products.cpp).
struct fused_linear_cross_entropy_options {
  cross_entropy_options loss;
  bool token_scaling = false;  ///< loss and gradient of a row times the probability of its target
};

/// What a call makes beside gradients; a span without memory is not written.
template <class A>
struct cross_entropy_results {
  std::span<A> loss{};
  cross_entropy_metrics<A> metrics{};
};

namespace detail {
inline namespace TIGON_ABI {

/// What a fused linear cross entropy reads and writes; views without memory stand for what is absent.
template <layer_types T>
struct linear_loss {
  linear_layer<T> head;
  linear_gradients<T> out;
  vector_view<const accumulator_t<T>> upstream;  ///< one number, or one for each row that counts; empty: 1
  chosen_rows kept{};  ///< which rows these are; labels and results are of them, in their order
};

/// Whether calls of few rows are computed in f64.
template <class B, layer_types T>
inline constexpr bool few_cross_entropy_in_f64 =
    few_rows_in_f64<B, T, op::fused_linear_cross_entropy> && few_rows_in_f64<row_backend<B>, T, op::cross_entropy>;

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP

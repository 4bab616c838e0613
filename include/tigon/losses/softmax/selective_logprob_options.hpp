// selective_logprob's contract, and the check of ids that losses on sequences share.
#ifndef TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_OPTIONS_HPP

#include <tigon/losses/softmax/selective_log_softmax_options.hpp>

namespace tigon {

namespace op {
struct selective_logprob {
  static constexpr std::string_view name = "selective_logprob";
};
}  // namespace op

/// log softmax((x w^T + bias) / temperature) at the target of each row, a chunk of rows at a time. For
/// s = (x w^T + bias) / temperature:
///
///   lse = log sum_j exp(s_j) in two parts,   logp = s_target - lse
///   D_j = u / temperature * ([j = target] - p_j),   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
///
/// Formula    docs/formulas/preference.md; lse and D as selective_log_softmax has them.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; target, logp, saved,
///            upstream u [rows]. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; logp, saved and u f32 (f64 for f64);
///            target std::int32_t or std::int64_t.
///            With linear_types x and dx have one, w and bias one, their gradients one (no f64), and each its own
///            error.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output.
/// Options    backward: as in forward.
/// Writes     logp, saved (saved[i].lse(temperature) is the log-sum-exp); dx, dw, dbias: a gradient whose view has no
///            memory is not computed, dw and dbias are added to with gradient::accumulate. Rows whose target is
///            ignore_index, and in backward rows with u = 0, are not read; their logp and dx are 0.
/// Aliasing   none: any layout in which no written element is shared.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk, context::logit_rows), and chunk rows of
///            x and dx; for 16-bit w also an f32 dw. With chunk_tuning::stream only rows * cols logits, rows of x, for
///            16-bit x an f32 dx and for 16-bit w cols rows of an f32 dw; more than 64 tiles of columns take two more f32 dx. See
///            selective_logprob_workspace. w may come packed (linear_layer); tiles do not use it.
/// Throws     tigon::error: shape, stride, alias, argument (a temperature that is not above 0, or outside
///            option_range), workspace, and in every build index for a target outside [0, vocab) that is not
///            ignore_index; before the first write.
/// Max error  logp 4e-7, in bf16 too, gradients f32 4e-6, bf16 8e-3 of |reference| + its root mean square
///            (tests/losses/selective_logprob_test.cpp), for any number of rows, chunks and tiles.
struct selective_logprob_options {
  double temperature = 1;  ///< above 0
  std::int64_t ignore_index = -100;
};

namespace detail {
inline namespace TIGON_ABI {

/// Column column[i] of row row[i], for i < n; rows in increasing order.
struct selected_columns {
  const std::size_t* row;
  const std::int64_t* column;
  std::size_t n;
};

/// Ids of [0, vocab), or ignore_index.
TIGON_NOINLINE inline void expect_ids(std::string_view op, std::string_view name, const token_ids& ids,
                                      std::size_t vocab, std::int64_t ignore_index) {
  for (std::size_t b = 0; b < ids.rows; ++b)
    for (std::size_t t = 0; t < ids.cols; ++t) {
      const std::int64_t id = ids(b, t);
      if (id != ignore_index && (id < 0 || static_cast<std::uint64_t>(id) >= vocab))
        fail_argument(
            error_code::index, op, std::string(name) + "[" + std::to_string(b * ids.cols + t) + "]", std::to_string(id),
            "at least 0 and below " + std::to_string(vocab) + ", or ignore_index " + std::to_string(ignore_index));
    }
}

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_OPTIONS_HPP

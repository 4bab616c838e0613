// The tag, options, operands and checks of cross_entropy.
//
// Names in losses/:
//   z, s      logits, and what the softmax is of: logits after temperature or softcap
//   top       the largest s of a row, or of the columns that have been computed
//   rest, d   sum_j exp(s_j - top) without the 1 of the largest
//   own       s at the row's target
//   kept      rows that count, because their label is not ignore_index
//   D, u      gradients of the loss: with respect to logits, and to the log-probability of a token
//   chunk     rows of logits that exist at a time, with all their columns
//   tile      rows and columns of logits that exist at a time
//   part      some columns of a row: of one rank, of a tile, or as many as stay in L1 (a piece)
//   share     what a chunk or a tile adds to a gradient
#ifndef TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/rows/row.hpp>

#include <cstdint>

namespace tigon {

/// How the losses of rows become the loss: their mean over the kept rows, their sum, or each for itself.
enum class reduction { mean, sum, none };

namespace op {
struct cross_entropy {
  static constexpr std::string_view name = "cross_entropy";
};
}  // namespace op

/// The contract is in losses/cross_entropy.hpp.
struct cross_entropy_options {
  std::int64_t ignore_index = -100;
  tigon::reduction reduction = tigon::reduction::mean;
  double label_smoothing = 0;   ///< in [0, 1]
  double lse_square_scale = 0;  ///< weight of the z-loss, at least 0
  double softcap = 0;           ///< above 0 in f32 (f64 for f64), or 0 for none
  double denominator = 0;       ///< what mean divides by instead of its counts, for a batch in several calls; 0: counts
};

/// Optional results; a span without memory is not written.
template <class A>
struct cross_entropy_metrics {
  std::span<A> z_loss{};          ///< the part b z lse^2 of the loss
  std::span<A> token_accuracy{};  ///< mean over the kept rows; 0 or 1 a row with reduction::none
  std::span<std::int64_t>
      predicted_tokens{};  ///< smallest index of the largest raw logit, exact; -1 for an ignored or NaN row
  std::span<std::int64_t> kept_rows{};  ///< [1]: rows whose target is not ignore_index; of 0 every mean is 0
};

/// The same for the rows of one call of a kernel, before reduction.
struct cross_entropy_rows {
  double* loss = nullptr;
  double* z_loss = nullptr;
  std::int64_t* predicted = nullptr;  ///< null: not computed
  bool token_scaling = false;         ///< the row's loss and gradient times p_t, taken as a constant
};

/// What the rows of one call share.
struct cross_entropy_scale {
  double main = 1;        ///< a
  double z = 1;           ///< b
  double weight_sum = 0;  ///< sum of the class weights, or vocab
};

namespace detail {
inline namespace TIGON_ABI {
template <class I>
void expect_labels(std::string_view op, std::span<const I> target, std::size_t vocab, std::int64_t ignore_index) {
  for (std::size_t i = 0; i < target.size(); ++i) {
    const auto t = static_cast<std::int64_t>(target[i]);
    if (t != ignore_index && (t < 0 || static_cast<std::uint64_t>(t) >= vocab))
      fail_argument(
          error_code::index, op, "target[" + std::to_string(i) + "]", std::to_string(t),
          "at least 0 and below " + std::to_string(vocab) + ", or ignore_index " + std::to_string(ignore_index));
  }
}

/// What a loss over `rows` rows reads of labels: one of `vocab` classes a row, and a weight a class or none.
template <class I, class Weight>
void declare_labels(arguments& args, std::span<const I> target, Weight weight, std::size_t rows, std::size_t vocab) {
  args.in("target", target, rows);
  args.optional_in("class_weight", weight, vocab);
}

/// Results of `rows` rows, beside gradients.
template <class A>
TIGON_NOINLINE void declare_loss(arguments& args, std::span<A> loss, const cross_entropy_metrics<A>& metrics,
                                 std::size_t rows, reduction how) {
  const std::size_t results = how == reduction::none ? rows : 1;
  args.out("loss", loss, results);
  args.optional_out("z_loss", metrics.z_loss, results);
  args.optional_out("token_accuracy", metrics.token_accuracy, results);
  args.optional_out("predicted_tokens", metrics.predicted_tokens, rows);
  args.optional_out("kept_rows", metrics.kept_rows, 1);
}

/// Its scalar options.
template <class A, class Options>
TIGON_NOINLINE void expect_loss_options(const expects& expect, const Options& opt) {
  expect.number<A>(opt.label_smoothing >= 0 && opt.label_smoothing <= 1, "label_smoothing", opt.label_smoothing,
                   "a number from 0 to 1");
  expect.from_zero<A>("lse_square_scale", opt.lse_square_scale);
  expect.softcap<A>(opt.softcap);
  expect.denominator<A>(opt.denominator);
  const bool divides = opt.reduction == reduction::mean && opt.denominator != 0;
  expect.made<A>("2 lse_square_scale over the denominator", 2 * opt.lse_square_scale / (divides ? opt.denominator : 1));
}

/// The largest element of a row, and the smallest index at which it occurs; -inf and 0 where all are NaN.
template <class A>
struct largest_element {
  A value = -std::numeric_limits<A>::infinity();
  std::size_t column = 0;
};
/// Columns [first, first + n) of a row, as a row.
template <class T>
TIGON_INLINE matrix_view<T> columns_from(matrix_view<T> m, std::size_t first, std::size_t n) {
  return m.cols_from(first, n);
}
template <class T>
TIGON_INLINE vector_view<T> columns_from(vector_view<T> v, std::size_t first, std::size_t n) {
  return {v.data + first, n};
}
/// The row is cut into parts of `most` columns, whose indices are exact numbers of A.
template <class A, std::size_t most = std::size_t{1} << std::numeric_limits<A>::digits, class Row, class X>
TIGON_INLINE largest_element<A> first_largest(const Row& row, X x) {
  largest_element<A> largest;
  for (std::size_t first = 0; first < row.cols; first += most) {
    const std::size_t n = std::min(most, row.cols - first);
    const auto found = row.part(0, n).reduce(
        reads(columns_from(x, first, n), columns),
        std::array<A, 2>{-std::numeric_limits<A>::infinity(), std::numeric_limits<A>::max()},
        [](auto v, auto j) {
          return pack{v, j};
        },
        [](auto a, auto b) {
          const auto better = b.v[0] > a.v[0] || (b.v[0] == a.v[0] && b.v[1] < a.v[1]);
          return decltype(a){{select(better, b.v[0], a.v[0]), select(better, b.v[1], a.v[1])}};
        });
    if (first == 0 ? found[1] < static_cast<A>(most) : found[0] > largest.value)
      largest = {found[0], first + static_cast<std::size_t>(found[1])};
  }
  return largest;
}

/// Per-row results in the workspace, the denominators they need, and their reduction in f64.
template <class A>
struct loss_rows {
  cross_entropy_rows out;
  cross_entropy_scale scale;
  const A* weight = nullptr;
  std::size_t kept = 0;

  /// Bytes that it takes.
  static constexpr std::size_t bytes(std::size_t rows, std::size_t vocab) {
    return 2 * workspace::bytes_for<double>(rows) + workspace::bytes_for<std::int64_t>(rows) +
           workspace::bytes_for<A>(vocab);
  }

  template <class I, class Weight>
  loss_rows(std::string_view, workspace::frame& frame, std::span<const I> target, std::size_t vocab,
            Weight class_weight, const cross_entropy_metrics<A>& metrics, const cross_entropy_options& opt, context&) {
    out.loss = frame.template take<double>(target.size());
    out.z_loss = frame.template take<double>(target.size());
    auto* predicted = frame.template take<std::int64_t>(target.size());
    if (metrics.token_accuracy.data() != nullptr || metrics.predicted_tokens.data() != nullptr)
      out.predicted = predicted;
    A* widened = frame.template take<A>(vocab);
    scale.weight_sum = static_cast<double>(vocab);
    if (class_weight) {
      scale.weight_sum = 0;
      for (std::size_t j = 0; j < vocab; ++j) widened[j] = static_cast<A>(class_weight.data[j]);
      if (opt.label_smoothing > 0)
        for (std::size_t j = 0; j < vocab; ++j) scale.weight_sum += static_cast<double>(widened[j]);
      weight = widened;
    } else if (opt.label_smoothing > 0 ||
               opt.softcap > 0) {  // a weight for every column, which the kernels then expect
      std::fill(widened, widened + vocab, A(1));
      weight = widened;
    }
    double target_weight = 0;
    for (const I t : target)
      if (t != opt.ignore_index) {
        ++kept;
        target_weight += weight != nullptr ? static_cast<double>(weight[t]) : 1.0;
      }
    if (opt.reduction == reduction::mean) {
      const auto inverse = [](double n) { return n == 0 ? 0.0 : 1 / n; };
      scale.main = inverse(opt.denominator != 0 ? opt.denominator : target_weight);
      scale.z = inverse(opt.denominator != 0 ? opt.denominator : static_cast<double>(kept));
    }
  }

  template <class I>
  void finish(std::span<const I> target, std::span<A> loss, const cross_entropy_metrics<A>& metrics,
              const cross_entropy_options& opt) const {
    const auto reduce = [&](std::span<A> to, auto row) {
      if (to.data() == nullptr) return;
      double total = 0;
      for (std::size_t i = 0; i < target.size(); ++i) {
        const double value = row(i);
        total += value;
        if (opt.reduction == reduction::none) to[i] = static_cast<A>(value);
      }
      if (opt.reduction != reduction::none) to[0] = static_cast<A>(total);
    };
    reduce(loss, [&](std::size_t i) { return out.loss[i]; });
    reduce(metrics.z_loss, [&](std::size_t i) { return out.z_loss[i]; });
    if (const std::span<A> accuracy = metrics.token_accuracy; accuracy.data() != nullptr) {
      std::size_t hits = 0;
      for (std::size_t i = 0; i < target.size(); ++i) {
        const bool hit = target[i] != opt.ignore_index && out.predicted[i] == target[i];
        hits += hit;
        if (opt.reduction == reduction::none) accuracy[i] = hit ? A(1) : A(0);
      }
      if (opt.reduction != reduction::none)
        accuracy[0] = static_cast<A>(kept == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(kept));
    }
    if (metrics.predicted_tokens.data() != nullptr)
      std::copy(out.predicted, out.predicted + target.size(), metrics.predicted_tokens.data());
    if (metrics.kept_rows.data() != nullptr) metrics.kept_rows[0] = static_cast<std::int64_t>(kept);
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_OPTIONS_HPP

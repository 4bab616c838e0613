// What losses on sequences share beside their driver: tokens, log-probabilities of sequences, checks.
#ifndef TIGON_LOSSES_SEQUENCE_SEQUENCE_TOKENS_HPP
#define TIGON_LOSSES_SEQUENCE_SEQUENCE_TOKENS_HPP

#include <tigon/core/function_ref.hpp>
#include <tigon/losses/softmax/cross_entropy_options.hpp>
#include <tigon/losses/softmax/selective_logprob_kernel.hpp>

#include <cmath>

namespace tigon {

/// The reference model of a loss: a layer of its own, or the log-probabilities that it gave; by default none. Nothing
/// of it is written.
template <layer_types T>
struct reference_model {
  linear_layer<T> layer{};                    ///< x [rows, reference hidden], w [vocab, reference hidden]
  std::span<const accumulator_t<T>> logps{};  ///< instead of a layer: of every sequence, or of every token
};

namespace detail {
inline namespace TIGON_ABI {

/// The tokens that count, sequence by sequence, in the workspace. A group is what a coefficient needs at once: `ends`
/// sequences of `length` rows, end e of group g at row (e * groups + g) * length of x. Sequence s = g * ends + e is
/// tokens [first[s], first[s + 1]).
template <class A>
struct sequence_tokens {
  std::size_t groups = 0, ends = 1, length = 0;
  std::size_t* first = nullptr;
  std::size_t* row = nullptr;                             ///< of x
  std::int64_t *column = nullptr, *second_column;         ///< second_column is null where tokens have one column each
  double *logp = nullptr, *second_logp, *reference_logp;  ///< of the columns; reference_logp null: no reference layer
  lse_parts<A>* lse = nullptr;
  A *u = nullptr, *second_u;  ///< d loss / d logp: what the coefficients write

  sequence_tokens(workspace::frame& frame, std::size_t g, std::size_t e, std::size_t l, bool second, bool reference)
      : groups(g), ends(e), length(l) {
    const std::size_t rows = g * e * l;
    first = frame.template take<std::size_t>(g * e + 1);
    row = frame.template take<std::size_t>(rows);
    column = frame.template take<std::int64_t>(rows);
    logp = frame.template take<double>(rows);
    lse = frame.template take<lse_parts<A>>(rows);
    u = frame.template take<A>(rows);
    reference_logp = reference ? frame.template take<double>(rows) : nullptr;
    second_column = second ? frame.template take<std::int64_t>(rows) : nullptr;
    second_logp = second ? frame.template take<double>(rows) : nullptr;
    second_u = second ? frame.template take<A>(rows) : nullptr;
  }
  /// Bytes of the arrays, with log-probabilities of a reference.
  static std::size_t bytes(std::size_t g, std::size_t e, std::size_t l, bool second) {
    const std::size_t rows = workspace::product(g, e, l), logps = second ? 3u : 2u;
    return workspace::bytes_for<std::size_t>(workspace::product(g, e) + 1) + workspace::bytes_for<std::size_t>(rows) +
           workspace::bytes_for<lse_parts<A>>(rows) + logps * workspace::bytes_for<double>(rows) +
           (second ? 2 : 1) * (workspace::bytes_for<std::int64_t>(rows) + workspace::bytes_for<A>(rows));
  }

  TIGON_EITHER_SIDE std::size_t sequences() const { return groups * ends; }
  /// Among the caller's sequences.
  TIGON_EITHER_SIDE std::size_t place(std::size_t s) const { return s % ends * groups + s / ends; }
  TIGON_EITHER_SIDE std::size_t first_row(std::size_t s) const { return place(s) * length; }
  /// The first token of group g. A backend whose memory is elsewhere lists all rows.
  template <class B>
  std::size_t first_of_group(std::size_t g) const {
    if constexpr (host_memory<B>)
      return first[g * ends];
    else
      return g * ends * length;
  }

  /// Lists the rows for which column_of(row) or second_of(row), [0, vocab) or negative for none, is a column.
  TIGON_NOINLINE void list(function_ref<std::int64_t(std::size_t)> column_of,
                           function_ref<std::int64_t(std::size_t)> second_of) const {
    std::size_t k = 0;
    for (std::size_t s = 0; s < sequences(); ++s) {
      first[s] = k;
      for (std::size_t i = first_row(s); i < first_row(s) + length; ++i) {
        const std::int64_t one = column_of(i), two = second_column == nullptr ? -1 : second_of(i);
        if (one < 0 && two < 0) continue;
        row[k] = i;
        column[k] = one < 0 ? two : one;
        if (second_column != nullptr) second_column[k] = two < 0 ? one : two;
        ++k;
      }
    }
    first[sequences()] = k;
  }
};

/// log(1 + e^x) and 1 / (1 + e^-x).
TIGON_EITHER_SIDE inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
TIGON_EITHER_SIDE inline double logistic(double x) {
  const double e = std::exp(-std::abs(x));
  return (x < 0 ? e : 1) / (1 + e);
}

/// The log-probability of a sequence, and the same minus the reference's.
struct sequence_logp {
  double logp = 0, ratio = 0;
  double tokens = 1;   ///< what makes a mean over tokens of logp: 1 where it is one
  double divisor = 1;  ///< what has made it one
  bool empty = true;
};

/// Sums over the tokens of a sequence that count.
struct sequence_sums {
  double logp = 0, difference = 0, count = 0;
};

/// Log-probabilities of sequences from those of their tokens: sums in f64, or means.
template <class A>
struct sequence_scores {
  sequence_tokens<A> tokens;
  token_ids target;
  std::int64_t ignore_index;
  bool average;
  std::span<const A> reference;  ///< log-probabilities that were made elsewhere: of every sequence, or of every token

  TIGON_EITHER_SIDE bool counts(std::size_t k) const {
    return target(tokens.row[k] / tokens.length, tokens.row[k] % tokens.length) != ignore_index;
  }
  /// The reference is of every token.
  TIGON_EITHER_SIDE bool of_tokens() const {
    return tokens.reference_logp != nullptr || (!reference.empty() && reference.size() != tokens.sequences());
  }
  /// Token by token: the two sums are large, their difference is not.
  TIGON_EITHER_SIDE void add(std::size_t k, sequence_sums& to) const {
    if (!counts(k)) return;
    ++to.count;
    to.logp += tokens.logp[k];
    if (tokens.reference_logp != nullptr)
      to.difference += tokens.logp[k] - tokens.reference_logp[k];
    else if (of_tokens())
      to.difference += tokens.logp[k] - static_cast<double>(reference[tokens.row[k]]);
  }
  TIGON_EITHER_SIDE sequence_logp score(std::size_t s, const sequence_sums& of) const {
    sequence_logp out;
    out.empty = of.count == 0;
    out.divisor = average && !out.empty ? of.count : 1;
    out.tokens = average || out.empty ? 1 : of.count;
    out.logp = of.logp / out.divisor;
    if (of_tokens())
      out.ratio = of.difference / out.divisor;
    else if (!reference.empty())
      out.ratio = out.logp - static_cast<double>(reference[tokens.place(s)]);
    else
      out.ratio = out.logp;
    return out;
  }
  TIGON_NOINLINE sequence_logp operator()(std::size_t s) const {
    sequence_sums sums;
    for (std::size_t k = tokens.first[s]; k < tokens.first[s + 1]; ++k) add(k, sums);
    return score(s, sums);
  }
  /// u of a token of a sequence: d loss / d logp of the sequence, over what divides its sum.
  TIGON_EITHER_SIDE void put_u(std::size_t k, double u) const { tokens.u[k] = counts(k) ? static_cast<A>(u) : A(0); }
  void spread(std::size_t s, double u) const {
    for (std::size_t k = tokens.first[s]; k < tokens.first[s + 1]; ++k) put_u(k, u);
  }
};

/// The logits' cap, and what is not made with one: `name`, sums of logits, which need the logits themselves then.
template <class A>
void expect_softcap(const arguments& args, double softcap, std::string_view name, std::span<A> sum,
                    std::span<A> other) {
  args.softcap<A>(softcap);
  args.that(softcap == 0 || (sum.data() == nullptr && other.data() == nullptr), error_code::argument, name,
            "requested with a softcap", "no memory for it");
}

/// Declares a layer for sequences of ids, and its reference.
template <class B, layer_types T>
void declare_sequences(arguments& args, std::string_view op, const linear_layer<T>& layer,
                       const reference_model<T>& reference, const token_ids& target) {
  const std::size_t rows = layer.x.rows;
  declare_layer<B>(args, op, layer);
  args.in("target", target.bytes());
  if (rows != target.rows * target.cols)
    fail_argument(
        error_code::shape, op, "x", "of " + std::to_string(rows) + " rows",
        std::to_string(target.rows * target.cols) + " for " + shape_text(target.rows, target.cols) + " targets");
  const linear_layer<T>& other = reference.layer;
  if (other.w.data != nullptr) declare_layer<B>(args, op, other, rows, layer.w.rows, reference_names);
  args.that(other.w.data == nullptr || reference.logps.empty(), error_code::argument, "reference.logps",
            "given beside a layer", "one of the two");
  args.that(other.w.data != nullptr || other.x.data == nullptr, error_code::argument, "reference.x",
            "given without reference.w", "both or none");
  if (!reference.logps.empty())
    args.in("reference.logps", reference.logps, reference.logps.size() == target.rows ? target.rows : rows);
}

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_SEQUENCE_TOKENS_HPP

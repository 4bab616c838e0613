// The kernel of cross entropy of logits. Losses that are made of it include this: unlike the public functions it brings
// no backend, which may be made of those losses.
#ifndef TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_KERNEL_HPP
#define TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_KERNEL_HPP

#include <tigon/losses/softmax/cross_entropy_options.hpp>
#include <tigon/losses/softmax/label_terms.hpp>
#include <tigon/rows/row.hpp>

#include <cstdint>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// Cross entropy of a row in steps: exponentials below its maximum and their sum, its loss, its gradient. Weighted:
/// every column has a weight in the uniform part of label smoothing, which may be 0.
template <bool Capped, bool Weighted, element T>
struct cross_entropy_row {
  using A = accumulator_t<T>;
  static constexpr bool narrow = !std::same_as<T, A>;
  matrix_view<const T> logits;
  in_vector<A> weight;
  matrix_view<T> dlogits;  ///< without memory: not computed
  cross_entropy_rows out;
  cross_entropy_terms<A> terms;
  logits_kind<Capped, A> kind;

  /// exp(s - top) for every column, below the maximum of its piece; sum_j w_j (s_j - top) if Weighted.
  struct exponentials_of_row {
    vector_view<A> e;
    row_pieces<A> pieces;
    A top, sum, weighted;
  };

  TIGON_INLINE bool in_place() const { return dlogits.data == logits.data; }

  /// A row whose label is ignore_index; out of line, as the next, because what is inlined is compiled in every caller.
  template <class Row>
  TIGON_RARE void ignore(Row row) const {
    if (row.first()) put_ignored(out, row.i);
    if (dlogits.data != nullptr) row.map(reads(constant(A(0))), writes(dlogits), [](auto zero) { return zero; });
  }
  /// The predicted token.
  template <class Row>
  TIGON_RARE void predict(Row row) const {
    const auto best = first_largest<A>(row, logits);
    if (row.first()) out.predicted[row.i] = static_cast<std::int64_t>(best.column);
  }

  /// They are stored where the gradient will be, if that is in place and wide enough; their sum is made in the same
  /// loop. `own` is the logit of the label.
  template <class Row>
  TIGON_INLINE exponentials_of_row exponentials(const Row& row, A own) const {
    // A row that does not stay in L2 is cut into pieces that stay in L1.
    constexpr std::size_t piece = 8192, in_l2 = std::size_t{1} << 18;
    const bool in_pieces = !Weighted && !narrow && logits.cols * sizeof(T) > in_l2 && logits.cols > piece;
    exponentials_of_row r{row.scratch(0), row_pieces<A>(row.cols, in_pieces ? piece : row.cols), A(0), A(0), A(0)};
    if constexpr (!narrow && !Capped)
      if (in_place()) r.e = {dlogits.row(row.i), row.cols};
    bool done = false;
    if constexpr (narrow && !Weighted) {
      // The label's logit is the pivot, so that no pass looks for the maximum; on overflow or underflow the maximum is
      // the pivot. Differences of 16-bit numbers are nearly exact, also large ones.
      const A below_own = row.map_sum(reads(logits), writes(r.e), [=](auto v) {
        const auto p = simd::exp_of_distance<false>(v - own);
        return pack{p, p};
      });
      r.pieces.set(0, own, below_own);
      done = below_own >= A(1) && below_own <= A(1ull << 40);
    }
    if constexpr (Weighted) {
      const A m = kind.top_of(row.max(reads(logits), [](auto v) { return v; }));
      const auto from = kind.from(m);
      const auto sums = row.map_sum(reads(cached{logits}, weight), writes(r.e), [=](auto v, auto w) {
        const auto s = from.distance(v);
        const auto p = simd::exp_of_distance<true>(s);
        const decltype(v) zero(A(0));
        return pack{p, p, select(w == zero, zero, w * s)};
      });
      r.pieces.set(0, m, sums[0]);
      r.weighted = sums[1];
    } else if (!done) {
      r.pieces.exponentials(row, logits, r.e);
    }
    r.top = r.pieces.join(r.sum);
    return r;
  }

  /// The terms of the row, and its loss.
  template <class Row>
  TIGON_INLINE auto loss(const Row& row, const exponentials_of_row& r, std::size_t column, A own) const {
    const auto of_row =
        terms.of(kind, r.top, own, r.pieces.without_one(row, r.e, r.sum), weight ? weight.data[column] : A(1));
    if (row.first()) terms.put_loss(out, row.i, of_row, r.weighted);
    return of_row;
  }

  /// dlogits, which may be the logits: then their lines are cached. The label's column is computed again.
  template <class Row, class Terms>
  TIGON_INLINE void gradient(const Row& row, const exponentials_of_row& r, const Terms& of_row, std::size_t column,
                             A own) const {
    if (dlogits.data == nullptr) return;
    const A factor = terms.factor(of_row, of_row.token), subtract = terms.subtract(of_row.token);
    const cached to{dlogits, in_place()};
    if constexpr (Capped) {
      const auto from = kind.from(r.top);
      row.map(reads(cached{r.e}, logits, weight), writes(to),
              [=](auto p, auto v, auto w) { return normal_or_zero((p * factor - w * subtract) * from.both(v).slope); });
    } else if constexpr (Weighted) {
      row.map(reads(cached{r.e}, weight), writes(to),
              [=](auto p, auto w) { return normal_or_zero(p * factor - w * subtract); });
    } else {
      r.pieces.multiply(row, r.e, to, factor);
    }
    if (row.first()) row.put(dlogits, column, terms.at_target(of_row, of_row.token, kind, own));
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::cross_entropy, backends::generic> {
  template <class T>
  using saved = std::span<T>;  // dlogits

  template <backend B, element T, token_id I>
  static void forward(in_matrix<T> logits, std::span<const I> target, const accumulator_t<T>* class_weight,
                      matrix_view<T> dlogits, cross_entropy_rows out, cross_entropy_scale scale,
                      cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const in_vector<A> w{class_weight, logits.cols};
    if (opt.softcap > 0)
      forward_rows<B, true, true>(logits, target.data(), w, dlogits, out, scale, opt, ctx);
    else if (opt.label_smoothing > 0)
      forward_rows<B, false, true>(logits, target.data(), w, dlogits, out, scale, opt, ctx);
    else
      forward_rows<B, false, false>(logits, target.data(), w, dlogits, out, scale, opt, ctx);
  }

  /// dlogits = upstream * saved, with one number for all rows or one a row.
  template <backend B, element T>
  static void backward(in_matrix<T> saved_dlogits, std::span<const accumulator_t<T>> upstream, matrix_view<T> dlogits,
                       context& ctx) {
    const auto* g = upstream.data();
    const std::size_t step = upstream.size() == 1 ? 0 : 1;
    for_rows<B, accumulator_t<T>>(ctx, dlogits.rows, dlogits.cols, [=] TIGON_FN(auto row) {
      detail::multiply_row<accumulator_t<T>>(row, dlogits, saved_dlogits, g[row.i * step]);
    });
  }

  template <backend B, bool Capped, bool Weighted, element T, token_id I, class A>
  static void forward_rows(matrix_view<const T> logits, const I* target, in_vector<A> weight, matrix_view<T> dlogits,
                           cross_entropy_rows out, cross_entropy_scale scale, cross_entropy_options opt, context& ctx) {
    const detail::cross_entropy_row<Capped, Weighted, T> of_row{
        logits, weight, dlogits, out, {opt, scale, out, logits.cols}, detail::logits_kind<Capped, A>::of(opt.softcap)};
    const std::int64_t ignored = opt.ignore_index;
    for_rows<B, A>(ctx, logits.rows, logits.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
      const I t = target[row.i];
      if (static_cast<std::int64_t>(t) == ignored) return of_row.ignore(row);
      const std::size_t column = static_cast<std::size_t>(t);
      const A own = row.at(logits, column);
      if (of_row.out.predicted != nullptr) of_row.predict(row);
      const auto e = of_row.exponentials(row, own);
      const auto r = of_row.loss(row, e, column, own);
      of_row.gradient(row, e, r, column, own);
    });
  }
};

namespace detail {
inline namespace TIGON_ABI {
template <class B, class A, bool OnHost>
struct find_loss_rows : std::type_identity<loss_rows<A>> {};
template <class B, class A>
struct find_loss_rows<B, A, false> : std::type_identity<typename kernel_for<op::cross_entropy, B>::template rows<A>> {};

/// Losses of rows and what they share: loss_rows, or, for memory that the host does not read, what the kernel of
/// cross_entropy has in its place (`rows`), which checks the labels, too.
template <class B, class A>
using loss_rows_of = typename find_loss_rows<B, A, host_memory<B>>::type;

/// expect_labels, where the host reads them.
template <class B, class I>
void expect_labels_of(std::string_view op, std::span<const I> target, std::size_t vocab, std::int64_t ignore_index) {
  if constexpr (host_memory<B>) expect_labels(op, target, vocab, ignore_index);
}
/// The same for losses whose kernels of a device report no labels themselves.
template <class B, class I>
void expect_labels_in(std::string_view op, std::span<const I> target, std::size_t vocab, std::int64_t ignore_index,
                      context& ctx) {
  if constexpr (host_memory<B>)
    expect_labels(op, target, vocab, ignore_index);
  else
    kernel_for<op::cross_entropy, B>::check_labels(op, target, vocab, ignore_index, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that cross_entropy_forward takes.
template <class B = default_backend, class T>
std::size_t cross_entropy_workspace(std::size_t rows, std::size_t vocab, const context& ctx = default_context<B>()) {
  using A = accumulator_t<T>;
  return detail::loss_rows_of<B, A>::bytes(rows, vocab) + simd::scratch_workspace<B, A>(vocab, 1, ctx);
}

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_KERNEL_HPP

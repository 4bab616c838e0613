// The kernel of the log-probability of a given column. Losses that are made of it include this: unlike the public
// functions it brings no backend, which may be made of those losses. No structs: a row that is not wanted is left
// before anything of it is read, blocks are put together by the larger of two maxima, and the element at the given
// column is looked up between two passes.
#ifndef TIGON_LOSSES_SOFTMAX_SELECTIVE_LOG_SOFTMAX_KERNEL_HPP
#define TIGON_LOSSES_SOFTMAX_SELECTIVE_LOG_SOFTMAX_KERNEL_HPP

#include <tigon/losses/softmax/row_softmax.hpp>
#include <tigon/losses/softmax/selective_log_softmax_options.hpp>

namespace tigon {

/// The kernel takes rows one by one: an element of each array a row of logits.
template <>
struct kernel<op::selective_log_softmax, backends::generic> {
  template <class T>
  using saved = std::span<lse_parts<accumulator_t<T>>>;

  static constexpr std::size_t block_cols = 4096;  ///< that forward takes at a time
  template <class A>
  struct two_columns {
    selected_gradient<A> first, second;  ///< second may be empty
  };

  /// A row whose column is negative is not read: its logp and its parts are 0.
  template <backend B, element T>
  static void forward(in_matrix<T> logits, const std::int64_t* column, double temperature, accumulator_t<T>* logp,
                      lse_parts<accumulator_t<T>>* saved_lse, context& ctx) {
    using A = accumulator_t<T>;
    const A inverse = static_cast<A>(1 / temperature);
    const detail::tempered<A> by(temperature);
    for_rows<B, A>(ctx, logits.rows, logits.cols, [=] TIGON_FN(auto row) {
      lse_parts<A> lse{std::numeric_limits<A>::lowest(), A(-1)};  // of nothing: 1 + rest = 0
      A log_p(0);
      if (column[row.i] < 0) {
        lse = {};
      } else {
        // A block of columns is read from memory once, and its exponentials stay in L1.
        auto exponentials = row.template array<A, block_cols>();
        for (std::size_t first = 0; first < row.cols; first += block_cols) {
          const auto block = row.part(0, std::min(block_cols, row.cols - first));
          const auto z = logits.cols_from(first, block.cols);
          const vector_view<A> e = exponentials.first(block.cols);
          const A top = math::max(std::numeric_limits<A>::lowest(), block.max(reads(z), [](auto v) { return v; }));
          const A sum = detail::tempered_exponentials<typename B::engine>(block, e, z, top, by);
          if (!(top > lse.top)) {
            lse.rest += sum * math::exp_nonpositive((top - lse.top) * inverse);
            continue;
          }
          // The row's maximum so far. Where sum - 1 cancels, the rest is summed without the maximum.
          A rest = sum - A(1);
          if (rest < A(1)) rest = detail::sum_without_one(block, e);
          lse.rest = (A(1) + lse.rest) * math::exp_nonpositive((lse.top - top) * inverse) + rest;
          lse.top = top;
        }
        log_p = static_cast<A>(lse.log_p(row.at(logits, static_cast<std::size_t>(column[row.i])), temperature));
      }
      row.save(logp[row.i], log_p), row.save(saved_lse[row.i], lse);
    });
  }

  /// dlogits_j = sum over both selections of u / temperature ([j = column] - p_j). `second` may be empty: it is for
  /// losses that need two columns of the same row.
  template <backend B, element T>
  static void backward(in_matrix<T> logits, const lse_parts<accumulator_t<T>>* saved_lse,
                       selected_gradient<accumulator_t<T>> selected, selected_gradient<accumulator_t<T>> second,
                       double temperature, matrix_view<T> dlogits, context& ctx) {
    backward_of<B, T>(detail::plain_logits<accumulator_t<T>>{}, logits, saved_lse, {selected, second}, temperature,
                      dlogits, ctx);
  }

  /// The same for logits that are capped already: the gradient is that of the logits before their cap.
  template <backend B, element T>
  static void backward_of_capped(double softcap, in_matrix<T> logits, const lse_parts<accumulator_t<T>>* saved_lse,
                                 two_columns<accumulator_t<T>> selected, double temperature, matrix_view<T> dlogits,
                                 context& ctx) {
    backward_of<B, T>(detail::capped_logits<accumulator_t<T>>::of(softcap), logits, saved_lse, selected, temperature,
                      dlogits, ctx);
  }

 private:
  template <backend B, element T, class Kind>
  static void backward_of(Kind kind, in_matrix<T> logits, const lse_parts<accumulator_t<T>>* saved_lse,
                          two_columns<accumulator_t<T>> of, double temperature, matrix_view<T> dlogits, context& ctx) {
    using A = accumulator_t<T>;
    const selected_gradient<A> selected = of.first, second = of.second;
    const A inverse = static_cast<A>(1 / temperature);
    for_rows<B, A>(ctx, logits.rows, logits.cols, [=] TIGON_FN(auto row) {
      A u = selected.u[row.i];
      A v = second.u == nullptr ? A(0) : second.u[row.i];
      if (u == A(0) && v == A(0))
        return row.map(reads(constant(A(0))), writes(dlogits), [](auto zero) { return zero; });
      const std::int64_t j = u == A(0) ? second.column[row.i] : selected.column[row.i];
      const std::int64_t k = v == A(0) ? j : second.column[row.i];
      const A total = u + v;
      if (u == A(0) || j == k) u = v = total;
      const lse_parts<A> lse = saved_lse[row.i];
      const A top = lse.top, factor = -total * inverse / (A(1) + lse.rest);
      // At a selected column u - total p is computed again, in two terms that do not cancel. Read before anything is
      // written.
      const auto at_column = [=](std::int64_t column, A own) {
        const double log_p = lse.log_p(row.at(logits, static_cast<std::size_t>(column)), temperature);
        const A hit = -own * static_cast<A>(math::expm1(log_p));
        const A d = own == total ? hit : hit - (total - own) * static_cast<A>(math::exp(log_p));
        return inverse * d * kind.slope_of_capped(row.at(logits, static_cast<std::size_t>(column)));
      };
      const A at_j = at_column(j, u), at_k = k == j ? at_j : at_column(k, v);
      row.map(reads(logits), writes(dlogits), [=](auto z) {
        const auto d = exp_nonpositive<detail::result_bits<B, T>>((z - top) * inverse) * factor;
        if constexpr (std::same_as<Kind, detail::capped_logits<A>>)
          return normal_or_zero(d * kind.slope_of_capped(z));
        else
          return normal_or_zero(d);
      });
      if (row.first()) {
        row.put(dlogits, static_cast<std::size_t>(j), at_j);
        row.put(dlogits, static_cast<std::size_t>(k), at_k);
      }
    });
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_SELECTIVE_LOG_SOFTMAX_KERNEL_HPP

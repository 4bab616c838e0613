// Log-probabilities of given columns of rows of logits on a GPU, and their gradient.
#ifndef TIGON_BACKENDS_CUDA_SELECTIVE_LOG_SOFTMAX_HPP
#define TIGON_BACKENDS_CUDA_SELECTIVE_LOG_SOFTMAX_HPP

#include <tigon/backends/cuda/backend.hpp>
#include <tigon/backends/cuda/powers.hpp>
#include <tigon/backends/cuda/tokens.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/softmax/selective_log_softmax_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// The column of a row, and its logit; a row without one is not read.
template <class Z>
struct column_of_row {
  std::int64_t column;
  bool counts;
  Z own;
};

/// logp and the two parts of the log-sum-exp.
template <class Z>
struct log_probability_of_rows {
  using element = Z;
  static constexpr row_passes passes = row_passes::reduces;
  using A = accumulator_t<Z>;

  matrix_view<const Z> logits;
  unsigned cols;
  const std::int64_t* column;
  double temperature;
  tempered_powers<exponentials_for<Z>, A> powers;
  A* logp;
  lse_parts<A>* lse;

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride);
  }
  TIGON_DEVICE_INLINE const Z* row_of(std::size_t i) const { return logits.row(i); }
  TIGON_DEVICE_INLINE std::int64_t target_of(std::size_t i) const { return column[i]; }
  TIGON_DEVICE_INLINE column_of_row<Z> label_of(std::int64_t target, std::size_t i) const {
    column_of_row<Z> label;
    label.column = target, label.counts = target >= 0;
    if (label.counts) label.own = logits.row(i)[target];
    return label;
  }
  TIGON_DEVICE_INLINE no_state shared() const { return {}; }

  template <class Part, class Label>
  TIGON_DEVICE_INLINE void row(Part& part, std::size_t i, const Label& label, no_state) const {
    lse_parts<A> parts;
    if (label.counts) parts = lse_of_row<A>(part, powers);
    if (!part.first()) return;
    lse[i] = parts;
    logp[i] = label.counts                   ? static_cast<A>(parts.log_p(static_cast<A>(label.own), temperature))
              : label.column == out_of_range ? std::numeric_limits<A>::quiet_NaN()
                                             : A(0);
  }
};

/// The same with which gradients are made: of up to two columns.
template <class A>
struct gradients_of_row {
  A u, v;
  std::int64_t j, k;
  TIGON_DEVICE_INLINE bool counts() const { return !(u == A(0) && v == A(0)); }
};
template <class Z>
struct selected_of_row {
  accumulator_t<Z> u, v;
  std::int64_t j, k;
  bool counts;
  Z at_j, at_k;
};
/// dlogits, of Z or narrower, may lie where the rows of logits begin, unless they are said to lie apart.
template <bool Capped, class Z, class D, bool Apart>
struct log_probability_gradient_of_rows {
  using element = Z;
  static constexpr row_passes passes = Apart || sizeof(D) == sizeof(Z) ? row_passes::maps : row_passes::several;
  using A = accumulator_t<Z>;
  using V = simd::vec<simd::cuda, A>;

  matrix_view<const Z> logits;
  matrix_view<D> dlogits;
  unsigned cols;
  selected_gradient<A> first, second;  ///< second may be empty
  double temperature;
  tempered_powers<exponentials_for<D>, A> powers;
  const lse_parts<A>* lse;
  tigon::detail::logits_kind<Capped, A> kind;

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride) &&
           gpu::begins_accesses<N>(dlogits.data, dlogits.row_stride);
  }
  TIGON_DEVICE_INLINE const Z* row_of(std::size_t i) const { return logits.row(i); }
  TIGON_DEVICE_INLINE gradients_of_row<A> target_of(std::size_t i) const {
    gradients_of_row<A> of{first.u[i], second.u == nullptr ? A(0) : second.u[i], first.column[i], 0};
    of.k = second.u == nullptr ? of.j : second.column[i];
    if (of.j < 0 || of.k < 0) of.u = of.v = A(0);
    return of;
  }
  TIGON_DEVICE_INLINE selected_of_row<Z> label_of(const gradients_of_row<A>& of, std::size_t i) const {
    selected_of_row<Z> label;
    label.u = of.u, label.v = of.v, label.counts = of.counts();
    label.j = of.u == A(0) ? of.k : of.j, label.k = of.v == A(0) ? label.j : of.k;
    if (label.counts) label.at_j = logits.row(i)[label.j], label.at_k = logits.row(i)[label.k];
    return label;
  }
  TIGON_DEVICE_INLINE no_state shared() const { return {}; }

  template <class Part, class Label>
  TIGON_DEVICE_INLINE void row(Part& part, std::size_t i, const Label& label, no_state) const {
    if (!label.counts) return part.clear(dlogits.row(i));
    A u = label.u, v = label.v;
    const A total = u + v;
    if (u == A(0) || label.j == label.k) u = v = total;
    const lse_parts<A> parts = lse[i];
    const A top = parts.top, factor = -total * powers.inverse / (A(1) + parts.rest);
    part.template arrive<D>();
    part.map(dlogits.row(i), [&](unsigned, const auto& e) {
      return mapped<D>(e, [&](A z, int) {
        A d = powers.of(z - top) * factor;
        if constexpr (Capped) d *= kind.slope_of_capped(V(z)).r;
        return normal_product(d, A(1));
      });
    });
    // u - total p, in two terms that do not cancel.
    const auto put = [&](std::int64_t at, A logit, A own) {
      if (!part.has(static_cast<unsigned>(at))) return;
      const double log_p = parts.log_p(logit, temperature);
      A d = -own * static_cast<A>(math::expm1(log_p));
      if (own != total) d -= (total - own) * static_cast<A>(math::exp(log_p));
      A slope(1);
      if constexpr (Capped) slope = kind.slope_of_capped(V(logit)).r;
      dlogits.row(i)[at] = as_element<D>(powers.inverse * d * slope);
    };
    put(label.j, static_cast<A>(label.at_j), u);
    if (label.k != label.j) put(label.k, static_cast<A>(label.at_k), v);
  }
};

/// logp of token t of sequence b, from those of the rows.
template <class A>
struct numbers_of_tokens {
  tigon::detail::token_rows at;
  const A* of_row;
  matrix_view<A> to;
  TIGON_DEVICE_INLINE void operator()(std::size_t k) const {
    const std::size_t b = k / at.len, t = k % at.len;
    to.row(b)[t] = of_row[b * at.stride + t];
  }
};
/// u of the rows from the gradients of tokens.
template <class A>
struct gradients_of_tokens {
  tigon::detail::token_rows at;
  const std::int64_t* column;
  matrix_view<const A> from;
  A* u;
  TIGON_DEVICE_INLINE void operator()(std::size_t i) const {
    u[i] = column[i] < 0 ? A(0) : from.row(i / at.stride)[i % at.stride];
  }
};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::selective_log_softmax, backends::cuda> {
  template <class T>
  using saved = std::span<lse_parts<accumulator_t<T>>>;

  template <backend B, element T>
  static void forward(in_matrix<T> logits, const std::int64_t* column, double temperature, accumulator_t<T>* logp,
                      lse_parts<accumulator_t<T>>* saved_lse, context& ctx) {
    gpu::each_row_of_logits(ctx,
                            gpu::log_probability_of_rows<T>{
                                logits, gpu::columns(logits.cols), column, temperature, {temperature}, logp, saved_lse},
                            logits.rows);
  }
  template <backend B, element T, element D = T>
  static void backward(in_matrix<T> logits, const lse_parts<accumulator_t<T>>* saved_lse,
                       selected_gradient<accumulator_t<T>> selected, selected_gradient<accumulator_t<T>> second,
                       double temperature, matrix_view<D> dlogits, context& ctx) {
    backward_of<false, T, D>(0, logits, saved_lse, {selected, second}, temperature, dlogits, ctx);
  }
  template <class A>
  struct two_columns {
    selected_gradient<A> first, second;
  };
  /// As backends::generic has it.
  template <backend B, element T, element D>
  static void backward_of_capped(double softcap, in_matrix<T> logits, const lse_parts<accumulator_t<T>>* saved_lse,
                                 two_columns<accumulator_t<T>> selected, double temperature, matrix_view<D> dlogits,
                                 context& ctx) {
    backward_of<true, T, D>(softcap, logits, saved_lse, selected, temperature, dlogits, ctx);
  }
  template <bool Capped, element T, element D, class A = accumulator_t<T>>
  static void backward_of(double softcap, in_matrix<T> logits, const lse_parts<A>* saved_lse, two_columns<A> selected,
                          double temperature, matrix_view<D> dlogits, context& ctx) {
    const auto run = [&]<bool Apart>(std::bool_constant<Apart>) {
      gpu::each_row_of_logits(
          ctx,
          gpu::log_probability_gradient_of_rows<Capped, T, D, Apart>{logits,
                                                                     dlogits,
                                                                     gpu::columns(logits.cols),
                                                                     selected.first,
                                                                     selected.second,
                                                                     temperature,
                                                                     {temperature},
                                                                     saved_lse,
                                                                     detail::logits_kind<Capped, A>::of(softcap)},
          logits.rows);
    };
    if constexpr (sizeof(D) < sizeof(T))
      if (static_cast<const void*>(logits.data) != static_cast<const void*>(dlogits.data)) return run(std::true_type());
    run(std::false_type());
  }

  /// What the public functions have the host do on CPUs.
  static void select(std::string_view op, detail::token_rows at, const token_ids& ids, const token_mask& mask,
                     std::size_t vocab, std::int64_t* column, bool padded, context& ctx) {
    gpu::select_columns(op, at, ids, mask, vocab, column, padded, ctx);
  }
  template <class A>
  static void put_tokens(detail::token_rows at, const A* of_row, matrix_view<A> to, context& ctx) {
    gpu::for_each_of(ctx, at.batch * at.len, gpu::numbers_of_tokens<A>{at, of_row, to});
  }
  template <class A>
  static void take_tokens(detail::token_rows at, const std::int64_t* column, matrix_view<const A> from, A* u,
                          context& ctx) {
    gpu::for_each_of(ctx, at.rows(), gpu::gradients_of_tokens<A>{at, column, from, u});
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_SELECTIVE_LOG_SOFTMAX_HPP

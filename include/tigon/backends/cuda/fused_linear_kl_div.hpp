// The divergence of given probabilities from a linear layer's softmax on a GPU.
#ifndef TIGON_BACKENDS_CUDA_FUSED_LINEAR_KL_DIV_HPP
#define TIGON_BACKENDS_CUDA_FUSED_LINEAR_KL_DIV_HPP

#include <tigon/backends/cuda/divergences.hpp>
#include <tigon/backends/cuda/linear.hpp>
#include <tigon/backends/cuda/wide_rows.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/divergence/fused_linear_kl_div_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// losses/divergence/fused_linear_kl_div_kernel.hpp, a row. D may lie where the rows of logits begin.
template <bool Log, class Number, class T, class D>
struct kl_div_of_wide_rows {
  using A = Number;
  using V = simd::vec<simd::cuda, A>;
  matrix_view<const A> logits;
  matrix_view<D> dlogits;  ///< without memory: not computed
  unsigned cols;
  matrix_view<const T> teacher;
  matrix_view<A> elements;        ///< losses of elements; without memory: their sums
  matrix_view<const A> upstream;  ///< of elements; without memory: 1
  const std::uint8_t* kept;
  double* loss;
  A lowest;
  tempered_powers<exponentials::fast, A> powers;
  tempered_powers<exponentials_for<D>, A> of_gradient;
  scaled_number<A> factor;

  template <int N>
  bool begins_accesses() const {
    const auto begins = [](auto m) { return m.data == nullptr || gpu::begins_accesses<N>(m.data, m.row_stride); };
    return begins(logits) && begins(dlogits) && begins(teacher) && begins(elements) && begins(upstream);
  }

  template <int N>
  TIGON_DEVICE_INLINE void row(const wide_row<N, A>& part, std::size_t i) const {
    if (kept[i] == 0)
      clear(part, i);
    else if (upstream.data == nullptr)
      row(part, i, logits.row(i), teacher.row(i));
    else
      row(part, i, logits.row(i), teacher.row(i), upstream.row(i));
  }

 private:
  /// The logits, in a pass that adds up the mass of g P too.
  template <int N, class... G>
  struct part_with_mass {
    const wide_row<N, A>& part;
    A& mass;
    std::tuple<const A*, const T*, const G*...> rows;

    template <class Monoid, int K>
    TIGON_DEVICE_INLINE void reduce(A (&v)[K]) const {
      part.template reduce<Monoid>(v);
    }
    template <class F>
    TIGON_DEVICE_INLINE void each(F f) const {
      std::apply(
          [&](auto... row) {
            part.each(
                [&](unsigned j, const auto& e, const auto& t, const auto&... g) {
                  f(j, e);
#pragma unroll
                  for (int u = 0; u < N; ++u) mass += weighted(probability(t.template get<A>(u)), u, g...);
                },
                row...);
          },
          rows);
    }
  };

  // Of losses of elements the gradient alone is wanted.
  template <int N, class... G>
  TIGON_DEVICE_INLINE void row(const wide_row<N, A>& part, std::size_t i, const A* z, const T* of_teacher,
                               const G*... weights) const {
    constexpr bool has_loss = sizeof...(G) == 0;
    A mass = 0, sum[1] = {A(0)};
    part_with_mass<N, G...> all{part, mass, {z, of_teacher, weights...}};
    const lse_parts<A> lse = lse_of_row<A>(all, powers, mass);
    const A top = lse.top, tail = math::log1p(lse.rest), of_p = factor.value(), of_q = of_p * mass / (A(1) + lse.rest);
    const tigon::detail::kl_div_program<Log, A> program{lowest, A(0)};
    const auto losses = [&](unsigned j, const auto& e, const auto& t) {
      A l[N];
#pragma unroll
      for (int u = 0; u < N; ++u) {
        l[u] = program.map(V(powers.distance(V(e.template get<A>(u) - top), tail)), V(t.template get<A>(u))).r;
        sum[0] += l[u];
      }
      if (elements.data == nullptr) return;
      gpu::elements<N, A> to;
      to.set_all(l);
      to.store(elements.row(i) + j);
    };
    const auto gradient = [&](unsigned j, const auto& e, const auto& t, const auto&... g) {
      if constexpr (has_loss) losses(j, e, t);
      return mapped<D>(e, [&](A v, int u) {
        const A p = weighted(probability(t.template get<A>(u)), u, g...);
        return normal_product(V::lanes::fnma(p, of_p, of_gradient.of(v - top) * of_q), A(1));
      });
    };
    if (dlogits.data != nullptr)
      part.map(dlogits.row(i), gradient, z, of_teacher, weights...);
    else if constexpr (has_loss)
      part.each(losses, z, of_teacher);
    if constexpr (has_loss) part.template reduce<add>(sum);
    if (part.first()) loss[i] = elements.data == nullptr ? static_cast<double>(sum[0]) : 0;
  }
  static TIGON_DEVICE_INLINE A weighted(A p, int) { return p; }
  template <class G>
  static TIGON_DEVICE_INLINE A weighted(A p, int u, const G& g) {
    return g.template get<A>(u) * p;
  }
  static TIGON_DEVICE_INLINE A probability(A t) { return tigon::detail::teacher_probability<Log>(V(t)).r; }
  // A row that does not count.
  template <int N>
  TIGON_DEVICE_INLINE void clear(const wide_row<N, A>& part, std::size_t i) const {
    if (part.first()) loss[i] = 0;
    if (elements.data != nullptr) part.clear(elements.row(i));
    if (dlogits.data != nullptr) part.clear(dlogits.row(i));
  }
};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::fused_linear_kl_div, backends::cuda> : gpu::loss_by_chunks {
  template <backend B, layer_types T>
  static void forward(const detail::linear_kl_div<T>& t, const gpu::divergence_rows& rows,
                      gpu::scaled_number<accumulator_t<T>> factor, const fused_linear_kl_div_options& opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    using X = input_t<T>;
    const std::size_t vocab = t.head.w.rows, chunk = detail::chunk_rows<B, A>(t.head.x.rows, t.head.x.cols, vocab, ctx);
    factor.by /= opt.temperature;
    gpu::each_chunk_of_logits<B, T>(
        t.head, t.out, chunk, ctx, [&]<class D>(std::size_t begin, auto z, matrix_view<D> d) {
          const auto part = [&](auto m) { return m.data == nullptr ? m : m.rows_from(begin, z.rows); };
          const auto run = [&]<bool Log>() {
            const gpu::kl_div_of_wide_rows<Log, A, X, D> loss{
                z,
                d,
                gpu::columns(vocab),
                part(t.teacher),
                part(t.elements),
                part(t.upstream),
                rows.kept + begin,
                rows.loss + begin,
                std::max(static_cast<A>(opt.eps), std::numeric_limits<A>::min()),
                {opt.temperature},
                {opt.temperature},
                factor};
            gpu::each_wide_row(ctx, loss, z.rows);
          };
          opt.log_target ? run.template operator()<true>() : run.template operator()<false>();
        });
  }
  template <backend B, layer_types T>
  static void backward(const detail::linear_kl_div<T>& t, const gpu::divergence_rows& rows,
                       gpu::scaled_number<accumulator_t<T>> factor, const fused_linear_kl_div_options& opt,
                       context& ctx) {
    forward<B, T>(t, rows, factor, opt, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_FUSED_LINEAR_KL_DIV_HPP

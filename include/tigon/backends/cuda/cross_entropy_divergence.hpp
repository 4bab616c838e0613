// Cross entropy and a divergence of the same rows of logits on a GPU.
#ifndef TIGON_BACKENDS_CUDA_CROSS_ENTROPY_DIVERGENCE_HPP
#define TIGON_BACKENDS_CUDA_CROSS_ENTROPY_DIVERGENCE_HPP

#include <tigon/backends/cuda/jensen_shannon.hpp>
#include <tigon/backends/cuda/labels.hpp>
#include <tigon/backends/cuda/wide_rows.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/softmax/cross_entropy_divergence_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// losses/softmax/divergence_of_row.hpp, a row. dlogits may lie where the logits or the teacher's rows do.
template <class T, class I, class Columns>
struct cross_entropy_divergence_of_wide_rows {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  using terms_type = tigon::detail::cross_entropy_terms<A>;
  static constexpr tigon::detail::plain_logits<A> kind{};

  matrix_view<const T> logits, teacher;
  matrix_view<T> dlogits;  ///< without memory: not computed
  unsigned cols;
  labels_of_rows<I> labels;
  const A* weight;  ///< of classes; null: 1
  const cross_entropy_scale* scale;
  cross_entropy_rows out;
  double* divergence;  ///< of the rows; null: not computed
  terms_type without_scale;
  A of_ce, of_divergence, inverse;  ///< factors of the gradients, without what the rows share; 1 / temperature
  Columns columns;

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride) &&
           gpu::begins_accesses<N>(teacher.data, teacher.row_stride) &&
           (dlogits.data == nullptr || gpu::begins_accesses<N>(dlogits.data, dlogits.row_stride));
  }

  template <int N>
  TIGON_DEVICE_INLINE void row(const wide_row<N, A>& all, std::size_t i) const {
    const T *const z = logits.row(i), *const t = teacher.row(i);
    const auto label = labels.of(labels.target[i], z);
    if (!label.counts) return clear(all, i, label.is_ignored);
    const A own = static_cast<A>(label.own), w_t = weight_of(label.column),
            own_teacher = divergence == nullptr ? A(0) : static_cast<A>(t[label.column]);
    const terms_type terms = scaled();
    const sums_below below = sums_of(all, z);
    const auto r = terms.of(kind, below.top, own, below.rest, w_t);
    if (all.first()) terms.put_loss(out, i, r, below.weighted);
    const A inverse_sum = A(1) / (A(1) + below.rest_tempered), tail = math::log1p(below.rest_tempered), top = below.top;
    const auto of_column = [&](A v, A p) {
      const A s = (v - top) * inverse;
      if constexpr (Columns::of_logarithms)
        return columns(V(s - tail), V(p));
      else
        return columns(V(exponential(s) * inverse_sum), V(p));
    };
    A of_q(0);
    if (divergence != nullptr) {
      A sum[2] = {A(0), A(0)};
      all.each(
          [&](unsigned, const auto& x, const auto& y) {
#pragma unroll
            for (int u = 0; u < N; ++u) {
              const auto of = of_column(x.template get<A>(u), y.template get<A>(u));
              sum[0] += of.v[0].r, sum[1] += of.v[1].r;
            }
          },
          z, t);
      all.template reduce<add>(sum);
      of_q = -sum[0] * inverse_sum;
      if (all.first()) divergence[i] = static_cast<double>(sum[1]);
    }
    if (dlogits.data == nullptr) return;
    const bool bends = divergence != nullptr && of_divergence != A(0);
    const A b = bends ? of_divergence * static_cast<A>(scale->z) * columns.factor * inverse : A(0);
    const A factor = terms.factor(r, of_ce), subtract = terms.subtract(of_ce);
    const auto of_labels = [&](A v, unsigned column) {
      const A p = exponential(v - top) * factor;
      return without_scale.smoothing > A(0) ? p - weight_of(column) * subtract : p;
    };
    const auto of_distance = [&](A v, A p) {
      return b * (of_column(v, p).v[0].r + of_q * exponential((v - top) * inverse));
    };
    if (bends)
      all.map(
          dlogits.row(i),
          [&](unsigned j, const auto& x, const auto& y) {
            return mapped<T>(x, [&](A v, int u) {
              const A d = of_labels(v, j + static_cast<unsigned>(u)) + of_distance(v, y.template get<A>(u));
              return normal_product(d, A(1));
            });
          },
          z, t);
    else
      all.map(
          dlogits.row(i),
          [&](unsigned j, const auto& x) {
            return mapped<T>(
                x, [&](A v, int u) { return normal_product(of_labels(v, j + static_cast<unsigned>(u)), A(1)); });
          },
          z);
    // The target's column is computed again: p_t - 1 cancels where p_t is near 1.
    if (all.has(label.column))
      dlogits.row(i)[label.column] =
          as_element<T>(terms.at_target(r, of_ce, kind, own) + (bends ? of_distance(own, own_teacher) : A(0)));
  }

 private:
  TIGON_DEVICE_INLINE A weight_of(unsigned j) const { return weight == nullptr ? A(1) : weight[j]; }
  TIGON_DEVICE_INLINE terms_type scaled() const {
    terms_type terms = without_scale;
    terms.a = static_cast<A>(scale->main), terms.b = static_cast<A>(scale->z);
    terms.weight_sum = static_cast<A>(scale->weight_sum);
    return terms;
  }

  /// Below the maximum: the sums of exponentials at both temperatures without its own 1, and if labels are smoothed
  /// sum_j w_j (z_j - top).
  struct sums_below {
    A top, rest, rest_tempered, weighted;
  };
  template <int N>
  TIGON_DEVICE_INLINE sums_below sums_of(const wide_row<N, A>& all, const T* z) const {
    const bool smooth = without_scale.smoothing > A(0), tempered = divergence != nullptr && inverse != A(1);
    A top[1] = {-std::numeric_limits<A>::infinity()};
    all.each([&](unsigned, const auto& x) { numbers_of<A>(x, [&](int, A v) { top[0] = larger::join(top[0], v); }); },
             z);
    all.template reduce<larger>(top);
    A plain[2] = {A(0), A(0)}, warm[2] = {A(0), A(0)}, weighted(0);
    all.each(
        [&](unsigned j, const auto& x) {
          numbers_of<A>(x, [&](int u, A v) {
            const A s = v - top[0];
            add_apart(plain, exponential(s));
            if (tempered) add_apart(warm, exponential(s * inverse));
            if (const A w = smooth ? weight_of(j + static_cast<unsigned>(u)) : A(0); w != A(0)) weighted += w * s;
          });
        },
        z);
    A sums[4] = {plain[0], plain[1], warm[0], warm[1]};
    all.template reduce<add>(sums);
    A of_weights[1] = {weighted};
    if (smooth) all.template reduce<add>(of_weights);
    const A rest = sums[0] + (sums[1] - A(1));
    return {top[0], rest, tempered ? sums[2] + (sums[3] - A(1)) : rest, of_weights[0]};
  }

  // A row that does not count, or whose label is out of range.
  template <int N>
  TIGON_DEVICE_INLINE void clear(const wide_row<N, A>& all, std::size_t i, bool is_ignored) const {
    if (all.first()) {
      tigon::detail::put_ignored(out, i);
      if (!is_ignored) out.loss[i] = std::numeric_limits<double>::quiet_NaN();
      if (divergence != nullptr) divergence[i] = is_ignored ? 0 : std::numeric_limits<double>::quiet_NaN();
    }
    if (dlogits.data != nullptr) all.clear(dlogits.row(i));
  }
};

/// Losses of rows to those of a call, in an order that the number of rows decides. One block.
template <class A>
__global__ void __launch_bounds__(1024)
    finish_cross_entropy_divergence(const double* ce, const double* divergence, std::size_t rows,
                                    const cross_entropy_scale* scale, double weight_ce, double weight_divergence,
                                    bool each, cross_entropy_divergence_losses<A> to) {
  const auto part = [](double weight, double value) { return weight == 0 ? 0 : weight * value; };
  const auto put = [&](std::size_t k, double of_ce, double of_divergence) {
    to.loss.data()[k] = static_cast<A>(part(weight_ce, of_ce) + part(weight_divergence, of_divergence));
    if (to.ce.data() != nullptr) to.ce.data()[k] = static_cast<A>(of_ce);
    if (to.divergence.data() != nullptr) to.divergence.data()[k] = static_cast<A>(of_divergence);
  };
  double sum[2] = {0, 0};
  for (std::size_t i = threadIdx.x; i < rows; i += blockDim.x) {
    const double distance = divergence == nullptr ? 0 : scale->z * divergence[i];
    if (each) put(i, ce[i], distance);
    sum[0] += ce[i], sum[1] += distance;
  }
  group<0>::reduce<add>(sum);
  if (threadIdx.x == 0 && !each) put(0, sum[0], sum[1]);
}

/// Both losses and their gradient.
template <class T, class I, class Columns, class Weight>
void cross_entropy_divergence(const tigon::detail::cross_entropy_divergence_arguments<T>& of, std::span<const I> target,
                              Weight weight, const cross_entropy_options& ce, const Columns& columns, context& ctx) {
  using A = accumulator_t<T>;
  const auto& opt = of.opt;
  const std::size_t rows = of.logits.rows, vocab = of.logits.cols;
  const unsigned cols = gpu::columns(vocab);
  workspace::frame frame(ctx.workspace());
  const rows_of_losses<A> of_rows(of.name, frame, target, vocab, weight, {}, ce, ctx);
  double* const memory = frame.template take<double>(rows);
  double* const divergence = opt.weight_divergence != 0 || of.losses.divergence.data() != nullptr ? memory : nullptr;
  const cross_entropy_divergence_of_wide_rows<T, I, Columns> loss{of.logits,
                                                                  of.teacher,
                                                                  of.dlogits,
                                                                  cols,
                                                                  {target.data(), opt.ignore_index, cols},
                                                                  of_rows.weight,
                                                                  of_rows.scale.on_device,
                                                                  of_rows.out,
                                                                  divergence,
                                                                  {ce, {}, of_rows.out, vocab},
                                                                  static_cast<A>(opt.upstream * opt.weight_ce),
                                                                  static_cast<A>(opt.upstream * opt.weight_divergence),
                                                                  static_cast<A>(1 / opt.temperature),
                                                                  columns};
  each_wide_row(ctx, loss, rows);
  launch(ctx, finish_cross_entropy_divergence<A>, dim3(1), dim3(1024), static_cast<const double*>(of_rows.out.loss),
         static_cast<const double*>(divergence), rows, of_rows.scale.on_device, opt.weight_ce, opt.weight_divergence,
         opt.reduction == reduction::none, of.losses);
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::cross_entropy_tvd, backends::cuda> {
  using forward_only = void;

  template <backend B, element T, token_id I, class Weight>
  static void forward(const detail::cross_entropy_divergence_arguments<T>& of, std::span<const I> target, Weight weight,
                      const cross_entropy_options& ce, context& ctx) {
    gpu::cross_entropy_divergence<T, I>(of, target, weight, ce, detail::tvd_columns<accumulator_t<T>>{}, ctx);
  }
};

template <>
struct kernel<op::cross_entropy_jsd, backends::cuda> {
  using forward_only = void;

  template <backend B, element T, token_id I, class Weight>
  static void forward(const detail::cross_entropy_divergence_arguments<T>& of, std::span<const I> target, Weight weight,
                      const cross_entropy_options& ce, context& ctx) {
    using A = accumulator_t<T>;
    simd::with_divergence<A>(of.opt.beta, [&](auto divergence) {
      gpu::with_divergence_on_gpu(divergence, [&](auto on_gpu) {
        gpu::cross_entropy_divergence<T, I>(of, target, weight, ce, detail::jsd_columns<A, decltype(on_gpu)>(on_gpu),
                                            ctx);
      });
    });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_CROSS_ENTROPY_DIVERGENCE_HPP

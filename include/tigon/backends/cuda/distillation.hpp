// Distillation on a GPU: rows of the logits of a student and of a teacher, behind their layers.
#ifndef TIGON_BACKENDS_CUDA_DISTILLATION_HPP
#define TIGON_BACKENDS_CUDA_DISTILLATION_HPP

#include <tigon/backends/cuda/jensen_shannon.hpp>
#include <tigon/backends/cuda/labels.hpp>
#include <tigon/backends/cuda/linear.hpp>
#include <tigon/backends/cuda/tokens.hpp>
#include <tigon/backends/cuda/wide_rows.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/divergence/fused_linear_cosine_distillation_kernel.hpp>
#include <tigon/losses/divergence/fused_linear_jsd_distillation_kernel.hpp>
#include <tigon/losses/divergence/fused_linear_jsd_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// The gradient u + k v of a soft loss, of whose `terms` these are the first two.
template <class D, class Terms>
struct soft_gradient {
  const Terms& terms;
  template <class A>
  TIGON_DEVICE_INLINE A operator()(A x, A y, A k) const {
    using V = simd::vec<simd::cuda, A>;
    const auto of = terms(V(x), V(y));
    return of.v[0].r + k * of.v[1].r;
  }
};
template <class D, class Terms>
  requires(sizeof(D) == 2 && std::is_same_v<decltype(Terms::divergence), even_jensen_shannon>)
struct soft_gradient<D, Terms> {
  const Terms& terms;
  TIGON_DEVICE_INLINE float operator()(float x, float y, float k) const {
    using V = simd::vec<simd::cuda, float>;
    return terms.divergence.rough(terms.log_of(V(x), terms.student), terms.log_of(V(y), terms.teacher),
                                  k - terms.shift);
  }
};

/// losses/divergence/fused_linear_distillation_kernel.hpp, a row. D may lie where the student's rows begin.
template <class Number, class D, class I, class Soft>
struct distillation_of_wide_rows {
  using A = Number;
  using V = simd::vec<simd::cuda, A>;
  matrix_view<const A> student, teacher;
  matrix_view<D> dlogits;
  unsigned cols;    ///< of the soft part
  const I* target;  ///< or null: all rows count
  tigon::detail::distillation_rows<A> rows;
  Soft soft;

  template <int N>
  bool begins_accesses() const {
    return rows.vocab % N == 0 && gpu::begins_accesses<N>(student.data, student.row_stride) &&
           gpu::begins_accesses<N>(teacher.data, teacher.row_stride) &&
           (!rows.gradient || gpu::begins_accesses<N>(dlogits.data, dlogits.row_stride));
  }

  template <int N>
  TIGON_DEVICE_INLINE void row(const wide_row<N, A>& all, std::size_t i) const {
    const std::int64_t label = target == nullptr ? 0 : static_cast<std::int64_t>(target[i]);
    const bool kept = target == nullptr || label != rows.ignored;
    const bool in_range = label >= 0 && static_cast<std::uint64_t>(label) < rows.vocab;
    const bool is_soft = rows.soft != nullptr && (kept || !rows.mask_soft),
               is_hard = rows.hard != nullptr && kept && in_range;
    const auto of_student = all.part(0, rows.vocab);
    if (!is_soft && !is_hard) return clear(all, of_student, i, kept);
    A* const z = const_cast<A*>(student.row(i));
    A* const t = const_cast<A*>(teacher.row(i));
    const vector_view<A> v{z, all.cols}, w{t, all.cols};
    const double share = *rows.share;
    const A of_soft_loss = static_cast<A>(rows.of_soft * share), of_hard_loss = static_cast<A>(rows.of_hard * share);
    const std::size_t column = is_hard ? static_cast<std::size_t>(label) : 0;
    const A own = is_hard ? z[column] : A(0), own_teacher = is_hard && is_soft ? t[column] : A(0);
    A nll(0), factor(0), top(0);
    if (is_hard) {
      const auto of_z =
          tigon::detail::log_sum_of(of_student, vector_view<A>{z, rows.vocab}, tigon::detail::tempered<A>(1));
      nll = of_z.tail - (own - of_z.top), top = of_z.top;
      factor = of_hard_loss * math::exp(-of_z.tail);
    }
    soft_loss_row<A> of_soft{};
    const auto terms = soft(all, v, w);  // without meaning where there is no soft part
    if (is_soft) {
      A sums[2] = {A(0), A(0)};
      all.each(
          [&](unsigned, const auto& x, const auto& y) {
#pragma unroll
            for (int u = 0; u < N; ++u) {
              const auto of = terms(V(x.template get<A>(u)), V(y.template get<A>(u)));
              sums[0] += of.v[2].r, sums[1] += of.v[3].r;
            }
          },
          z, t);
      all.template reduce<add>(sums);
      of_soft = terms.finish(sums[0], sums[1]);
    }
    if (all.first()) put_losses(i, of_soft.loss, kept && !in_range ? std::numeric_limits<A>::quiet_NaN() : nll);
    if (!rows.gradient) return;
    const bool bends = is_soft && of_soft_loss != A(0), pulls = is_hard && of_hard_loss != A(0);
    const A b = of_soft_loss * of_soft.factor, k = of_soft.k;
    const soft_gradient<D, std::remove_cvref_t<decltype(terms)>> gradient{terms};
    const auto soft_part = [&](A x, A y) { return b * gradient(x, y, k); };
    const auto hard_part = [&](A x) { return exponential(x - top) * factor; };
    const auto map_both = [&](auto value) {
      of_student.map(
          dlogits.row(i),
          [&](unsigned, const auto& x, const auto& y) {
            return mapped<D>(x, [&](A n, int u) { return normal_product(value(n, y.template get<A>(u)), A(1)); });
          },
          z, t);
    };
    if (!bends)
      of_student.map(
          dlogits.row(i),
          [&](unsigned, const auto& x) {
            return mapped<D>(x, [&](A n, int) { return pulls ? normal_product(hard_part(n), A(1)) : A(0); });
          },
          z);
    else if (!pulls)
      map_both(soft_part);
    else
      map_both([&](A x, A y) { return hard_part(x) + soft_part(x, y); });
    // The target's column is computed again: p_t - 1 cancels where p_t is near 1.
    if (!pulls || !all.has(static_cast<unsigned>(column))) return;
    const A at_target = bends ? soft_part(own, own_teacher) : A(0);
    dlogits.row(i)[column] = as_element<D>(at_target + of_hard_loss * math::expm1(-nll));
  }

 private:
  TIGON_DEVICE_INLINE void put_losses(std::size_t i, A of_soft, A of_hard) const {
    if (rows.soft != nullptr) rows.soft[i] = static_cast<double>(of_soft);
    if (rows.hard != nullptr) rows.hard[i] = static_cast<double>(of_hard);
  }
  // A row that is ignored, or whose label is out of range, which is reported.
  template <int N>
  TIGON_DEVICE_INLINE void clear(const wide_row<N, A>& all, const wide_row<N, A>& of_student, std::size_t i,
                                 bool kept) const {
    if (all.first()) put_losses(i, A(0), kept ? std::numeric_limits<A>::quiet_NaN() : A(0));
    if (rows.gradient) of_student.clear(dlogits.row(i));
  }
};

/// Pads the student's logits behind its vocabulary.
template <class A>
struct padded_columns {
  matrix_view<A> z;
  std::size_t vocab;
  A pad;
  TIGON_DEVICE_INLINE void operator()(std::size_t k) const {
    const std::size_t n = z.cols - vocab;
    z.row(k / n)[vocab + k % n] = pad;
  }
};

/// Checks labels, and finds the share of one row in the means. One block.
template <class I>
__global__ void __launch_bounds__(1024)
    begin_distillation(labels_of_rows<I> labels, std::size_t rows, double denominator, const char* op,
                       index_report* report, double* share) {
  double kept[1] = {0};
  for (std::size_t i = threadIdx.x; i < rows; i += blockDim.x)
    kept[0] += labels.target == nullptr || static_cast<std::int64_t>(labels.target[i]) != labels.ignored;
  group<0>::reduce<add>(kept);
  if (report != nullptr) report_labels(labels, rows, op, report);
  if (threadIdx.x != 0) return;
  const double n = denominator != 0 && kept[0] != 0 ? denominator : kept[0];
  *share = n == 0 ? 0 : 1 / n;
}
/// The losses from those of rows. One block.
template <class A>
__global__ void __launch_bounds__(threads_of_sum)
    finish_distillation(tigon::detail::distillation_rows<A> of, std::size_t rows, double weight_soft,
                        double weight_hard, distillation_losses<A> to) {
  double sum[2] = {0, 0};
  for (std::size_t i = threadIdx.x; i < rows; i += blockDim.x) {
    if (of.soft != nullptr) sum[0] += of.soft[i];
    if (of.hard != nullptr) sum[1] += of.hard[i];
  }
  group<0>::reduce<add>(sum);
  if (threadIdx.x != 0) return;
  const double share = *of.share;
  const auto total = [&](double s) { return share == 0 ? 0 : s * share; };
  tigon::detail::put_losses(to, weight_soft, total(sum[0]), weight_hard, total(sum[1]));
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::fused_linear_distillation, backends::cuda> {
  template <class>
  using saved = no_state;

  /// Chunks are those of one layer: each of the two has logits of up to the bytes of B::chunk.
  template <backend B, layer_types T>
  static std::size_t workspace_bytes(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                     std::size_t teacher_hidden, std::size_t wide, const context& ctx, parameters of,
                                     bool capped) {
    using A = accumulator_t<T>;
    const std::size_t chunk = detail::chunk_rows<B, A>(rows, hidden, wide, ctx);
    return 2 * workspace::bytes_for<double>(rows) + workspace::bytes_for<double>(1) +
           (capped ? workspace::bytes_for<A>(chunk, vocab) : 0) + 2 * workspace::bytes_for<A>(chunk, wide) +
           gpu::linear_chunks<B, T>::bytes(hidden, vocab, gpu::chunks_of(rows, chunk), of) +
           gpu::linear_chunks<B, T>::bytes(teacher_hidden, wide, {chunk, 0, 0}, parameters::frozen);
  }

  template <backend B, layer_types T, token_id I, class Soft>
  static void forward(detail::distillation_call<T> t, const I* target, Soft soft,
                      detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    using A = accumulator_t<T>;
    using layer_type = gpu::linear_chunks<B, T>;
    using D = typename layer_type::D;
    const std::size_t all = t.student.x.rows, vocab = t.student.w.rows, wide = t.teacher.vocab(),
                      chunk = detail::chunk_rows<B, A>(all, t.student.x.cols, wide, ctx);
    const bool capped = t.softcap != 0;
    workspace::frame frame(ctx.workspace());
    A* const slopes = capped ? frame.template take<A>(chunk * vocab) : nullptr;
    A* const logits = frame.template take<A>(chunk * wide);
    A* const teacher_logits = frame.template take<A>(chunk * wide);
    layer_type student(frame, t.student, t.out, gpu::chunks_of(all, chunk), ctx);
    layer_type teacher(frame, t.teacher.layer, {}, {chunk, 0, 0}, ctx);
    detail::for_chunks(all, chunk, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, vocab, wide), of_teacher(teacher_logits, n, wide), slope(slopes, n, vocab);
      student.logits(begin, z);
      if (rows.soft != nullptr && t.teacher.is_layer) teacher.logits(begin, of_teacher);
      if (rows.soft != nullptr && !t.teacher.is_layer)
        detail::round_sums<B, A>(of_teacher, t.teacher.logits.rows_from(begin, n), false, ctx);
      detail::cap_logits<B, A>(z, t.softcap, ctx, slope);
      if (rows.soft != nullptr) detail::cap_logits<B, A>(of_teacher, t.teacher_softcap, ctx);
      const matrix_view<A> padded(logits, n, rows.width, wide);
      if (vocab < rows.width)
        gpu::for_each_of(ctx, n * (rows.width - vocab), gpu::padded_columns<A>{padded, vocab, rows.pad});
      const matrix_view<D> d = student.gradient_of(z);
      gpu::each_wide_row(ctx,
                         gpu::distillation_of_wide_rows<A, D, I, Soft>{padded, of_teacher, d, gpu::columns(rows.width),
                                                                       target == nullptr ? nullptr : target + begin,
                                                                       rows.from(begin), soft},
                         n);
      if (!t.out.any()) return;
      if (capped) detail::gradient_of_capped<B>(d, slope, ctx);
      student.backward(begin, d);
    });
    student.finish();
  }
  template <backend B, layer_types T, token_id I, class Soft>
  static void backward(detail::distillation_call<T> t, const I* target, Soft soft,
                       detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    forward<B, T, I>(t, target, soft, rows, ctx);
  }

  template <token_id I>
  static void begin(std::string_view name, std::span<const I> target, std::size_t rows, std::size_t vocab,
                    const fused_linear_distillation_options& opt, bool indices, double* share, context& ctx) {
    gpu::launch(ctx, gpu::begin_distillation<I>, dim3(1), dim3(1024),
                gpu::labels_of_rows<I>{target.data(), opt.ignore_index, gpu::columns(vocab)}, rows, opt.denominator,
                name.data(), indices ? gpu::report_of(gpu::stream_of(ctx)) : nullptr, share);
  }
  template <class A>
  static void finish(const detail::distillation_rows<A>& of, std::size_t rows,
                     const fused_linear_distillation_options& opt, const distillation_losses<A>& losses, context& ctx) {
    gpu::launch(ctx, gpu::finish_distillation<A>, dim3(1), dim3(gpu::threads_of_sum), of, rows, opt.weight_soft,
                opt.weight_hard, losses);
  }
};

// Made of the kernel above.
template <>
struct kernel<op::fused_linear_jsd_distillation, backends::cuda>
    : kernel<op::fused_linear_jsd_distillation, backends::generic> {
  template <backend B, layer_types T, token_id I>
  static void forward(detail::distillation_call<T> t, const I* target, fused_linear_jsd_distillation_options opt,
                      detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    using A = accumulator_t<T>;
    simd::with_divergence<A>(opt.beta, [&](auto divergence) {
      gpu::with_divergence_on_gpu(divergence, [&](auto on_gpu) {
        kernel_for<op::fused_linear_distillation, B>::template forward<B, T, I>(
            t, target, jsd_soft<A, decltype(on_gpu)>(on_gpu, opt.distillation.temperature), rows, ctx);
      });
    });
  }
  template <backend B, layer_types T, token_id I>
  static void backward(detail::distillation_call<T> t, const I* target, fused_linear_jsd_distillation_options opt,
                       detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    forward<B, T, I>(t, target, opt, rows, ctx);
  }
};
template <>
struct kernel<op::fused_linear_jsd, backends::cuda> : kernel<op::fused_linear_jsd, backends::generic> {};
template <>
struct kernel<op::fused_linear_cosine_distillation, backends::cuda>
    : kernel<op::fused_linear_cosine_distillation, backends::generic> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_DISTILLATION_HPP

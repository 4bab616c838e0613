// Losses on a GPU that compare two distributions row by row: rows are counted, and their losses added, on the device.
#ifndef TIGON_BACKENDS_CUDA_DIVERGENCES_HPP
#define TIGON_BACKENDS_CUDA_DIVERGENCES_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/jensen_shannon.hpp>
#include <tigon/backends/cuda/numbers.hpp>
#include <tigon/losses/divergence/jsd_kernel.hpp>
#include <tigon/losses/divergence/kl_div_kernel.hpp>
#include <tigon/losses/divergence/tvd_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// by times a number in memory, and times another, of each of which there may be none.
template <class A>
struct scaled_number {
  const A* p = nullptr;
  double by = 1;
  const double* times = nullptr;
  TIGON_INLINE A value() const {
    const double number = p == nullptr ? by : by * static_cast<double>(*p);
    return static_cast<A>(times == nullptr ? number : *times * number);
  }
};

/// What count_kept_rows writes: the losses of rows as zeros, flags of those that count, and what the sum is multiplied
/// with.
struct rows_that_count {
  double* loss;
  std::uint8_t* kept;
  double* scale;
};
/// One block.
template <class I>
__global__ void __launch_bounds__(threads_of_sum)
    count_kept_rows(const I* labels, std::size_t rows, std::int64_t ignore_index, rows_that_count to,
                    divergence_reduction reduction, double denominator, std::size_t vocab) {
  double counted[1] = {0};
  for (std::size_t i = threadIdx.x; i < rows; i += threads_of_sum) {
    const bool keeps = labels == nullptr || labels[i] != ignore_index;
    to.loss[i] = 0, to.kept[i] = keeps, counted[0] += keeps;
  }
  group<0>::reduce<add>(counted);
  if (threadIdx.x == 0)
    *to.scale = tigon::detail::divergence_scale(reduction, denominator != 0 ? denominator : counted[0], vocab);
}

/// The sum of the rows' losses, as a loss.
template <class A>
struct total_of_rows {
  A* to;
  const double* scale;
  TIGON_DEVICE_INLINE void operator()(std::size_t, double sum) const { *to = static_cast<A>(sum * *scale); }
};

/// Rows whose scale is on the device: `scale` is 1, and what a program is multiplied with has to read `scale_at`.
struct divergence_rows : tigon::detail::divergence_rows {
  double* scale_at;

  template <class I>
  divergence_rows(context& ctx, workspace::frame& frame, std::size_t count, std::size_t vocab,
                  divergence_reduction reduction, double denominator, std::span<const I> labels,
                  std::int64_t ignore_index)
      : tigon::detail::divergence_rows(frame.take<double>(count), frame.take<std::uint8_t>(count), count, 1),
        scale_at(frame.take<double>(1)) {
    launch(ctx, count_kept_rows<I>, 1, threads_of_sum, labels.data(), rows, ignore_index,
           rows_that_count{loss, kept, scale_at}, reduction, denominator, vocab);
  }
  template <class A>
  void put_total(A* to, context& ctx) const {
    launch(ctx, add_up<number_of_vector, total_of_rows<A>>, 1, threads_of_sum, number_of_vector{loss}, rows,
           total_of_rows<A>{to, scale_at});
  }
  template <class A>
  scaled_number<A> times(double by) const {
    return {nullptr, by, scale_at};
  }
  template <class A>
  scaled_number<A> times(scaled_number<A> number, bool is) const {
    if (is) number.times = scale_at;
    return number;
  }
};

// Programs with such a factor.

template <class P, class A>
struct with_scale {
  scaled_number<A> scale;
  TIGON_INLINE auto program() const { return P{scale.value()}; }
};
template <class Divergence, class A>
struct jensen_shannon_at {
  Divergence divergence;
  scaled_number<A> scale;
  TIGON_INLINE auto program() const {
    return tigon::detail::jensen_shannon_program<Divergence, A>{divergence, -divergence.weight * scale.value()};
  }
};
template <bool Log, class A>
struct kl_div_at {
  A lowest;
  scaled_number<A> minus_scale;
  TIGON_INLINE auto program() const { return tigon::detail::kl_div_program<Log, A>{lowest, minus_scale.value()}; }
};
template <bool Log, class A>
struct kl_div_teacher_gradient_at {
  A eps;
  scaled_number<A> factor;
  TIGON_INLINE auto program() const { return tigon::detail::kl_div_teacher_gradient<Log, A>{eps, factor.value()}; }
};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::jsd, backends::cuda> : kernel<op::jsd, backends::generic> {
  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<T> dstudent,
                      const gpu::divergence_rows& out, double beta, context& ctx) {
    using A = accumulator_t<T>;
    const auto run = [&](auto program) {
      forward_rows<B>(student, teacher, dstudent, out, gpu::made_late{program}, ctx);
    };
    if (beta == 0)
      run(gpu::with_scale<detail::forward_kl_program<A>, A>{out.times<A>(1)});
    else if (beta == 1)
      run(gpu::with_scale<detail::reverse_kl_program<A>, A>{out.times<A>(1)});
    else
      simd::with_jensen_shannon<A>(beta, [&](auto divergence) {
        gpu::with_divergence_on_gpu(divergence, [&](auto on_gpu) {
          run(gpu::jensen_shannon_at<decltype(on_gpu), A>{on_gpu, out.times<A>(1)});
        });
      });
  }

  template <backend B, element T>
  static void backward(in_matrix<T> saved_dstudent, gpu::scaled_number<accumulator_t<T>> upstream,
                       matrix_view<T> dstudent, context& ctx) {
    using A = accumulator_t<T>;
    map_rows<B>(ctx, gpu::made_late<gpu::with_scale<detail::scaled_program<A>, A>>{{upstream}}, reads(saved_dstudent),
                writes(dstudent));
  }
};

template <>
struct kernel<op::kl_div, backends::cuda> : kernel<op::kl_div, backends::generic> {
  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<accumulator_t<T>> loss,
                      matrix_view<T> dstudent, const gpu::divergence_rows& out, kl_div_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const A lowest = std::max(static_cast<A>(opt.eps), std::numeric_limits<A>::min());
    const bool elements = opt.reduction == divergence_reduction::none, write = dstudent.data != nullptr;
    with_target(opt, [&](auto log) {
      const gpu::made_late<gpu::kl_div_at<log.value, A>> program{{lowest, out.times<A>(-1)}};
      if (elements)
        map_rows<B>(ctx, program, reads(student, teacher), writes(loss));
      else if (write)
        reduce_map<B>(ctx, program, reads(student, teacher), reduce_writes(dstudent), saves(out.loss));
      else
        reduce_map<B>(ctx, program, reads(student, teacher), saves(out.loss));
    });
    if (elements && write) backward<B, T>(teacher, {}, {}, dstudent, opt, ctx);
  }

  template <backend B, element T>
  static void backward(in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream,
                       gpu::scaled_number<accumulator_t<T>> factor, matrix_view<T> dstudent, kl_div_options opt,
                       context& ctx) {
    factor.by = -factor.by;
    with_target(opt, [&](auto log) {
      using A = accumulator_t<T>;
      const gpu::made_late<gpu::with_scale<detail::kl_div_gradient<log.value, A>, A>> program{{factor}};
      if (upstream.data != nullptr)
        map_rows<B>(ctx, program, reads(teacher, upstream), writes(dstudent));
      else
        map_rows<B>(ctx, program, reads(teacher), writes(dstudent));
    });
  }

  template <backend B, element T>
  static void teacher_backward(in_matrix<T> student, in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream,
                               gpu::scaled_number<accumulator_t<T>> factor, matrix_view<T> dteacher, kl_div_options opt,
                               context& ctx) {
    using A = accumulator_t<T>;
    with_target(opt, [&](auto log) {
      const gpu::made_late<gpu::kl_div_teacher_gradient_at<log.value, A>> program{{static_cast<A>(opt.eps), factor}};
      if (upstream.data != nullptr)
        map_rows<B>(ctx, program, reads(student, teacher, upstream), writes(dteacher));
      else
        map_rows<B>(ctx, program, reads(student, teacher), writes(dteacher));
    });
  }
};

template <>
struct kernel<op::tvd, backends::cuda> : kernel<op::tvd, backends::generic> {
  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<accumulator_t<T>> loss,
                      matrix_view<T> dstudent, const gpu::divergence_rows& out, tvd_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const gpu::made_late<gpu::with_scale<detail::tvd_program<A>, A>> program{{out.times<A>(0.5)}};
    const bool elements = opt.reduction == divergence_reduction::none, write = dstudent.data != nullptr;
    const kept_rows kept(out.kept);
    if (elements)
      map_rows<B>(ctx, program, reads(student, teacher), writes(loss), kept);
    else if (write)
      reduce_map<B>(ctx, program, reads(student, teacher), reduce_writes(dstudent), saves(out.loss), kept);
    else
      reduce_map<B>(ctx, program, reads(student, teacher), saves(out.loss), kept);
    if (elements && write) run_backward<B, T>(student, teacher, {}, {}, dstudent, out, ctx);
  }

  /// Without upstream gradients of elements the loss is scaled, as forward did it.
  template <backend B, element T>
  static void backward(in_matrix<T> student, in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream,
                       gpu::scaled_number<accumulator_t<T>> factor, matrix_view<T> dstudent,
                       const gpu::divergence_rows& out, context& ctx) {
    run_backward<B, T>(student, teacher, upstream, out.times(factor, upstream.data == nullptr), dstudent, out, ctx);
  }
  template <backend B, element T>
  static void run_backward(in_matrix<T> student, in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream,
                           gpu::scaled_number<accumulator_t<T>> factor, matrix_view<T> dstudent,
                           const gpu::divergence_rows& out, context& ctx) {
    using A = accumulator_t<T>;
    factor.by /= 2;
    const gpu::made_late<gpu::with_scale<detail::tvd_gradient<A>, A>> program{{factor}};
    const kept_rows kept(out.kept);
    if (upstream.data != nullptr)
      map_rows<B>(ctx, program, reads(student, teacher, upstream), writes(dstudent), kept);
    else
      map_rows<B>(ctx, program, reads(student, teacher), writes(dstudent), kept);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_DIVERGENCES_HPP

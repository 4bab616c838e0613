// Pointwise Kullback-Leibler divergence of probabilities or their logarithms from log-probabilities.
#ifndef TIGON_LOSSES_KL_DIV_HPP
#define TIGON_LOSSES_KL_DIV_HPP

#include <tigon/losses/parts/kl_div_contract.hpp>
#include <tigon/simd/math/divergence.hpp>

namespace tigon {

template <>
struct kernel<op::kl_div, backends::generic> {
  template <class>
  using saved = no_state;  // the teacher alone

  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<accumulator_t<T>> loss,
                      matrix_view<T> dstudent, const detail::divergence_rows& out, kl_div_options opt, context& ctx) {
    if (opt.log_target)
      forward_rows<B, true>(student, teacher, loss, dstudent, out, opt, ctx);
    else
      forward_rows<B, false>(student, teacher, loss, dstudent, out, opt, ctx);
  }

  /// upstream: a matrix, or without memory, and `factor` for all.
  template <backend B, element T>
  static void backward(in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream, accumulator_t<T> factor,
                       matrix_view<T> dstudent, kl_div_options opt, context& ctx) {
    if (opt.log_target)
      backward_rows<B, true>(teacher, upstream, -factor, dstudent, ctx);
    else
      backward_rows<B, false>(teacher, upstream, -factor, dstudent, ctx);
  }

  /// As backward, for dteacher.
  template <backend B, element T>
  static void teacher_backward(in_matrix<T> student, in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream,
                               accumulator_t<T> factor, matrix_view<T> dteacher, kl_div_options opt, context& ctx) {
    using A = accumulator_t<T>;
    if (opt.log_target)
      of_teacher<B>(
          student, teacher, upstream, factor, dteacher,
          [](auto y, auto t) {
            const auto p = probability<true>(t);
            return simd::plain_kl(p, t, y) + p;
          },
          ctx);
    else
      of_teacher<B>(
          student, teacher, upstream, factor, dteacher,
          [eps = static_cast<A>(opt.eps)](auto y, auto t) { return by_probability(t, y, eps); }, ctx);
  }

  /// dteacher = factor * upstream * f(student, teacher).
  template <backend B, element T, class A, class F>
  static void of_teacher(matrix_view<const T> student, matrix_view<const T> teacher, matrix_view<const A> upstream,
                         A factor, matrix_view<T> dteacher, F f, context& ctx) {
    const bool each = upstream.data != nullptr;
    for_rows<B, A>(ctx, dteacher.rows, dteacher.cols, [=] TIGON_FN(auto row) {
      if (each)
        row.map(reads(student, teacher, upstream), writes(dteacher),
                [=](auto y, auto t, auto g) { return f(y, t) * (g * factor); });
      else
        row.map(reads(student, teacher), writes(dteacher), [=](auto y, auto t) { return f(y, t) * factor; });
    });
  }

  template <backend B, bool Log, element T, class A>
  static void forward_rows(matrix_view<const T> student, matrix_view<const T> teacher, matrix_view<A> loss,
                           matrix_view<T> dstudent, const detail::divergence_rows& out, kl_div_options opt,
                           context& ctx) {
    const A lowest = std::max(static_cast<A>(opt.eps), std::numeric_limits<A>::min());
    const A factor = static_cast<A>(-out.scale);
    const bool elements = opt.reduction == divergence_reduction::none, write = dstudent.data != nullptr;
    double* sums = out.loss;
    const auto term = [=](auto y, auto t) {
      const decltype(y) p = probability<Log>(t);
      if constexpr (Log)
        return pack{p * factor, simd::plain_kl(p, t, y)};
      else
        return pack{p * factor, of_probability(t, max(decltype(y)(lowest), t), y)};
    };
    const auto value = [=](auto y, auto t) { return term(y, t).v[1]; };
    for_rows<B, A>(ctx, student.rows, student.cols, [=] TIGON_FN(auto row) {
      if (elements) return row.map(reads(student, teacher), writes(loss), value);
      A sum;
      if (write)
        sum = row.map_sum(reads(student, teacher), writes(dstudent), term);
      else
        sum = row.sum(reads(student, teacher), value);
      if (row.first()) sums[row.i] = static_cast<double>(sum);
    });
    if (elements && write) backward<B, T>(teacher, {}, A(1), dstudent, opt, ctx);
  }

  template <backend B, bool Log, element T, class A>
  static void backward_rows(matrix_view<const T> teacher, matrix_view<const A> upstream, A factor,
                            matrix_view<T> dstudent, context& ctx) {
    const bool each = upstream.data != nullptr;
    for_rows<B, A>(ctx, dstudent.rows, dstudent.cols, [=] TIGON_FN(auto row) {
      if (each)
        row.map(reads(teacher, upstream), writes(dstudent),
                [=](auto t, auto g) { return probability<Log>(t) * (g * factor); });
      else
        row.map(reads(teacher), writes(dstudent), [=](auto t) { return probability<Log>(t) * factor; });
    });
  }

  template <bool Log, class V>
  static TIGON_INLINE V probability(V t) {
    if constexpr (Log)
      return simd::probability(t);
    else
      return t;
  }

  /// p (log(of) - y), 0 where p is 0, NaN where it is negative.
  template <class V>
  static TIGON_INLINE V of_probability(V p, V of, V y) {
    using A = typename V::value_type;
    const V zero(A(0)), finite = select(p == zero, simd::finite_log(y), y);
    return select(p < zero, V(std::numeric_limits<A>::quiet_NaN()), p * simd::log_minus(of, finite));
  }

  /// The derivative of p (log max(p, eps) - y) by p.
  template <class V, class A>
  static TIGON_INLINE V by_probability(V p, V y, A eps) {
    const V zero(A(0)), lowest(std::max(eps, std::numeric_limits<A>::min()));
    const V slope = simd::log_minus(max(lowest, p), y) + select(p > V(eps), V(A(1)), zero);
    const auto nothing = p == zero && (V(eps) == zero || y < V(std::numeric_limits<A>::lowest()));
    return select(p >= zero, select(nothing, zero, slope), V(std::numeric_limits<A>::quiet_NaN()));
  }
};

inline namespace TIGON_ABI {
/// Bytes of workspace that kl_div_forward takes.
constexpr std::size_t kl_div_workspace(std::size_t rows) { return detail::divergence_workspace(rows); }
}  // namespace TIGON_ABI

/// Loss, and dstudent for an upstream gradient of 1. See kl_div_options for the contract.
template <class B = default_backend, class T>
void kl_div_forward(in_matrix<T> student_log_probs, in_matrix<T> teacher,
                    std::type_identity_t<loss_elements<accumulator_t<T>>> loss, matrix_view<T> dstudent,
                    kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  const std::size_t rows = student_log_probs.rows, vocab = student_log_probs.cols;
  const bool elements = opt.reduction == divergence_reduction::none;
  arguments args("kl_div_forward");
  detail::declare_divergence(args, {"student_log_probs", "teacher", student_log_probs, teacher, dstudent},
                             {"loss", loss.view, elements}, detail::label_span(absent), opt.denominator);
  args.check();
  args.option(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  ctx.workspace().expect("kl_div_forward", kl_div_workspace(rows));

  workspace::frame frame(ctx.workspace());
  const detail::divergence_rows out(frame, rows, vocab, opt.reduction, opt.denominator,
                                    std::span<const std::int64_t>{});
  kernel_for<op::kl_div, B>::template forward<B, T>(student_log_probs, teacher, loss.view, dstudent, out, opt, ctx);
  if (!elements) loss.view.data[0] = static_cast<A>(out.total());
}

/// dstudent from the teacher and the gradient of the loss. See kl_div_options for the contract.
template <class B = default_backend, class T>
void kl_div_backward(in_matrix<T> teacher, std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                     matrix_view<T> dstudent, kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  arguments args("kl_div_backward");
  args.memory("dstudent", dstudent);
  const detail::divergence_loss g_of{"upstream", upstream.view, opt.reduction == divergence_reduction::none};
  detail::declare_divergence(args, {"", "teacher", teacher, teacher, dstudent}, g_of, detail::label_span(absent),
                             opt.denominator);
  args.check();
  const detail::kl_div_upstream<A> g(upstream.view, dstudent.rows, dstudent.cols, opt);
  kernel_for<op::kl_div, B>::template backward<B, T>(teacher, g.each, g.factor, dstudent, opt, ctx);
}

/// dteacher from both inputs and the gradient of the loss, for a teacher that learns too. See kl_div_options for the
/// contract.
template <class B = default_backend, class T>
void kl_div_teacher_backward(in_matrix<T> student_log_probs, in_matrix<T> teacher,
                             std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                             matrix_view<T> dteacher, kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  arguments args("kl_div_teacher_backward");
  args.memory("dteacher", dteacher);
  const detail::divergence_loss g_of{"upstream", upstream.view, opt.reduction == divergence_reduction::none};
  detail::declare_divergence(args, {"student_log_probs", "teacher", student_log_probs, teacher, dteacher, "dteacher"},
                             g_of, detail::label_span(absent), opt.denominator);
  args.check();
  args.option(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  const detail::kl_div_upstream<A> g(upstream.view, dteacher.rows, dteacher.cols, opt);
  kernel_for<op::kl_div, B>::template teacher_backward<B, T>(student_log_probs, teacher, g.each, g.factor, dteacher,
                                                             opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_KL_DIV_HPP

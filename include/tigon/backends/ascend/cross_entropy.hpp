// Cross entropy: one row at a time in blocks of the vocabulary. What does not stay between the passes is made again:
// a long row's logits are copied in three times (four where the sum of exponentials cancels), and exponentials are made
// twice.
#ifndef TIGON_BACKENDS_ASCEND_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_ASCEND_CROSS_ENTROPY_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/losses/cross_entropy.hpp>

namespace tigon {

template <>
struct kernel<op::cross_entropy, backends::ascend> {
  template <class T>
  using saved = std::span<T>;  // dlogits

  template <backend B, element T, token_id I>
  static void forward(in_matrix<T> logits, std::span<const I> target, const accumulator_t<T>* class_weight,
                      matrix_view<T> dlogits, cross_entropy_rows out, cross_entropy_scale scale,
                      cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using general = ub::plan<B, op::cross_entropy, tiling::pass::forward, A>;
    using plain = ub::plan<B, op::cross_entropy, tiling::pass::plain_forward, A>;
    const in_vector<A> w{class_weight, logits.cols};
    ub::cut by = general::cut_of(logits.cols);
    if (opt.softcap > 0) {
      forward_blocks<general, B, true>(logits, target.data(), w, w, dlogits, out, scale, opt, by, ctx);
    } else if (opt.label_smoothing > 0) {
      forward_blocks<general, B, false>(logits, target.data(), w, w, dlogits, out, scale, opt, by, ctx);
    } else {
      // The plain path: few live tiles, hence large ones, and a program a row where rows are few. Metrics need no tile,
      // and asking for them must not change the bits of the loss.
      if (!w && opt.lse_square_scale == 0) {
        by = plain::cut_of(logits.cols);
        if (logits.rows <= 1024) by.programs = std::max<std::size_t>(logits.rows, 1);
      }
      forward_blocks<plain, B, false>(logits, target.data(), w, constant(A(0)), dlogits, out, scale, opt, by, ctx);
    }
  }

  /// dlogits = upstream * saved, with one number for all rows or one a row.
  template <backend B, element T>
  static void backward(in_matrix<T> saved_dlogits, std::span<const accumulator_t<T>> upstream, matrix_view<T> dlogits,
                       context& ctx) {
    using plan = ub::plan<B, op::cross_entropy, tiling::pass::backward, accumulator_t<T>>;
    const std::size_t vocab = dlogits.cols;
    ub::cut by = plan::cut_of(vocab);
    by.cols = std::min<std::size_t>(by.cols, vocab <= 4096     ? 2048
                                             : vocab <= 32768  ? 1024
                                             : vocab <= 131072 ? 2048
                                                               : 4096);
    ub::multiply_rows<plan>(ctx, saved_dlogits, vector_view<const accumulator_t<T>>{upstream.data(), upstream.size()},
                            dlogits, by);
  }

  /// `uniform_weight` is what the uniform part of label smoothing gives to each column: the class weights, or nothing.
  template <class Plan, backend B, bool Capped, element T, token_id I, class A, class Uniform>
  static void forward_blocks(matrix_view<const T> logits, const I* target, in_vector<A> weight, Uniform uniform_weight,
                             matrix_view<T> dlogits, cross_entropy_rows out, cross_entropy_scale scale,
                             cross_entropy_options opt, ub::cut by, context& ctx) {
    constexpr bool weighted = std::same_as<Uniform, in_vector<A>>;
    constexpr A infinity = std::numeric_limits<A>::infinity();
    const A cap = static_cast<A>(opt.softcap), smoothing = static_cast<A>(opt.label_smoothing);
    const A z = static_cast<A>(opt.lse_square_scale), a = static_cast<A>(scale.main), b = static_cast<A>(scale.z);
    const A uniform = smoothing / static_cast<A>(logits.cols), weight_sum = static_cast<A>(scale.weight_sum);
    const std::int64_t ignored = opt.ignore_index;
    by.cols = std::min(by.cols, Plan::block);
    ub::for_row_blocks<Plan>(
        ctx, logits.rows, logits.cols, by,
        [=](auto& core, auto& xt, auto& wt, auto& dt) TIGON_LAMBDA {
          const std::size_t i = core.row;
          if (static_cast<std::int64_t>(target[i]) == ignored) {
            out.loss[i] = out.z_loss[i] = 0;
            if (out.predicted != nullptr) out.predicted[i] = -1;
            if (dlogits.data != nullptr)
              core.pass(ub::reads(), ub::writes(dt), [](auto row, auto dv) TIGON_LAMBDA {
                row.map(
                    dv, [](auto zero) { return zero; }, constant(A(0)));
              });
            return;
          }
          const auto squashed = [=](auto v) TIGON_LAMBDA {
            if constexpr (Capped)
              return tanh(v / cap);
            else
              return v;
          };
          // s - max s: exactly 0 at the maximum, however the compiler fuses.
          const auto distance = [=](auto v, A top) TIGON_LAMBDA {
            if constexpr (Capped)
              return (squashed(v) - top) * cap;
            else
              return v - top;
          };
          const std::size_t column = static_cast<std::size_t>(target[i]);
          const A logit = static_cast<A>(logits.row(i)[column]);
          // Squashed by the same lanes as the rest of the row: tanh of a single number may differ in its last bit.
          const A own = Capped ? max_lanes(squashed(simd::vec<typename B::engine, A>(logit))) : logit;

          A top = -infinity, best = -infinity;
          std::int64_t predicted = -1;
          core.pass(ub::reads(xt), ub::writes(), [&](auto row, auto xv) TIGON_LAMBDA {
            top = math::max(top, row.max(squashed, xv));
            if (out.predicted == nullptr) return;
            const auto here = detail::first_largest<A>(row, xv);
            if (here[0] > best)
              best = here[0], predicted = static_cast<std::int64_t>(core.col + static_cast<std::size_t>(here[1]));
          });

          A sum = 0, uniform_part = 0;
          core.pass(ub::reads(xt, wt), ub::writes(), [&](auto row, auto xv, auto wv) TIGON_LAMBDA {
            if constexpr (weighted) {
              const auto s = row.sum(
                  [=](auto v, auto w) {
                    const auto below = distance(v, top);
                    const decltype(v) zero(A(0));
                    return pack{exp_nonpositive(below), select(w == zero, zero, w * below)};
                  },
                  xv, wv);
              sum += s[0], uniform_part += s[1];
            } else {
              sum += row.sum([=](auto v) { return exp_nonpositive(distance(v, top)); }, xv);
            }
          });
          // d = sum - 1. Where that cancels, the rest is summed without the maximum.
          A d = sum - A(1);
          if (d < A(1)) {
            A rest = 0, ones = -1;
            core.pass(ub::reads(xt), ub::writes(), [&](auto row, auto xv) TIGON_LAMBDA {
              const auto s = row.sum(
                  [=](auto v) {
                    const auto p = exp_nonpositive(distance(v, top));
                    const decltype(v) zero(A(0)), one(A(1));
                    return pack{select(p == one, zero, p), select(p == one, one, zero)};
                  },
                  xv);
              rest += s[0], ones += s[1];
            });
            d = rest + ones;
          }
          const A tail = math::log1p(d), lse = (Capped ? top * cap : top) + tail;
          const A w_t = weight ? weight.data[column] : A(1);
          const A below = Capped ? (own - top) * cap : own - top;
          const A minus_log_p = tail - below;
          const A p_t = math::exp(below) / (A(1) + d);
          const A token = out.token_scaling ? p_t : A(1);
          const A smooth = smoothing > A(0) ? uniform * (weight_sum * tail - uniform_part) : A(0);
          const A z_loss = z == A(0) ? A(0) : b * z * lse * lse;
          out.z_loss[i] = static_cast<double>(token * z_loss);
          out.loss[i] = static_cast<double>(token * (a * ((A(1) - smoothing) * w_t * minus_log_p + smooth) + z_loss));
          if (out.predicted != nullptr) out.predicted[i] = math::is_nan(lse) ? -1 : predicted;
          if (dlogits.data == nullptr) return;

          const A of_p = token * (a * ((A(1) - smoothing) * w_t + uniform * weight_sum) + A(2) * b * z * lse);
          const A factor = of_p / (A(1) + d), subtract = token * a * uniform;
          // The target's column anew: p_t - 1 cancels where p_t is near 1.
          const A r = Capped ? own : A(0);
          const A main = (A(1) - smoothing) * w_t * math::expm1(-minus_log_p) + uniform * (weight_sum * p_t - w_t);
          const A at_target = token * (a * main + A(2) * b * z * lse * p_t) * ((A(1) - r) * (A(1) + r));
          core.pass(ub::reads(xt, wt), ub::writes(dt), [&](auto row, auto xv, auto wv, auto dv) TIGON_LAMBDA {
            row.map(
                dv,
                [=](auto v, auto w) {
                  const auto p = exp_nonpositive(distance(v, top));
                  auto g = p * factor;
                  if constexpr (weighted) g = g - w * subtract;
                  if constexpr (Capped) {
                    const auto t = squashed(v);
                    const decltype(v) one(A(1));
                    g = g * ((one - t) * (one + t));
                  }
                  return normal_or_zero(g);
                },
                xv, wv);
            if (column - core.col < row.cols) dv.data[column - core.col] = static_cast<T>(at_target);
          });
        },
        logits, uniform_weight, dlogits);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_CROSS_ENTROPY_HPP

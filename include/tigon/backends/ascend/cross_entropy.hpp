// Cross entropy: one row at a time in blocks of the vocabulary. What does not stay between the passes is made again:
// a long row's logits are copied in three times (four where the sum of exponentials cancels), and exponentials are made
// twice.
#ifndef TIGON_BACKENDS_ASCEND_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_ASCEND_CROSS_ENTROPY_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/softmax/label_terms.hpp>

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
    const terms_of_call of{out, scale, opt};
    ub::cut by = general::cut_of(logits.cols);
    if (opt.softcap > 0) {
      forward_blocks<general, B, true>(logits, target.data(), w, w, dlogits, of, by, ctx);
    } else if (opt.label_smoothing > 0) {
      forward_blocks<general, B, false>(logits, target.data(), w, w, dlogits, of, by, ctx);
    } else {
      // The plain path: few live tiles, hence large ones, and a program a row where rows are few. Metrics need no tile,
      // and they must not change the bits of the loss.
      if (!w && opt.lse_square_scale == 0) {
        by = plain::cut_of(logits.cols);
        if (logits.rows <= 1024) by.programs = std::max<std::size_t>(logits.rows, 1);
      }
      forward_blocks<plain, B, false>(logits, target.data(), w, constant(A(0)), dlogits, of, by, ctx);
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

  /// What a call does with the rows of logits.
  struct terms_of_call {
    cross_entropy_rows out;
    cross_entropy_scale scale;
    cross_entropy_options opt;
  };
  /// `uniform_weight` is what the uniform part of label smoothing gives to each column: the class weights, or nothing.
  template <class Plan, backend B, bool Capped, element T, token_id I, class A, class Uniform>
  static void forward_blocks(matrix_view<const T> logits, const I* target, in_vector<A> weight, Uniform uniform_weight,
                             matrix_view<T> dlogits, terms_of_call of, ub::cut by, context& ctx) {
    constexpr bool weighted = std::same_as<Uniform, in_vector<A>>;
    constexpr A infinity = std::numeric_limits<A>::infinity();
    const auto kind = detail::logits_kind<Capped, A>::of(of.opt.softcap);
    const cross_entropy_rows out = of.out;
    const detail::cross_entropy_terms<A> terms(of.opt, of.scale, out, logits.cols);
    const std::int64_t ignored = of.opt.ignore_index;
    by.cols = std::min(by.cols, Plan::block);
    ub::for_row_blocks<Plan>(
        ctx, logits.rows, logits.cols, by,
        [=](auto& core, auto& xt, auto& wt, auto& dt) TIGON_LAMBDA {
          const std::size_t i = core.row;
          if (static_cast<std::int64_t>(target[i]) == ignored) {
            detail::put_ignored(out, i);
            if (dlogits.data != nullptr)
              core.pass(ub::reads(), ub::writes(dt), [](auto row, auto dv) TIGON_LAMBDA {
                row.map(reads(constant(A(0))), writes(dv), [](auto zero) { return zero; });
              });
            return;
          }
          const std::size_t column = static_cast<std::size_t>(target[i]);
          const A own = static_cast<A>(logits.row(i)[column]);

          A top = -infinity, best = -infinity;
          std::int64_t predicted = -1;
          core.pass(ub::reads(xt), ub::writes(), [&](auto row, auto xv) TIGON_LAMBDA {
            top = math::max(top, row.max(reads(xv), [](auto v) { return v; }));
            if (out.predicted == nullptr) return;
            const auto here = detail::first_largest<A>(row, xv);
            if (core.col == 0 || here.value > best)
              best = here.value, predicted = static_cast<std::int64_t>(core.col + here.column);
          });

          top = kind.top_of(top);
          const auto from = kind.from(top);
          double sum = 0, uniform_part = 0;
          core.pass(ub::reads(xt, wt), ub::writes(), [&](auto row, auto xv, auto wv) TIGON_LAMBDA {
            if constexpr (weighted) {
              const auto s = row.sum(reads(xv, wv), [=](auto v, auto w) {
                const auto below = from.distance(v);
                const decltype(v) zero(A(0));
                return pack{exp_nonpositive(below), select(w == zero, zero, w * below)};
              });
              sum += s[0], uniform_part += s[1];
            } else {
              sum += row.sum(reads(xv), [=](auto v) { return exp_nonpositive(from.distance(v)); });
            }
          });
          // d = sum - 1. Where that cancels, the rest is summed without the maximum.
          A d = static_cast<A>(sum) - A(1);
          if (d < A(1)) {
            double rest = 0, ones = -1;
            core.pass(ub::reads(xt), ub::writes(), [&](auto row, auto xv) TIGON_LAMBDA {
              const auto s =
                  row.sum(reads(xv), [=](auto v) { return detail::apart_from_one(exp_nonpositive(from.distance(v))); });
              rest += s[0], ones += s[1];
            });
            d = static_cast<A>(rest + ones);
          }
          const auto of_row = terms.of(kind, top, own, d, weight ? weight.data[column] : A(1));
          if (out.predicted != nullptr) out.predicted[i] = predicted;
          terms.put_loss(out, i, of_row, static_cast<A>(uniform_part));
          if (dlogits.data == nullptr) return;

          const A factor = terms.factor(of_row, of_row.token), subtract = terms.subtract(of_row.token);
          const A at_target = terms.at_target(of_row, of_row.token, kind, own);
          core.pass(ub::reads(xt, wt), ub::writes(dt), [&](auto row, auto xv, auto wv, auto dv) TIGON_LAMBDA {
            row.map(reads(xv, wv), writes(dv), [=](auto v, auto w) {
              const auto p = exp_nonpositive(from.distance(v));
              auto g = p * factor;
              if constexpr (weighted) g = g - w * subtract;
              if constexpr (Capped) g = g * from.both(v).slope;
              return normal_or_zero(g);
            });
            if (column - core.col < row.cols) dv.data[column - core.col] = static_cast<T>(at_target);
          });
        },
        logits, uniform_weight, dlogits);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_CROSS_ENTROPY_HPP

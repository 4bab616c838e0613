// Losses on sequences of tokens on a GPU, behind a linear layer: losses/sequence/sequence_kernel.hpp with tokens that
// the device lists, which are all rows, and with a block for the loss of a pair or of a sequence.
#ifndef TIGON_BACKENDS_CUDA_SEQUENCES_HPP
#define TIGON_BACKENDS_CUDA_SEQUENCES_HPP

#include <tigon/backends/cuda/logit_sums.hpp>
#include <tigon/backends/cuda/long_sequences.hpp>
#include <tigon/backends/cuda/policy.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/sequence/fused_linear_dpo_kernel.hpp>
#include <tigon/losses/sequence/fused_linear_grpo_kernel.hpp>
#include <tigon/losses/sequence/fused_linear_kto_kernel.hpp>
#include <tigon/losses/sequence/fused_linear_orpo_kernel.hpp>
#include <tigon/losses/sequence/fused_linear_simpo_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// What a pair adds to the results of its call.
struct sums_of_pair {
  double loss, metrics[2], empty, nll;
};
/// Threads of a block that has a pair or a sequence.
inline constexpr unsigned sequence_threads = 256;
template <class A, class F>
__global__ void __launch_bounds__(sequence_threads)
    pair_coefficients(const __grid_constant__ tigon::detail::pair_rule<A> rule, const __grid_constant__ F f,
                      std::size_t begin, const double* nll_count, sums_of_pair* sums) {
  const std::size_t b = begin + blockIdx.x, length = rule.score.tokens.length;
  const auto c = score_of(rule.score, 2 * b), r = score_of(rule.score, 2 * b + 1);
  const pair_value v = f({c.logp, r.logp, c.ratio, r.ratio, c.tokens, r.tokens});
  const double m = rule.opt.nll_denominator != 0 ? rule.opt.nll_denominator : *nll_count;
  const double scale = rule.per_pair * rule.opt.upstream,
               of_nll = rule.nll && m != 0 ? rule.opt.alpha / m * rule.opt.upstream : 0;
  const double of_chosen = scale * v.dchosen / c.divisor, of_rejected = scale * v.drejected / r.divisor;
  double nll[1] = {0};
  for (std::size_t k = 2 * b * length + threadIdx.x; k < (2 * b + 2) * length; k += blockDim.x) {
    const bool chosen = k < (2 * b + 1) * length;
    nll[0] -= rule.put_u(k, chosen, chosen ? of_chosen : of_rejected, of_nll);
  }
  group<0>::reduce<add>(nll);
  if (threadIdx.x != 0) return;
  rule.put(b, c, r);
  sums[b] = {rule.per_pair * v.loss,
             {rule.per_pair * v.metrics[0], rule.per_pair * v.metrics[1]},
             static_cast<double>(c.empty) + static_cast<double>(r.empty),
             nll[0]};
}
/// The results of a call from the sums of its pairs. One block.
template <class A>
__global__ void __launch_bounds__(sequence_threads)
    finish_pairs(const __grid_constant__ tigon::detail::pair_rule<A> rule, std::size_t pairs, const double* nll_count,
                 const sums_of_pair* sums) {
  double sum[5] = {};
  for (std::size_t b = threadIdx.x; b < pairs; b += blockDim.x) {
    const sums_of_pair& of = sums[b];
    sum[0] += of.loss, sum[1] += of.metrics[0], sum[2] += of.metrics[1], sum[3] += of.empty, sum[4] += of.nll;
  }
  group<0>::reduce<add>(sum);
  if (threadIdx.x != 0) return;
  const double m = rule.opt.nll_denominator != 0 ? rule.opt.nll_denominator : *nll_count;
  const double nll = rule.nll && m != 0 ? sum[4] / m : 0;
  rule.put_results(nll, sum[0], sum + 1, static_cast<std::int64_t>(sum[3]));
}

/// What a sequence adds to the results of its call.
struct sums_of_sequence {
  double loss, logp, reward, empty;
};
template <class A, class F>
__global__ void __launch_bounds__(sequence_threads)
    sequence_coefficients(const __grid_constant__ tigon::detail::unpaired_rule<A> rule, const __grid_constant__ F f,
                          std::size_t begin, sums_of_sequence* sums) {
  const std::size_t b = begin + blockIdx.x, length = rule.score.tokens.length;
  const auto s = score_of(rule.score, b);
  const sequence_value v = f({b, rule.liked(b), s.logp, s.ratio});
  const double u = rule.per_sequence * rule.upstream * v.dlogp / s.divisor;
  for (std::size_t k = b * length + threadIdx.x; k < (b + 1) * length; k += blockDim.x) rule.score.put_u(k, u);
  if (threadIdx.x != 0) return;
  rule.put(b, s);
  sums[b] = {rule.per_sequence * v.loss, s.logp, rule.beta * s.ratio, static_cast<double>(s.empty)};
}
template <class A>
__global__ void __launch_bounds__(sequence_threads)
    finish_sequences(const __grid_constant__ tigon::detail::unpaired_rule<A> rule, std::size_t sequences,
                     const sums_of_sequence* sums) {
  double sum[6] = {};  // losses, empty ones; logp and rewards of the others, of the desirable
  for (std::size_t b = threadIdx.x; b < sequences; b += blockDim.x) {
    const sums_of_sequence& of = sums[b];
    const bool liked = rule.liked(b);
    sum[0] += of.loss, sum[1] += of.empty;
    sum[2] += liked ? 0 : of.logp, sum[3] += liked ? of.logp : 0;
    sum[4] += liked ? 0 : of.reward, sum[5] += liked ? of.reward : 0;
  }
  group<0>::reduce<add>(sum);
  if (threadIdx.x != 0) return;
  rule.put_results(sum[0], sum + 2, sum + 4, static_cast<std::int64_t>(sum[1]));
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::fused_linear_preference, backends::cuda> : gpu::sequence_kernel {
  template <class B, layer_types T>
  using linear_chunks = gpu::linear_chunks<B, T>;

  static constexpr std::size_t bytes_of_sums(std::size_t count) {
    return workspace::bytes_for<gpu::sums_of_pair>(count) + workspace::bytes_for<double>(1);
  }
  template <backend B, layer_types T>
  static std::size_t bytes_of_long_sequences(std::size_t groups, std::size_t ends, std::size_t length,
                                             std::size_t hidden, std::size_t vocab, parameters of, const context& ctx) {
    return gpu::long_sequences<B, T>::bytes(groups, ends, length, hidden, vocab, of, ctx);
  }
  static std::size_t bytes_of_logit_sums(std::size_t hidden) { return gpu::sums_of_logits_bytes(hidden); }

  template <class From, class T>
  static void copy_rows(matrix_view<const From> from, const std::size_t* from_row, matrix_view<T> to,
                        const std::size_t* to_row, context& ctx) {
    const std::size_t rows = from_row != nullptr ? to.rows : from.rows;
    if (rows == 0 || to.cols == 0) return;
    gpu::launch(ctx, gpu::copy_rows<From, T>, dim3(gpu::blocks(rows)), dim3(256), from, from_row, to, to_row);
  }
  /// The log-sum-exp of the rows whose logits z were computed last, and log-probabilities of one column a row.
  template <class Rows, class A>
  static void log_probabilities(const Rows& rows, matrix_view<A> z, double temperature, double softcap,
                                const std::int64_t* column, lse_parts<A>* lse, double* logp, context& ctx) {
    using X = typename Rows::X;
    using W = typename Rows::W;
    if (z.rows == 0) return;
    constexpr int N = static_cast<int>(gpu::access_bytes / sizeof(A));
    const gpu::exact_logits<X, W, A> exact{rows.rows(), rows.w(), rows.bias().data(), temperature, softcap};
    const bool wide = z.cols % N == 0 && gpu::begins_accesses<N>(z.data, z.row_stride);
    (void)gpu::columns(z.cols);
    gpu::launch(ctx, wide ? gpu::exact_log_probabilities<N, X, W, A> : gpu::exact_log_probabilities<1, X, W, A>,
                dim3(gpu::blocks(z.rows)), dim3(gpu::logp_threads), matrix_view<const A>(z), exact, column, lse, logp);
  }

  /// Lists the tokens, and counts those of the nll.
  template <class A>
  static void list(std::string_view op, const detail::sequence_tokens<A>& tokens, const token_ids& target,
                   const token_ids& nll_target, std::int64_t ignored, std::size_t vocab, double* nll_count,
                   context& ctx) {
    gpu::launch(ctx, gpu::list_tokens<A>, dim3(1), dim3(1024), tokens,
                gpu::listed_labels{target, nll_target, ignored, vocab, gpu::report_of(gpu::stream_of(ctx)), op.data()},
                nll_count);
  }

  /// All rows, in their order.
  template <class A>
  static void list_rows(const detail::sequence_tokens<A>& tokens, context& ctx) {
    gpu::for_each_of(ctx, tokens.sequences() * tokens.length, gpu::same_row{tokens.row});
  }

  template <backend B, layer_types T, class F>
  static void pairs(std::string_view op, void (*run)(const detail::sequence_call<T>&, context&), const F& f,
                    const detail::pair_terms& terms, const detail::pair_arguments<T>& of, context& ctx) {
    static_assert(!std::same_as<F, pair_loss>,
                  "tigon: fused_linear_preference: on cuda a loss of pairs is not a function of the host");
    using A = accumulator_t<T>;
    detail::check_pairs<B, T>(op, terms, of, ctx);
    const token_ids& target = of.batch.target;
    const preference_options& opt = of.opt;
    const std::size_t pairs = target.rows / 2, vocab = of.layer.w.rows;
    workspace::frame frame(ctx.workspace());
    const bool second = terms.nll && detail::has_own_nll(of.batch);
    const detail::sequence_tokens<A> tokens(frame, pairs, 2, target.cols, second, of.reference.layer.w.data != nullptr);
    auto* const sums = frame.template take<gpu::sums_of_pair>(pairs);
    double* const nll_count = frame.template take<double>(1);
    list(op, tokens, target, second ? of.batch.nll_target : token_ids(), opt.ignore_index, vocab, nll_count, ctx);
    detail::pair_rule<A> rule{{tokens, target, opt.ignore_index, terms.average, of.reference.logps},
                              of.batch.nll_target,
                              terms.beta,
                              terms.nll,
                              opt,
                              of.to};
    rule.per_pair = 1 / (opt.denominator != 0 ? opt.denominator : static_cast<double>(pairs));
    const auto coefficients = [&](std::size_t begin, std::size_t n) {
      gpu::launch(ctx, gpu::pair_coefficients<A, F>, dim3(gpu::blocks(n)), dim3(gpu::sequence_threads), rule, f, begin,
                  nll_count, sums);
    };
    run({of.layer, of.gradients, of.reference.layer, tokens, 1.0, coefficients, opt.softcap}, ctx);
    gpu::launch(ctx, gpu::finish_pairs<A>, dim3(1), dim3(gpu::sequence_threads), rule, pairs, nll_count, sums);
    const std::size_t half = of.layer.x.rows / 2;
    const double mean = half == 0 ? 0 : 1 / (static_cast<double>(half) * static_cast<double>(vocab));
    gpu::put_logit_sums<T>(of.layer, gpu::halves_of_rows{half}, mean, of.to.chosen_logits_mean,
                           of.to.rejected_logits_mean, ctx);
  }
};

template <>
struct kernel<op::selective_logprob, backends::cuda> {
  template <class T>
  using saved = std::span<lse_parts<accumulator_t<T>>>;

  template <backend B, layer_types T>
  static std::size_t workspace_bytes(std::size_t rows, std::size_t hidden, std::size_t vocab, const context& ctx,
                                     parameters of) {
    using A = accumulator_t<T>;
    return detail::sequence_tokens<A>::bytes(1, 1, rows, false) + workspace::bytes_for<double>(1) +
           gpu::chunks_workspace<B, T>(rows, hidden, vocab, detail::chunk_rows<B, A>(rows, hidden, vocab, ctx), of);
  }
  template <backend B, layer_types T, class A = accumulator_t<T>>
  static void forward(std::string_view op, const linear_layer<T>& layer, const token_ids& target,
                      const selective_logprob_options& opt, A* logp, lse_parts<A>* saved, context& ctx) {
    workspace::frame frame(ctx.workspace());
    const auto tokens = listed<B, A>(op, frame, layer.w.rows, target, opt, ctx);
    gpu::each_chunk_of_logits<B, T>(layer, {}, detail::chunk_rows<B, A>(layer.x.rows, layer.x.cols, layer.w.rows, ctx),
                                    ctx, [&](std::size_t begin, matrix_view<A> z, auto) {
                                      kernel_for<op::selective_log_softmax, B>::template forward<B, A>(
                                          z, tokens.column + begin, opt.temperature, logp + begin, saved + begin, ctx);
                                    });
  }
  template <backend B, layer_types T, class A = accumulator_t<T>>
  static void backward(std::string_view op, const linear_layer<T>& layer, const linear_gradients<T>& out,
                       const token_ids& target, const selective_logprob_options& opt, const A* upstream,
                       const lse_parts<A>* saved, context& ctx) {
    workspace::frame frame(ctx.workspace());
    const auto tokens = listed<B, A>(op, frame, layer.w.rows, target, opt, ctx);
    gpu::each_chunk_of_logits<B, T>(layer, out, detail::chunk_rows<B, A>(layer.x.rows, layer.x.cols, layer.w.rows, ctx),
                                    ctx, [&](std::size_t begin, matrix_view<A> z, auto d) {
                                      if (d.data != nullptr)
                                        kernel_for<op::selective_log_softmax, B>::template backward<B, A>(
                                            z, saved + begin,
                                            selected_gradient<A>{tokens.column + begin, upstream + begin},
                                            selected_gradient<A>{}, opt.temperature, d, ctx);
                                    });
  }

 private:
  // The column of every row.
  template <backend B, class A>
  static detail::sequence_tokens<A> listed(std::string_view op, workspace::frame& frame, std::size_t vocab,
                                           const token_ids& target, const selective_logprob_options& opt,
                                           context& ctx) {
    const detail::sequence_tokens<A> tokens(frame, 1, 1, target.cols, false, false);
    kernel_for<op::fused_linear_preference, B>::list(op, tokens, target, token_ids(), opt.ignore_index, vocab,
                                                     frame.template take<double>(1), ctx);
    return tokens;
  }
};

template <>
struct kernel<op::fused_linear_unpaired_preference, backends::cuda> : gpu::sequence_kernel {
  template <backend B, layer_types T, class F>
  static void sequences(std::string_view op, void (*run)(const detail::sequence_call<T>&, context&), const F& f,
                        const detail::unpaired_terms& terms, const detail::unpaired_arguments<T>& of, context& ctx) {
    static_assert(!std::same_as<F, sequence_loss>,
                  "tigon: fused_linear_unpaired_preference: on cuda a loss of sequences is not a function of the host");
    using A = accumulator_t<T>;
    detail::check_unpaired<B, T>(op, terms, of, ctx);
    const token_ids& target = of.batch.target;
    const unpaired_options& opt = of.opt;
    const std::size_t sequences = target.rows, vocab = of.layer.w.rows;
    workspace::frame frame(ctx.workspace());
    const detail::sequence_tokens<A> tokens(frame, sequences, 1, target.cols, false,
                                            of.reference.layer.w.data != nullptr);
    auto* const sums = frame.template take<gpu::sums_of_sequence>(sequences);
    kernel_for<op::fused_linear_preference, B>::list(op, tokens, target, token_ids(), opt.ignore_index, vocab,
                                                     frame.template take<double>(1), ctx);
    const double count = opt.denominator != 0 ? opt.denominator : static_cast<double>(sequences);
    const detail::unpaired_rule<A> rule{{tokens, target, opt.ignore_index, terms.average, of.reference.logps},
                                        of.batch.desirable,
                                        terms.beta,
                                        count == 0 ? 0 : 1 / count,
                                        opt.upstream,
                                        of.to};
    const auto coefficients = [&](std::size_t begin, std::size_t n) {
      gpu::launch(ctx, gpu::sequence_coefficients<A, F>, dim3(gpu::blocks(n)), dim3(gpu::sequence_threads), rule, f,
                  begin, sums);
    };
    run({of.layer, of.gradients, of.reference.layer, tokens, 1.0, coefficients, opt.softcap}, ctx);
    gpu::launch(ctx, gpu::finish_sequences<A>, dim3(1), dim3(gpu::sequence_threads), rule, sequences, sums);
    gpu::put_logit_sums<T>(of.layer,
                           gpu::desirable_rows{of.batch.desirable.data(), std::max<std::size_t>(target.cols, 1)}, 1,
                           of.to.chosen_logits_sum, of.to.rejected_logits_sum, ctx);
  }
};

template <>
struct kernel<op::fused_linear_grpo, backends::cuda> : detail::sequence_kernel {
  template <backend B, layer_types T, class A = accumulator_t<T>>
  static void losses(std::string_view op, const linear_layer<T>& head, detail::policy<A> of,
                     detail::policy_output<A> to, const linear_gradients<T>& out, const linear_layer<T>& reference,
                     std::span<const A> upstream, context& ctx) {
    gpu::refuse_function(op, of);
    workspace::frame frame(ctx.workspace());
    const bool layer = reference.w.data != nullptr;
    const detail::policy_groups groups(of.opt, of.at);
    const detail::sequence_tokens<A> tokens(frame, groups.groups, 1, groups.length, false, layer);
    // Tokens are all rows, in their order.
    kernel_for<op::fused_linear_preference, B>::template list_rows<A>(tokens, ctx);
    gpu::select_columns(op, of.at, of.in.ids, of.in.mask, head.w.rows, tokens.column, of.padded(), ctx);
    if (layer) of.made_reference = tokens.reference_logp;
    const auto coefficients = [&](std::size_t begin, std::size_t n) {
      gpu::gradient_of(of, begin * groups.length, (begin + n) * groups.length, gpu::made_logp{tokens.logp}, upstream,
                       tokens.u, ctx);
    };
    kernel_for<op::fused_linear_grpo, B>::template forward<B, T>(
        detail::sequence_call<T>{head, out, reference, tokens, of.opt.temperature, coefficients}, ctx);
    gpu::evaluate(of, gpu::made_logp{tokens.logp}, to, ctx);
  }
};

// Made of the kernels above.
template <>
struct kernel<op::fused_linear_dpo, backends::cuda> : detail::pair_kernel {};
template <>
struct kernel<op::fused_linear_orpo, backends::cuda> : detail::pair_kernel {};
template <>
struct kernel<op::fused_linear_cpo, backends::cuda> : detail::pair_kernel {};
template <>
struct kernel<op::fused_linear_simpo, backends::cuda> : detail::pair_kernel {};
template <>
struct kernel<op::fused_linear_kto, backends::cuda> : detail::unpaired_kernel {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_SEQUENCES_HPP

// Policy losses of the GRPO family on a GPU, from log-probabilities of tokens: losses/sequence/policy.hpp, a thread a
// token.
#ifndef TIGON_BACKENDS_CUDA_POLICY_HPP
#define TIGON_BACKENDS_CUDA_POLICY_HPP

#include <tigon/backends/cuda/selective_log_softmax.hpp>
// Behind it: it says how these are compiled.
#include <tigon/losses/sequence/policy.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Tokens of a sequence that a block has.
inline constexpr unsigned policy_threads = 256;

/// Log-probabilities of rows: from their logits, or as they were made.
template <class Z>
struct logp_of_logits {
  matrix_view<const Z> logits;
  const std::int64_t* column;
  const lse_parts<accumulator_t<Z>>* lse;
  double temperature;
  TIGON_DEVICE_INLINE double operator()(std::size_t i) const {
    if (column[i] == out_of_range) return std::numeric_limits<double>::quiet_NaN();
    return column[i] < 0 ? 0 : lse[i].log_p(static_cast<accumulator_t<Z>>(logits.row(i)[column[i]]), temperature);
  }
};
struct made_logp {
  const double* logp;
  TIGON_DEVICE_INLINE double operator()(std::size_t i) const { return logp[i]; }
};

/// How many tokens count. All threads of the block come here.
template <class A>
TIGON_DEVICE_INLINE double tokens_that_count(const tigon::detail::policy<A>& of) {
  const std::size_t all = of.at.batch * of.at.len;
  if (!of.in.mask) return static_cast<double>(all);
  double count[1] = {0};
  for (std::size_t i = threadIdx.x; i < all; i += blockDim.x) count[0] += of.counts(i / of.at.len, i % of.at.len);
  group<0>::reduce<add>(count);
  return count[0];
}
/// The numbers of sequence b. All threads of the block come here.
template <class A, class Logp>
TIGON_DEVICE_INLINE tigon::detail::policy_sequence sequence_of(const tigon::detail::policy<A>& of, const Logp& logp,
                                                               std::size_t b) {
  tigon::detail::policy_sums own;
  for (std::size_t t = threadIdx.x; t < of.at.len; t += blockDim.x)
    if (of.counts(b, t)) of.add(b, t, of.by_token() ? 0 : logp(b * of.at.stride + t), own);
  double sum[4] = {own.count, own.log_ratio, own.clamped, own.weight};
  group<0>::reduce<add>(sum);
  return of.sequence(b, {sum[0], sum[1], sum[2], sum[3]}, tokens_that_count(of));
}

/// Losses of tokens, or the sums of a block's. Blocks (part, sequence).
template <class A, class Logp>
__global__ void __launch_bounds__(policy_threads) evaluate_policy(const __grid_constant__ tigon::detail::policy<A> of,
                                                                  Logp logp, tigon::detail::policy_output<A> out) {
  const std::size_t b = blockIdx.y, t = blockIdx.x * std::size_t{policy_threads} + threadIdx.x;
  const auto s = sequence_of(of, logp, b);
  double sum[3] = {0, 0, 0};
  if (t < of.at.len) {
    const bool mu = of.counts(b, t);
    tigon::detail::policy_term v;
    if (of.reads(b, t)) v = of.term(b, t, logp(b * of.at.stride + t), s), sum[0] = of.weight(b, t, s) * v.loss;
    if (mu) sum[1] = v.kl, sum[2] = v.clipped;
    if (!of.opt.reduce) of.put(out, b * of.at.len + t, mu ? v : tigon::detail::policy_term{});
  }
  if (!of.opt.reduce) return;
  group<0>::reduce<add>(sum);
  if (threadIdx.x != 0) return;
  double* const to = out.partial + 3 * (b * gridDim.x + blockIdx.x);
  to[0] = sum[0], to[1] = sum[1], to[2] = sum[2];
}
/// The totals of so many sums. One block.
template <class A>
__global__ void __launch_bounds__(policy_threads) total_of_policy(const __grid_constant__ tigon::detail::policy<A> of,
                                                                  tigon::detail::policy_output<A> out, std::size_t n) {
  double sum[3] = {0, 0, 0};
  for (std::size_t k = threadIdx.x; k < n; k += blockDim.x)
    sum[0] += out.partial[3 * k], sum[1] += out.partial[3 * k + 1], sum[2] += out.partial[3 * k + 2];
  group<0>::reduce<add>(sum);
  const double tokens = tokens_that_count(of);
  if (threadIdx.x == 0) of.put_totals(out, sum[0], sum[1], sum[2], tokens);
}

/// Rows [first, last), of sequences from b on.
struct rows_of_policy {
  std::size_t b, first, last;
};
/// u of rows: first what tokens have by themselves, with sums of what they have through the ratio of their sequence.
template <class A, class Logp>
__global__ void __launch_bounds__(policy_threads)
    policy_gradient(const __grid_constant__ tigon::detail::policy<A> of, rows_of_policy rows, Logp logp,
                    std::span<const A> upstream, A* u, double* through_ratio) {
  const std::size_t b = rows.b + blockIdx.y, t = blockIdx.x * std::size_t{policy_threads} + threadIdx.x,
                    i = b * of.at.stride + t;
  const auto s = sequence_of(of, logp, b);
  double through[1] = {0};
  if (t < of.at.stride && i >= rows.first && i < rows.last)
    u[i] = t < of.at.len && of.reads(b, t) ? of.direct_gradient(b, t, logp(i), s, upstream, through[0]) : A(0);
  if (!of.by_sequence()) return;
  group<0>::reduce<add>(through);
  if (threadIdx.x == 0) through_ratio[blockIdx.y * gridDim.x + blockIdx.x] = through[0];
}
template <class A, class Logp>
__global__ void __launch_bounds__(policy_threads)
    add_through_ratio(const __grid_constant__ tigon::detail::policy<A> of, rows_of_policy rows, Logp logp, A* u,
                      const double* through_ratio) {
  const std::size_t b = rows.b + blockIdx.y, t = blockIdx.x * std::size_t{policy_threads} + threadIdx.x,
                    i = b * of.at.stride + t;
  const auto s = sequence_of(of, logp, b);
  if (t >= of.at.len) return;
  double sum = 0;
  for (unsigned k = 0; k < gridDim.x; ++k) sum += through_ratio[blockIdx.y * gridDim.x + k];
  u[i] = of.with_ratio(b, t, logp(i), s, u[i], sum);
}

/// A grid for the tokens of all sequences: at most 65535 sequences.
inline dim3 grid_of_tokens(const tigon::detail::token_rows& at) {
  if (at.batch > 65535)
    tigon::detail::fail(error_code::shape,
                        "tigon: cuda: " + std::to_string(at.batch) + " sequences; expected at most 65535");
  return dim3(blocks(std::max<std::size_t>(tigon::detail::ceil_div(at.stride, policy_threads), 1)),
              static_cast<unsigned>(at.batch));
}
/// Numbers for the sums of blocks.
constexpr std::size_t sums_of_policy(std::size_t rows, std::size_t batch) {
  return workspace::bytes_for<double>(3 * (rows / policy_threads + batch + 1));
}

/// A function of the host is not called by a device.
template <class A>
void refuse_function(std::string_view op, const tigon::detail::policy<A>& of) {
  if (of.function != nullptr)
    tigon::detail::fail_argument(error_code::argument, op, "type", "own",
                                 "another one on cuda, which calls no function of the host");
}

template <class A, class Logp>
void evaluate(const tigon::detail::policy<A>& of, Logp logp, tigon::detail::policy_output<A> out, context& ctx) {
  workspace::frame frame(ctx.workspace());
  const dim3 grid = grid_of_tokens(of.at);
  const std::size_t n = of.at.batch * grid.x;
  out.partial = frame.template take<double>(3 * n);
  if (of.at.batch != 0) launch(ctx, evaluate_policy<A, Logp>, grid, dim3(policy_threads), of, logp, out);
  if (of.opt.reduce) launch(ctx, total_of_policy<A>, dim3(1), dim3(policy_threads), of, out, n);
}
/// u of rows [first, last), which are whole sequences unless a token's loss needs no other token.
template <class A, class Logp>
void gradient_of(const tigon::detail::policy<A>& of, std::size_t first, std::size_t last, Logp logp,
                 std::span<const A> upstream, A* u, context& ctx) {
  if (first >= last) return;
  const rows_of_policy rows{first / of.at.stride, first, last};
  workspace::frame frame(ctx.workspace());
  dim3 grid = grid_of_tokens(of.at);
  grid.y = static_cast<unsigned>((last - 1) / of.at.stride - rows.b + 1);
  double* const through_ratio = frame.template take<double>(std::size_t{grid.x} * grid.y);
  launch(ctx, policy_gradient<A, Logp>, grid, dim3(policy_threads), of, rows, logp, upstream, u, through_ratio);
  if (of.by_sequence())
    launch(ctx, add_through_ratio<A, Logp>, grid, dim3(policy_threads), of, rows, logp, u, through_ratio);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_POLICY_HPP

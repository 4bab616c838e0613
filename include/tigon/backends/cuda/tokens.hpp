// Ids and masks of tokens that a GPU reads: the column of every row of logits, and which tokens count. Ids out of range
// are reported (report.hpp); their rows have no column.
#ifndef TIGON_BACKENDS_CUDA_TOKENS_HPP
#define TIGON_BACKENDS_CUDA_TOKENS_HPP

#include <tigon/backends/cuda/group.hpp>
#include <tigon/backends/cuda/runtime.hpp>
// Behind them: they say how these are compiled.
#include <tigon/core/division.hpp>
#include <tigon/losses/softmax/selective_log_softmax_options.hpp>

#include <algorithm>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// f(i) for all i < n, each by a thread.
template <class F>
__global__ void __launch_bounds__(256) each_of(F f, std::size_t n) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x)
    f(i);
}
template <class F>
void for_each_of(context& ctx, std::size_t n, F f) {
  constexpr std::size_t threads = 256, most_blocks = 4096;
  if (n == 0) return;
  launch(ctx, each_of<F>, dim3(static_cast<unsigned>(std::min(tigon::detail::ceil_div(n, threads), most_blocks))),
         dim3(threads), f, n);
}

/// The smallest place of an id or of a mask that is wrong, over a block; -1: none. All threads come here.
TIGON_DEVICE_INLINE double first_wrong(double own) {
  double minus[1] = {own < 0 ? -std::numeric_limits<double>::infinity() : -own};
  group<0>::reduce<larger>(minus);
  return minus[0] == -std::numeric_limits<double>::infinity() ? -1 : -minus[0];
}

/// The column of a row whose id is out of range; of one that does not count it is -1.
inline constexpr std::int64_t out_of_range = -2;

/// What select_tokens reads.
struct tokens_of_call {
  tigon::detail::token_rows at;
  token_ids ids;
  token_mask mask;
  std::size_t vocab;
  bool padded;
  index_report* report;
  const char* op;
};
/// As tigon::detail::select_columns. One block.
template <class Call>
__global__ void __launch_bounds__(1024) select_tokens(const __grid_constant__ Call of, std::int64_t* column) {
  double wrong_id = -1, wrong_mask = -1;
  const std::size_t stride = of.at.stride, len = of.at.len;
  for (std::size_t i = threadIdx.x; i < of.at.rows(); i += blockDim.x) {
    const std::size_t b = i / stride, t = i % stride;
    std::int64_t c = -1;
    if (t != len) {
      const double counts = of.mask ? of.mask(b, t) : 1;
      const auto at = static_cast<double>(b * len + t);
      if (counts != 0 && counts != 1) {
        if (wrong_mask < 0) wrong_mask = at;
      } else if (counts == 1 || of.padded) {
        c = of.ids(b, t);
        if (c < 0 || static_cast<std::uint64_t>(c) >= of.vocab) {
          if (wrong_id < 0) wrong_id = at;
          c = out_of_range;
        }
      }
    }
    column[i] = c;
  }
  wrong_id = first_wrong(wrong_id), wrong_mask = first_wrong(wrong_mask);
  if (threadIdx.x != 0) return;
  const bool of_mask = wrong_mask >= 0 && (wrong_id < 0 || wrong_mask < wrong_id);
  const double wrong = of_mask ? wrong_mask : wrong_id;
  if (wrong < 0) return;
  const auto place = static_cast<std::size_t>(wrong);
  index_report report{};
  report.op = of.op, report.argument = of_mask ? "mask" : "ids", report.at = place, report.columns = len;
  report.is_mask = of_mask;
  if (of_mask)
    report.number = of.mask(place / len, place % len);
  else
    report.value = of.ids(place / len, place % len), report.below = of.vocab;
  of.report->make(report);
}

inline void select_columns(std::string_view op, tigon::detail::token_rows at, const token_ids& ids,
                           const token_mask& mask, std::size_t vocab, std::int64_t* column, bool padded, context& ctx) {
  if (!mask.of_known_type())
    tigon::detail::fail_argument(error_code::argument, op, "mask", "of a type that the device does not have",
                                 "integers, or numbers of f32 or f64");
  launch(ctx, select_tokens<tokens_of_call>, dim3(1), dim3(1024),
         tokens_of_call{at, ids, mask, vocab, padded, report_of(stream_of(ctx)), op.data()}, column);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_TOKENS_HPP

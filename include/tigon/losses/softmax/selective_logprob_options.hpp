// The tag, options and checks of selective_logprob.
#ifndef TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_OPTIONS_HPP

#include <tigon/losses/softmax/selective_log_softmax_options.hpp>

namespace tigon {

namespace op {
struct selective_logprob {
  static constexpr std::string_view name = "selective_logprob";
};
}  // namespace op

/// The contract is in losses/selective_logprob.hpp.
struct selective_logprob_options {
  double temperature = 1;  ///< above 0
  std::int64_t ignore_index = -100;
};

namespace detail {
inline namespace TIGON_ABI {
/// The element of row[i] and column[i], for i < n; rows in increasing order.
struct selected_columns {
  const std::size_t* row;
  const std::int64_t* column;
  std::size_t n;
};

/// Ids of [0, vocab), or ignore_index.
TIGON_NOINLINE inline void expect_ids(std::string_view op, std::string_view name, const token_ids& ids,
                                      std::size_t vocab, std::int64_t ignore_index) {
  for (std::size_t b = 0; b < ids.rows; ++b)
    for (std::size_t t = 0; t < ids.cols; ++t) {
      const std::int64_t id = ids(b, t);
      if (id != ignore_index && (id < 0 || static_cast<std::uint64_t>(id) >= vocab))
        fail_argument(
            error_code::index, op, std::string(name) + "[" + std::to_string(b * ids.cols + t) + "]", std::to_string(id),
            "at least 0 and below " + std::to_string(vocab) + ", or ignore_index " + std::to_string(ignore_index));
    }
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_OPTIONS_HPP

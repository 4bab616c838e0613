// Policy losses: what their benchmarks share.
#ifndef TIGON_BENCH_OPS_POLICY_HPP
#define TIGON_BENCH_OPS_POLICY_HPP

#include <tigon/losses/sequence/policy.hpp>

#include "ops/table.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {

/// Tokens of sequences of 512, or of as many as divide them; no old log-probabilities, as in the first step on a batch.
template <class A>
struct policy_case {
  std::size_t len, batch;
  buffer<std::int32_t> ids;
  buffer<A> advantages, ref_logp, loss{1};

  static std::size_t length(std::size_t tokens) {
    std::size_t len = 512;
    while (tokens % len != 0) len /= 2;
    return len;
  }
  policy_case(std::size_t tokens, std::size_t vocab)
      : len(length(tokens)),
        batch(tokens / len),
        ids(uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 2)),
        advantages(uniform<A>(batch, -1, 1, 3)),
        ref_logp(uniform<A>(tokens, -14, -8, 4)) {}
  tigon::policy_batch<A> given(bool reference = true) const {
    tigon::policy_batch<A> out{.ids = tigon::matrix_view<const std::int32_t>(ids.data(), batch, len),
                               .advantages = advantages.span()};
    if (reference) out.ref_logp = {ref_logp.data(), batch, len};
    return out;
  }
};

/// Level sequence in the variant of that name.
inline tigon::policy_options policy_options_of(const request& r) {
  return {.type = tigon::policy_loss::grpo,
          .level = r.variant == "sequence" ? tigon::importance::sequence : tigon::importance::token,
          .beta = 0.1};
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_POLICY_HPP

// A layer whose classes are cut among ranks that are threads.
#ifndef TIGON_TESTS_SUPPORT_LINEAR_SHARDS_HPP
#define TIGON_TESTS_SUPPORT_LINEAR_SHARDS_HPP

#include <tigon/comm/threads.hpp>
#include <tigon/losses/ranks/shard_linear.hpp>

#include <deque>
#include <functional>

#include "linear_problem.hpp"

namespace tigon::test {

using cuts = std::vector<std::size_t>;  ///< classes of each rank

inline cuts even_cuts(std::size_t vocab, std::size_t ranks) {
  cuts out;
  for (std::size_t r = 0; r < ranks; ++r) out.push_back(vocab * (r + 1) / ranks - vocab * r / ranks);
  return out;
}
inline std::vector<cuts> all_cuts(std::size_t vocab) {
  const std::size_t some = vocab / 3;
  return {{vocab}, even_cuts(vocab, 2), {0, vocab - some, 0, some}};
}

/// Rank r's part of a whole layer, and of its gradients but dx.
template <class T>
struct layer_part {
  linear_shard<T> layer;
  linear_gradients<T> gradients;

  TIGON_TEST_NOINLINE layer_part(linear_problem<T>& whole, const cuts& columns, std::size_t r, matrix_view<T> dx) {
    std::size_t first = 0;
    for (std::size_t k = 0; k < r; ++k) first += columns[k];
    const auto part = [&](guarded<T>& v) {
      return v.size() == 0 ? std::span<T>() : std::span<T>(v).subspan(first, columns[r]);
    };
    layer = {{whole.x, whole.w.view().rows_from(first, columns[r]), part(whole.bias)}, {first, whole.of_layer.vocab}};
    gradients = {dx, whole.dw.view().rows_from(first, columns[r]), part(whole.dbias), whole.dparams};
  }
};

/// fn(c, ctx) on a thread for each rank, with `threads` workers each.
inline void on_ranks(std::size_t ranks, const std::function<void(const comm::threads&, context&)>& fn,
                     std::size_t threads = 1) {
  comm::threads::run(ranks, [&](const comm::threads& c) {
    thread_pool pool(threads);
    workspace scratch;
    context ctx(pool, scratch);
    fn(c, ctx);
  });
}

/// The same on workspaces of bytes_of(rank, ctx) bytes, with workers and logit_rows as `like` has them.
inline void on_ranks_with_workspace(std::size_t ranks, const context& like,
                                    const std::function<std::size_t(std::size_t, context&)>& bytes_of,
                                    const std::function<void(const comm::threads&, context&)>& fn) {
  const std::size_t threads = like.executor().workers(), logit_rows = like.logit_rows();
  comm::threads::run(ranks, [&](const comm::threads& c) {
    std::size_t bytes = 0;
    const auto size = [&](context& ctx) { ctx.logit_rows(logit_rows), bytes = bytes_of(c.rank(), ctx); };
    const auto call = [&](context& ctx) { ctx.logit_rows(logit_rows), fn(c, ctx); };
    with_workspace_of(64, size, threads);
    with_workspace_of(bytes, call, threads);
  });
}

/// Each rank calls call(c, ctx), of three ranks; all throw the same error with this code and sentence.
inline testing::AssertionResult all_ranks_refuse(error_code code, const std::string& part,
                                                 const std::function<void(const comm::threads&, context&)>& call) {
  std::vector<std::string> said(3);
  std::vector<error_code> codes(3);
  on_ranks(3, [&](const comm::threads& c, context& ctx) {
    try {
      call(c, ctx);
    } catch (const error& e) {
      said[c.rank()] = e.what(), codes[c.rank()] = e.code();
    }
  });
  for (std::size_t r = 0; r < 3; ++r)
    if (said[r] != said[0] || codes[r] != code || said[r].find(part) == std::string::npos)
      return testing::AssertionFailure() << "rank " << r << " says \"" << said[r] << "\", rank 0 \"" << said[0] << '"';
  return testing::AssertionSuccess();
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_LINEAR_SHARDS_HPP

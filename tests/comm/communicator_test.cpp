// The contract of include/tigon/comm: what ranks send one another, in which order they fold it, and how they fail.
#include <gtest/gtest.h>

#include <tigon/comm/threads.hpp>

#include <atomic>
#include <numeric>

#include "support/problem.hpp"
#include "support/scarcity.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::communicator_ref, tigon::error_code;
using tigon::comm::serial, tigon::comm::threads;

static_assert(tigon::communicator<serial> && tigon::communicator<threads> && tigon::communicator<communicator_ref>);

TEST(communicator, gathers_in_the_order_of_ranks) {
  for (const std::size_t ranks : {1u, 2u, 3u, 7u})
    threads::run(ranks, [&](const threads& c) {
      ASSERT_EQ(c.size(), ranks);
      for (const std::size_t n : {0u, 1u, 1000u}) {
        guarded<std::int32_t> mine(n), all(n * ranks);
        std::iota(mine.begin(), mine.end(), static_cast<std::int32_t>(c.rank() * n));
        tigon::comm::all_gather<std::int32_t>(c, mine, std::span(all));
        for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<std::int32_t>(i));
      }
    });
  const int mine[] = {4, 5};
  int all[2] = {};
  tigon::comm::all_gather<int>(serial{}, mine, std::span<int>(all));
  EXPECT_EQ(all[1], 5);
}

TEST(communicator, reduces_in_the_order_of_ranks) {
  // In f32 the order of a sum shows in its bits: after 1e8, every 1 is lost.
  const float values[] = {1e8f, 1, -1e8f, 1};
  float wanted = 3;
  for (const float v : values) wanted += v;
  EXPECT_EQ(wanted, 1);
  threads::run(4, [&](const threads& c) {
    for (const std::size_t block : {1u, 2u, 3u, 100u}) {
      std::vector<float> mine(7, values[c.rank()]), into(7, 3), scratch(4 * block + 3);
      tigon::comm::reduce_in_rank_order<float>(c, mine, std::span(into), scratch, std::plus<>());
      ASSERT_EQ(into, std::vector<float>(7, wanted));
    }
    std::vector<std::int64_t> most{static_cast<std::int64_t>(c.rank() % 3)}, into{-1}, scratch(4);
    tigon::comm::reduce_in_rank_order<std::int64_t>(c, most, std::span(into), scratch,
                                                    [](auto a, auto b) { return std::max(a, b); });
    ASSERT_EQ(into[0], 2);
  });
}

/// A communicator with all_gather alone.
struct gathering {
  const threads* of;
  std::size_t rank() const { return of->rank(); }
  std::size_t size() const { return of->size(); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const { of->all_gather(mine, all); }
};

TEST(communicator, exchanges_parts_with_and_without_an_all_to_all) {
  EXPECT_FALSE(communicator_ref(serial{}).exchanges());
  for (const std::size_t ranks : {1u, 2u, 5u})
    threads::run(ranks, [&](const threads& c) {
      const gathering plain{&c};
      ASSERT_TRUE(communicator_ref(c).exchanges() && !communicator_ref(plain).exchanges());
      for (const std::size_t n : {0u, 1u, 300u}) {
        guarded<std::int32_t> mine(n * ranks), all(n * ranks), other(n * ranks);
        for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<std::int32_t>(1000 * c.rank() + i);
        tigon::comm::all_to_all<std::int32_t>(c, mine, std::span(all));
        tigon::comm::all_to_all<std::int32_t>(plain, mine, std::span(other));
        for (std::size_t r = 0; r < ranks; ++r)
          for (std::size_t j = 0; j < n; ++j) {
            ASSERT_EQ(all[r * n + j], static_cast<std::int32_t>(1000 * r + c.rank() * n + j));
            ASSERT_EQ(other[r * n + j], all[r * n + j]);
          }
      }
    });
}

TEST(communicator, folds_shares_to_the_bits_of_folding_all) {
  for (const std::size_t ranks : {1u, 2u, 3u, 6u})
    threads::run(ranks, [&](const threads& c) {
      const gathering plain{&c};
      const auto value = [](std::size_t r, std::size_t j) {
        return std::ldexp(1.f + static_cast<float>((7 * r + 3 * j) % 11), static_cast<int>((r + 5 * j) % 24));
      };
      for (const std::size_t n : {1u, 5u, 64u}) {
        std::vector<float> mine(n), start(n), wanted(n);
        for (std::size_t j = 0; j < n; ++j) {
          mine[j] = value(c.rank(), j), start[j] = wanted[j] = 0.1f * static_cast<float>(j);
          for (std::size_t r = 0; r < ranks; ++r) wanted[j] += value(r, j);
        }
        for (const std::size_t block : {1u, 7u, 100u}) {
          std::vector<float> into = start, other = start, scratch(ranks * block);
          tigon::comm::reduce_in_rank_order<float>(c, mine, std::span(into), scratch, std::plus<>());
          tigon::comm::reduce_in_rank_order<float>(plain, mine, std::span(other), scratch, std::plus<>());
          ASSERT_EQ(into, wanted);
          ASSERT_EQ(other, wanted);
        }
        std::vector<float> values(n * ranks), scratch(n * ranks), part(n, 0.1f);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(c.rank(), i);
        tigon::comm::reduce_scatter_in_rank_order<float>(c, values, std::span(part), scratch, std::plus<>());
        for (std::size_t j = 0; j < n; ++j) {
          float sum = 0.1f;
          for (std::size_t r = 0; r < ranks; ++r) sum += value(r, c.rank() * n + j);
          ASSERT_EQ(part[j], sum);
        }
      }
    });
}

TEST(communicator, refuses_spans_that_do_not_fit) {
  std::vector<int> mine(3), all(4), none;
  EXPECT_TIGON_ERROR(tigon::comm::all_gather<int>(serial{}, mine, std::span(all)), shape,
                     "comm::all_gather: all is of 4 elements; expected 3");
  EXPECT_TIGON_ERROR(tigon::comm::all_to_all<int>(serial{}, mine, std::span(all)), shape,
                     "comm::all_to_all: all is of 4 elements; expected 3");
  EXPECT_TIGON_ERROR(
      tigon::comm::reduce_scatter_in_rank_order<int>(serial{}, mine, std::span(all), all, std::plus<>()), shape,
      "comm::reduce_scatter_in_rank_order: values is of 3 elements; expected 4, those of into for every rank");
  const auto reduce = [&](std::vector<int>& into, std::vector<int>& scratch) {
    tigon::comm::reduce_in_rank_order<int>(serial{}, mine, std::span(into), scratch, std::plus<>());
  };
  EXPECT_TIGON_ERROR(reduce(all, all), shape, "into is of 4 elements; expected 3");
  EXPECT_TIGON_ERROR(reduce(mine, none), shape, "scratch is of 0 elements; expected at least one for each of 1 ranks");
}

TEST(communicator, agrees_on_the_first_error) {
  for (std::size_t bad = 0; bad < 8; ++bad) {  // one bit a rank
    std::vector<std::string> said(3);
    threads::run(3, [&](const threads& c) {
      const std::size_t r = c.rank();
      try {
        const auto records = tigon::comm::agree(c, 10 * r, [&] {
          if ((bad >> r & 1) == 0) return;
          if (r == 2) throw std::bad_alloc();
          tigon::detail::fail(r == 0 ? error_code::index : error_code::shape, "bad " + std::string(1 + 100 * r, 'x'));
        });
        EXPECT_EQ(records, (std::vector<std::size_t>{0, 10, 20}));
      } catch (const tigon::error& e) {
        said[r] = e.what();
        EXPECT_EQ(e.code(), bad & 1 ? error_code::index : bad & 2 ? error_code::shape : error_code::workspace);
      }
    });
    const std::string wanted = bad == 0  ? ""
                               : bad & 1 ? "bad x (rank 0)"
                               : bad & 2 ? "bad " + std::string(101, 'x') + " (rank 1)"
                                         : "std::bad_alloc (rank 2)";
    EXPECT_EQ(said, std::vector<std::string>(3, wanted)) << bad;
  }
  EXPECT_TIGON_ERROR(tigon::comm::agree(serial{}, 0, [] { tigon::detail::fail(error_code::index, "alone"); }), index,
                     "alone");
}

TEST(threads, nobody_waits_for_a_rank_that_is_gone) {
  const auto gather = [](const threads& c) {
    std::vector<int> all(c.size());
    tigon::comm::all_gather<int>(c, std::vector{1}, std::span(all));
  };
  for (const bool throws : {false, true}) {
    std::atomic<int> refused = 0;
    const auto call = [&] {
      threads::run(3, [&](const threads& c) {
        gather(c);
        if (c.rank() == 1 && throws) tigon::detail::fail(error_code::index, "the cause");
        if (c.rank() == 1) return;
        for (int again = 0; again < 2; ++again) {
          EXPECT_TIGON_ERROR(gather(c), state, "comm::threads: a rank is gone while others wait for it");
          ++refused;
        }
        gather(c);
      });
    };
    if (throws)
      EXPECT_TIGON_ERROR(call(), index, "the cause");
    else
      EXPECT_TIGON_ERROR(call(), state, "a rank is gone");
    EXPECT_EQ(refused, 4);
  }
}

TEST(threads, refuse_sizes_that_differ) {
  threads::run(3, [&](const threads& c) {
    guarded<int> mine(c.rank() == 2 ? 5 : 4), all(3 * mine.size());
    EXPECT_TIGON_ERROR(tigon::comm::all_gather<int>(c, mine, std::span(all)), shape,
                       "expected the same size on every rank");
  });
}

TEST(threads, throw_what_was_thrown) {
  EXPECT_THROW(threads::run(2, [](const threads&) { throw 5; }), int);
  std::atomic<int> calls = 0;
  threads::run(0, [&](const threads&) { ++calls; });
  threads::run(5, [&](const threads&) { ++calls; });
  EXPECT_EQ(calls, 5);
}

TEST(threads, that_cannot_all_start_call_no_rank) {
  const std::size_t before = running_threads();
  std::atomic<int> calls = 0;
  const auto wait_for_all = [&](const threads& c) {
    ++calls;
    std::vector<int> all(c.size());
    tigon::comm::all_gather<int>(c, std::vector{1}, std::span(all));
  };
  for (long started = 0; started < 4; ++started) {
    const limited limit(threads_left, started);
    EXPECT_THROW(threads::run(4, wait_for_all), std::system_error) << started;
    EXPECT_TRUE(threads_are_gone(before)) << started;
  }
  EXPECT_THROW(threads::run(std::numeric_limits<std::size_t>::max(), wait_for_all), std::exception);
  EXPECT_EQ(calls, 0);

  if (!memory_can_run_out) return;
  long failures = 0;
  for (bool ran = false; !ran; ++failures) {
    ASSERT_LT(failures, 100);
    try {
      const limited limit(memory_left, failures);
      threads::run(4, wait_for_all);
      ran = true;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(calls, 0) << failures;
    }
    EXPECT_TRUE(threads_are_gone(before)) << failures;
  }
  EXPECT_GT(failures, 4);  // each thread needs memory
  EXPECT_EQ(calls, 4);
}

}  // namespace

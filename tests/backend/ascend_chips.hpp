// Chips of the ascend family whose ledger is kept by the test: four capacities, and two places for every tile, derived
// without a line of kernel code.
#ifndef TIGON_TESTS_BACKEND_ASCEND_CHIPS_HPP
#define TIGON_TESTS_BACKEND_ASCEND_CHIPS_HPP

#include <gtest/gtest.h>

#include <atomic>
#include <tigon/backends/ascend/backend.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/threads.hpp"

namespace tigon::test {

/// Adds up what all programs report. Buffers begin as NaN, so that a tile which was never copied in shows in results.
struct counting_ledger {
  static constexpr bool poison = true;
  struct account {
    std::atomic<std::size_t> programs, damaged, most_bytes, capacity, copied_in, copied_out;
  };
  static inline account total{};

  static void clear() {
    total.programs = total.damaged = total.most_bytes = total.capacity = total.copied_in = total.copied_out = 0;
  }
  static void note(const unified_buffer::usage& u) {
    ++total.programs;
    total.damaged += u.intact && u.bytes <= u.capacity ? 0 : 1;
    std::size_t most = total.most_bytes;
    while (most < u.bytes && !total.most_bytes.compare_exchange_weak(most, u.bytes)) {
    }
    total.capacity = u.capacity;
    total.copied_in += u.copied_in;
    total.copied_out += u.copied_out;
  }
};

/// While it lives the ledger counts; when it goes, every program has kept within its buffer, and there was one.
struct audited {
  audited() { counting_ledger::clear(); }
  audited(const audited&) = delete;
  audited& operator=(const audited&) = delete;
  TIGON_TEST_NOINLINE ~audited() {
    const auto& t = counting_ledger::total;
    EXPECT_GT(t.programs, 0u) << "nothing ran on a vector core";
    EXPECT_EQ(t.damaged, 0u) << "programs that wrote outside their tiles";
    EXPECT_LE(t.most_bytes, t.capacity);
    EXPECT_GT(t.most_bytes, 0u);
  }
};

}  // namespace tigon::test

namespace tigon::backends {
inline namespace TIGON_ABI {

/// The chip itself, watched.
struct ascend_192k : ascend {
  using parent = ascend;
  static constexpr backend_info info{"ascend_192k", {device::npu}};
  using overrides = op_list<>;
  using ledger = test::counting_ledger;
};
struct ascend_48k : ascend_192k {
  using parent = ascend_192k;
  static constexpr backend_info info{"ascend_48k", {device::npu}};
  static constexpr std::size_t tile_capacity_bits = 48 * 8192;
};
struct ascend_256k : ascend_192k {
  using parent = ascend_192k;
  static constexpr backend_info info{"ascend_256k", {device::npu}};
  static constexpr std::size_t tile_capacity_bits = 256 * 8192;
};
struct ascend_1m : ascend_192k {
  using parent = ascend_192k;
  static constexpr backend_info info{"ascend_1m", {device::npu}};
  static constexpr std::size_t tile_capacity_bits = 1024 * 8192;
};
/// Copies a block in while it computes on the one before.
struct ascend_double : ascend_192k {
  using parent = ascend_192k;
  static constexpr backend_info info{"ascend_double", {device::npu}};
  static constexpr std::size_t tile_buffers = 2;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace tigon::test {

using small_chip = backends::ascend_48k;
using usual_chip = backends::ascend_192k;
using middle_chip = backends::ascend_256k;
using large_chip = backends::ascend_1m;
using double_chip = backends::ascend_double;

/// Element types, each on one of the chips: the widest elements in the least room, the narrowest in the most.
using chip_pairs = with_engines<list<on<usual_chip, float>, on<small_chip, double>>, on<double_chip, bfloat16>,
                                on<large_chip, float16>>;

/// Every type is compared with highway, this one with generic as well: that is the same code on single numbers.
template <class T>
inline constexpr bool compared_with_generic = std::same_as<T, float>;

/// No rows; one; fewer and more than programs; rows that share a block; rows around every block of every capacity,
/// and of several blocks with a tail.
inline std::vector<shape> chip_shapes() {
  return {{0, 5},    {1, 1},    {3, 7, 3},    {9, 41},    {41, 17},   {130, 64, 5},
          {300, 3},  {41, 401}, {5, 1023, 1}, {23, 1024}, {3, 2048},  {2, 2049, 7},
          {3, 4096}, {2, 4097}, {1, 10001},   {1, 16385}, {1, 40000}, {85, 600, 11}};
}

/// Two backends, one result: equal up to one unit in the last place of 16 bits, 2^-7 and 2^-10, and to what another
/// order of sums does to f32 and f64.
inline constexpr by_type parity{.f32 = 1e-6, .bf16 = 7.9e-3, .f16 = 9.8e-4, .f64 = 2e-15};

}  // namespace tigon::test

#endif  // TIGON_TESTS_BACKEND_ASCEND_CHIPS_HPP

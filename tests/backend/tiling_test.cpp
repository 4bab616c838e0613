// Tiles by the numbers of the reference (compat) and by our own rule (strict): each vector as a constant expression and
// once more at run time.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tigon/backend/tiling.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <vector>

namespace {

using namespace tigon::tiling;

constexpr std::size_t kib = 8192;  // bits
constexpr std::size_t c0 = 192 * kib;

// Hides a constant from the compiler, so that the call behind it is made when the program runs.
budget at_run_time(budget b) {
  volatile std::size_t bits = b.capacity_bits;
  b.capacity_bits = bits;
  return b;
}

#define EXPECT_BOTH_TIMES(condition) \
  do {                               \
    static_assert(condition);        \
    EXPECT_TRUE(condition);          \
  } while (false)
// Shapes and dimensions are lists in parentheses, because braces do not hold a macro's commas together.
#define EXPECT_TILES(function, b, shapes, tiled, ...)                                                  \
  do {                                                                                                 \
    static_assert(same(function(b, TIGON_UNPACK shapes, TIGON_UNPACK tiled), __VA_ARGS__));            \
    EXPECT_TRUE(same(function(at_run_time(b), TIGON_UNPACK shapes, TIGON_UNPACK tiled), __VA_ARGS__)); \
  } while (false)
#define EXPECT_OUTCOME(function, b, shapes, tiled, outcome_)                                              \
  do {                                                                                                    \
    static_assert(function(b, TIGON_UNPACK shapes, TIGON_UNPACK tiled).what == outcome::outcome_);        \
    EXPECT_EQ(function(at_run_time(b), TIGON_UNPACK shapes, TIGON_UNPACK tiled).what, outcome::outcome_); \
  } while (false)
#define TIGON_UNPACK(...) \
  { __VA_ARGS__ }

constexpr bool same(const answer& got, std::initializer_list<extents> want) {
  if (got.what != outcome::tiles || got.count != want.size()) return false;
  for (std::size_t s = 0; s < want.size(); ++s)
    if (got[s] != want.begin()[s]) return false;
  return true;
}

constexpr budget of(ratio margin, std::size_t bytes, ratio tiles, std::size_t capacity = c0) {
  return {capacity, margin, tiles, bytes};
}
constexpr ratio most{9, 10};

TEST(tiling_compat, gives_the_numbers_of_the_reference) {
  EXPECT_TILES(compat, of({8, 10}, 2, {7}), ({4096}), ({0}), {{4096}});                                       // A1
  EXPECT_TILES(compat, of(most, 4, {3}), ({32, 128}, {32, 128}), ({0}, {0}), {{32, 128}, {32, 128}});         // A2
  EXPECT_TILES(compat, budget{c0}, ({4096}), ({0}), {{2048}});                                                // A3
  EXPECT_TILES(compat, of(most, 4, {3}), ({5000}), ({0}), {{8192}});                                          // A4
  EXPECT_TILES(compat, of(most, 4, {3}), ({128256}), ({0}), {{8192}});                                        // A5
  EXPECT_TILES(compat, of(most, 4, {3}), ({1}), ({0}), {{1}});                                                // A6
  EXPECT_TILES(compat, of(most, 4, {3}), ({0}), ({0}), {{1}});                                                // A7
  EXPECT_TILES(compat, of(most, 0, {0}), ({100000}), ({0}), {{4096}});                                        // A8
  EXPECT_TILES(compat, of(most, 4, {1}), ({1000, 100000}), ({0}), {{1, 131072}});                             // A9
  EXPECT_TILES(compat, of(most, 4, {2}), ({100, 300}), ({0, 1}), {{128, 512}});                               // A10
  EXPECT_TILES(compat, of(most, 4, {2}), ({100, 0, 300}), ({2}), {{128, 0, 512}});                            // A11
  EXPECT_OUTCOME(compat, of(most, 4, {2}), ({100, 300}), ({}), invalid);                                      // A12
  EXPECT_OUTCOME(compat, of(most, 4, {2}), ({100, 300}), ({2}), invalid);                                     // A13
  EXPECT_OUTCOME(compat, of(most, 4, {2}), ({100}, {300}), ({0}), none);                                      // A14
  EXPECT_OUTCOME(compat, of(most, 4, {2}), (), (), none);                                                     // A15
  EXPECT_OUTCOME(compat, of(most, 4, {2}), ({100, 300}), ({-1}), invalid);                                    // A16
  EXPECT_TILES(compat, of(most, 4, {2}), ({48, 96}, {12, 96}), ({0}, {0}), {{64, 128}, {16, 128}});           // A17
  EXPECT_TILES(compat, of(most, 4, {3}, 2097152), ({128256}), ({0}), {{16384}});                              // A18
  EXPECT_TILES(compat, of(most, 4, {6}, 262144), ({14336}), ({0}), {{1024}});                                 // A19
  EXPECT_TILES(compat, of(most, 4, {6}, 393216), ({14336}), ({0}), {{1024}});                                 // A20
  EXPECT_TILES(compat, of(most, 4, {8}, 16777216), ({128256}), ({0}), {{32768}});                             // A21
  EXPECT_TILES(compat, of(most, 2, {3}, 8388608), ({32, 128}, {8, 128}), ({0}, {0}), {{32, 128}, {8, 128}});  // A22
  EXPECT_TILES(compat, of(most, 4, {3}, 8), ({128}), ({0}), {{1}});                                           // A23
  EXPECT_TILES(compat, of({8, 10}, 0, {0}), ({4096}), ({0}), {{2048}});  // the defaults of A3, asked for by 0
  // A24: an entry of another kind than an index or a set of them is no argument at all.
  static_assert(!std::is_constructible_v<dims, std::vector<int>> && !std::is_convertible_v<std::vector<int>, dims>);
  EXPECT_TILES(compat, of(most, 4, {2}), ({100, 300}), ({true}), {{128, 128}});  // A25
  EXPECT_TILES(compat, of({1}, 4, {3}), ({16384}), ({0}), {{16384}});            // A26
  EXPECT_TILES(compat, of({1}, 4, {12}), ({16384}), ({0}), {{4096}});            // A27
}

// The widths and the numbers of one table row: raw quotient, cap, and the block at 1024, 3000, ..., 128256.
struct line {
  ratio margin, tiles;
  std::size_t raw, cap;
  std::size_t block[7];
};
constexpr std::size_t widths[7] = {1024, 3000, 4096, 8192, 11008, 32000, 128256};
constexpr line one_dimensional[] = {
    {{90, 100}, {3}, 14745, 8192, {1024, 4096, 4096, 8192, 8192, 8192, 8192}},  // geglu, swiglu; grpo log-softmax
    {{90, 100}, {6}, 7372, 4096, {1024, 4096, 4096, 4096, 4096, 4096, 4096}},   // their backward; rms_norm
    {{90, 100}, {8}, 5529, 4096, {1024, 4096, 4096, 4096, 4096, 4096, 4096}},   // rms_norm backward, cross entropy
    {{90, 100}, {12}, 3686, 2048, {1024, 2048, 2048, 2048, 2048, 2048, 2048}},  // fused_add_rms_norm backward
    {{85, 100}, {8}, 5222, 4096, {1024, 4096, 4096, 4096, 4096, 4096, 4096}},   // layer_norm by columns
    {{85, 100}, {10}, 4177, 4096, {1024, 4096, 4096, 4096, 4096, 4096, 4096}},  // its backward
    {{85, 100}, {6}, 6963, 4096, {1024, 4096, 4096, 4096, 4096, 4096, 4096}},   // layer_norm, whole rows
    {{80, 100}, {8}, 4915, 4096, {1024, 4096, 4096, 4096, 4096, 4096, 4096}},   // poly_norm
    {{80, 100}, {10}, 3932, 2048, {1024, 2048, 2048, 2048, 2048, 2048, 2048}},  // its backward
    {{90, 100}, {4}, 11059, 8192, {1024, 4096, 4096, 8192, 8192, 8192, 8192}},  // dyt, grpo
    {{90, 100}, {5, 2}, 17694, 16384, {1024, 4096, 4096, 8192, 16384, 16384, 16384}},  // cross entropy, plain path
    {{80, 100}, {5}, 7864, 4096, {1024, 4096, 4096, 4096, 4096, 4096, 4096}},          // tvd
    {{85, 100}, {12}, 3481, 2048, {1024, 2048, 2048, 2048, 2048, 2048, 2048}},         // attn_res
    {{85, 100}, {16}, 2611, 2048, {1024, 2048, 2048, 2048, 2048, 2048, 2048}},         // its backward
};

constexpr bool holds(const line& l, std::size_t capacity) {
  const budget b = of(l.margin, 4, l.tiles, capacity);
  if (b.elements() != l.raw || cap(b) != l.cap) return false;
  for (std::size_t i = 0; i < 7; ++i) {
    if (!same(compat(b, {{widths[i]}}, {{0}}), {{l.block[i]}})) return false;
    // In one dimension the strict rule differs in nothing, and the block is the cap where the row is wider.
    if (!same(strict(b, {{widths[i]}}, {{0}}), {{std::min(next_power_of_two(widths[i]), cap(b))}})) return false;
    if (strict(b, {{widths[i]}}, {{0}})[0] != compat(b, {{widths[i]}}, {{0}})[0]) return false;
  }
  return true;
}

TEST(tiling_compat, gives_the_blocks_of_rows) {
  static_assert(
      std::all_of(std::begin(one_dimensional), std::end(one_dimensional), [](const line& l) { return holds(l, c0); }));
  volatile std::size_t capacity = c0;
  for (const line& l : one_dimensional) EXPECT_TRUE(holds(l, capacity)) << l.tiles.n << '/' << l.tiles.d;
}

struct caps {
  ratio margin, tiles;
  std::size_t at[7];
};
constexpr std::size_t capacities[7] = {32, 48, 192, 256, 512, 1024, 2048};  // KiB
constexpr caps by_capacity[] = {
    {{9, 10}, {5, 2}, {2048, 4096, 16384, 16384, 32768, 65536, 131072}},
    {{9, 10}, {3}, {2048, 2048, 8192, 16384, 32768, 65536, 131072}},
    {{9, 10}, {4}, {1024, 2048, 8192, 8192, 16384, 32768, 65536}},
    {{9, 10}, {6}, {1024, 1024, 4096, 8192, 16384, 32768, 65536}},
    {{9, 10}, {8}, {512, 1024, 4096, 4096, 8192, 16384, 32768}},
    {{9, 10}, {12}, {512, 512, 2048, 4096, 8192, 16384, 32768}},
    {{85, 100}, {6}, {1024, 1024, 4096, 8192, 16384, 32768, 65536}},
    {{85, 100}, {8}, {512, 1024, 4096, 4096, 8192, 16384, 32768}},
    {{85, 100}, {10}, {512, 1024, 4096, 4096, 8192, 16384, 32768}},
    {{85, 100}, {12}, {512, 512, 2048, 4096, 8192, 16384, 32768}},
    {{85, 100}, {16}, {256, 512, 2048, 2048, 4096, 8192, 16384}},
    {{8, 10}, {5}, {1024, 1024, 4096, 8192, 16384, 32768, 65536}},
    {{8, 10}, {8}, {512, 1024, 4096, 4096, 8192, 16384, 32768}},
    {{8, 10}, {10}, {512, 512, 2048, 4096, 8192, 16384, 32768}},
};
constexpr bool holds(const caps& row, std::size_t i, std::size_t bits) {
  const budget b = of(row.margin, 4, row.tiles, bits);
  return cap(b) == row.at[i] && same(compat(b, {{std::size_t{1} << 40}}, {{0}}), {{row.at[i]}});
}

TEST(tiling_compat, gives_the_caps_of_other_capacities) {
  static_assert(std::all_of(std::begin(by_capacity), std::end(by_capacity), [](const caps& row) {
    for (std::size_t i = 0; i < 7; ++i)
      if (!holds(row, i, capacities[i] * kib)) return false;
    return true;
  }));
  for (const caps& row : by_capacity)
    for (std::size_t i = 0; i < 7; ++i) {
      volatile std::size_t bits = capacities[i] * kib;
      EXPECT_TRUE(holds(row, i, bits)) << row.margin.n << ' ' << row.tiles.n << " at " << capacities[i] << " KiB";
    }
}

TEST(tiling_compat, gives_the_blocks_of_rows_and_columns) {
  // kl_div
  EXPECT_TILES(compat, of(most, 4, {6}), ({4096, 128}), ({0}), {{32, 128}});
  EXPECT_TILES(compat, of(most, 4, {3}), ({4096, 128}), ({0}), {{64, 128}});
  EXPECT_TILES(compat, of(most, 4, {5, 2}), ({4096, 128}), ({0}), {{128, 128}});
  EXPECT_TILES(compat, of(most, 4, {6}), ({20, 128}), ({0}), {{32, 128}});
  // rope, mrope
  EXPECT_TILES(compat, of(most, 2, {3}), ({32, 128}, {8, 128}), ({0}, {0}), {{32, 128}, {8, 128}});
  EXPECT_TILES(compat, of(most, 4, {3}), ({32, 128}, {8, 128}), ({0}, {0}), {{32, 128}, {8, 128}});
  EXPECT_TILES(compat, of(most, 2, {3}), ({128, 256}, {8, 256}), ({0}, {0}), {{64, 256}, {8, 256}});
  EXPECT_TILES(compat, of(most, 4, {3}), ({128, 256}, {8, 256}), ({0}, {0}), {{32, 256}, {8, 256}});
  // llama4_rope
  EXPECT_TILES(compat, of(most, 2, {20}), ({64, 128}, {8, 128}), ({0}, {0}), {{32, 128}, {8, 128}});
  EXPECT_TILES(compat, of(most, 4, {20}), ({32, 128}, {8, 128}), ({0}, {0}), {{16, 128}, {8, 128}});
  EXPECT_TILES(compat, of(most, 2, {20}), ({128, 256}, {8, 256}), ({0}, {0}), {{16, 256}, {8, 256}});
  EXPECT_TILES(compat, of(most, 4, {20}), ({128, 256}, {8, 256}), ({0}, {0}), {{8, 256}, {8, 256}});
  // layer_norm
  EXPECT_TILES(compat, of({85, 100}, 4, {6}), ({8, 512}), ({0}), {{8, 512}});
  EXPECT_TILES(compat, of({85, 100}, 4, {6}), ({8, 1024}), ({0}), {{4, 1024}});
  EXPECT_TILES(compat, of({85, 100}, 4, {6}), ({8, 2048}), ({0}), {{2, 2048}});
  EXPECT_TILES(compat, of({85, 100}, 4, {6}), ({8, 4096}), ({0}), {{1, 4096}});
  EXPECT_TILES(compat, of({85, 100}, 4, {6}), ({8, 8192}), ({0}), {{1, 8192}});
  EXPECT_TILES(compat, of({85, 100}, 4, {4}), ({8, 512}), ({0}), {{8, 512}});
  EXPECT_TILES(compat, of({85, 100}, 4, {4}), ({8, 1024}), ({0}), {{8, 1024}});
  EXPECT_TILES(compat, of({85, 100}, 4, {4}), ({8, 2048}), ({0}), {{4, 2048}});
  EXPECT_TILES(compat, of({85, 100}, 4, {4}), ({8, 4096}), ({0}), {{2, 4096}});
  EXPECT_TILES(compat, of({85, 100}, 4, {4}), ({8, 8192}), ({0}), {{1, 8192}});
}

TEST(tiling_compat, gives_the_blocks_of_neighborhood_attention) {
  // Queries of at most 64 rows of the scores or of the head, by at most 32 of its columns.
  struct {
    std::size_t seq_len, head_dim;
    extents first, second;
  } constexpr cases[] = {{64, 64, {64, 32}, {64, 32}},
                         {512, 64, {64, 32}, {64, 32}},
                         {2048, 128, {64, 32}, {64, 32}},
                         {32, 16, {32, 16}, {16, 16}}};
  for (const auto& c : cases) {
    const std::size_t k = std::min<std::size_t>(c.head_dim, 32);
    EXPECT_TRUE(same(
        compat(of({85, 100}, 4, {3}),
               {{std::min<std::size_t>(c.seq_len, 64), k}, {std::min<std::size_t>(c.head_dim, 64), k}}, {{0}, {0}}),
        {c.first, c.second}));
  }
  EXPECT_TILES(compat, of({85, 100}, 4, {3}), ({64, 32}, {64, 32}), ({0}, {0}), {{64, 32}, {64, 32}});
  EXPECT_TILES(compat, of({85, 100}, 4, {3}), ({32, 16}, {16, 16}), ({0}, {0}), {{32, 16}, {16, 16}});
}

// The blocks of the hyper-connections' kernels: rows by what keeps all cores busy, then columns by a query.
struct blocks {
  std::size_t rows, cols, outputs = 0;
  friend constexpr bool operator==(const blocks&, const blocks&) = default;
};
constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

constexpr blocks matrix_step(std::size_t tokens, std::size_t streams, std::size_t channels, std::size_t cores) {
  const std::size_t outputs = streams * streams + 2 * streams, depth = streams * channels;
  const std::size_t bm = std::min<std::size_t>(next_power_of_two(outputs), 64);
  std::size_t bn = 128;
  while (bn > 4 && ceil_div(tokens, bn) * ceil_div(outputs, bm) < cores) bn /= 2;
  const answer a = compat(of(most, 4, {2 * (bn + bm), bn}), {{bn, depth}}, {{1}});
  return {bn, std::min({std::max<std::size_t>(32, a[0][1]), depth, std::size_t{256}}), bm};
}

constexpr blocks stream_step(std::size_t tokens, std::size_t channels, std::size_t cores, ratio tiles) {
  for (std::size_t bn = 32;; bn /= 2) {
    const answer a = compat(of(most, 4, tiles), {{bn, channels}}, {{1}});
    const std::size_t bc = std::max<std::size_t>(32, std::min(a[0][1], channels));
    if (bn == 1 || ceil_div(tokens, bn) * ceil_div(channels, bc) >= cores) return {bn, bc};
  }
}

TEST(tiling_compat, gives_the_blocks_of_hyper_connections) {
  for (const std::size_t cores : {20u, 40u}) {
    EXPECT_EQ(matrix_step(8192, 4, 4096, cores), (blocks{128, 128, 32}));
    EXPECT_EQ(matrix_step(128, 4, 4096, cores), (blocks{4, 256, 32}));
    EXPECT_EQ(matrix_step(16, 2, 32, cores), (blocks{4, 64, 8}));
    EXPECT_EQ(matrix_step(8, 4, 64, cores), (blocks{4, 256, 32}));
    struct {
      std::size_t tokens, streams, channels;
      blocks pre, forward, backward;
    } const cases[] = {{8192, 4, 4096, {32, 256}, {32, 128}, {32, 64}},
                       {128, 4, 4096, {32, 256}, {32, 128}, {32, 64}},
                       {16, 2, 32, {1, 32}, {1, 32}, {1, 32}},
                       {8, 4, 64, {1, 64}, {1, 64}, {1, 64}}};
    for (const auto& c : cases) {
      EXPECT_EQ(stream_step(c.tokens, c.channels, cores, {4}), c.pre);
      EXPECT_EQ(stream_step(c.tokens, c.channels, cores, {6}), c.forward);
      EXPECT_EQ(stream_step(c.tokens, c.channels, cores, {2 * (c.streams + 4)}), c.backward);
    }
  }
  EXPECT_BOTH_TIMES((matrix_step(8192, 4, 4096, 20) == blocks{128, 128, 32}));
  EXPECT_BOTH_TIMES((matrix_step(1024, 8, 2048, 40) == blocks{32, 128, 64}));
  EXPECT_BOTH_TIMES((matrix_step(1024, 8, 2048, 20) == blocks{64, 128, 64}));
  EXPECT_BOTH_TIMES((stream_step(128, 4096, 40, {4}) == blocks{32, 256}));
}

TEST(tiling_strict, keeps_what_is_live_within_the_budget) {
  EXPECT_TILES(strict, of(most, 4, {2}), ({100, 300}), ({0, 1}), {{32, 512}});
  EXPECT_OUTCOME(strict, of(most, 4, {1}), ({1000, 100000}), ({0}), no_fit);
  EXPECT_TILES(strict, of(most, 4, {3}), ({200, 96}), ({0}), {{64, 128}});
  EXPECT_TILES(strict, of(most, 4, {3}), ({200, 65}), ({0}), {{64, 128}});
  EXPECT_TILES(strict, of(most, 4, {3}), ({5000}), ({0}), {{8192}});
  EXPECT_TILES(strict, of(most, 4, {6}, 32 * kib), ({14336}), ({0}), {{1024}});
  EXPECT_TILES(strict, of(most, 4, {8}, 32 * kib), ({512, 512}), ({0, 1}), {{1, 512}});
  EXPECT_TILES(strict, of({8, 10}, 2, {7}, 1024 * kib), ({4096}), ({0}), {{4096}});
  // The dimension that is listed first is cut first.
  EXPECT_TILES(strict, of(most, 4, {8}, 32 * kib), ({512, 512}), ({1, 0}), {{512, 1}});
  // Mistakes are told as by compat; a single element that exceeds the capacity is none.
  EXPECT_OUTCOME(strict, of(most, 4, {2}), ({100, 300}), ({}), invalid);
  EXPECT_OUTCOME(strict, of(most, 4, {2}), ({100, 300}), ({-1}), invalid);
  EXPECT_OUTCOME(strict, of(most, 4, {2}), ({100}, {300}), ({0}), none);
  EXPECT_OUTCOME(strict, of(most, 4, {3}, 8), ({128}), ({0}), no_fit);
  static_assert(cap(of(most, 4, {3}, 8)) == 0);
  static_assert(fixed(of(most, 4, {2}), {100, 300}, {0, 1}) == extents{32, 512});
}

// The rules once more in plain real numbers, on many shapes.
TEST(tiling, agrees_with_its_definition_in_real_numbers) {
  std::mt19937_64 generator(1);
  const auto draw = [&](std::size_t low, std::size_t high) { return low + generator() % (high - low + 1); };
  constexpr ratio margins[] = {{8, 10}, {85, 100}, {9, 10}, {1, 1}};
  constexpr ratio lives[] = {{1}, {5, 2}, {3}, {16, 5}, {6}, {12}, {20}};
  std::size_t fitted = 0, refused = 0;
  for (int round = 0; round < 20000; ++round) {
    const budget b = of(margins[draw(0, 3)], draw(0, 1) != 0 ? 4 : 8, lives[draw(0, 6)], draw(1, 512) * 4096);
    const extents shape{draw(0, 300), draw(1, 1500)};
    const std::size_t which = draw(0, 2);
    const dims cut = which == 2 ? dims{0, 1} : dims{which};
    const double safe = std::floor(static_cast<double>(b.capacity_bits) * static_cast<double>(b.margin.n) /
                                   static_cast<double>(b.margin.d));
    const double live = static_cast<double>(b.tiles.n) / static_cast<double>(b.tiles.d);
    const double bits = 8 * static_cast<double>(b.element_bytes);

    double unit = 1;
    for (std::size_t i = 0; i < 2; ++i)
      if (!cut.contains(i) && shape[i] != 0) unit *= static_cast<double>(shape[i]);
    // A hair, because the quotient may be a whole number.
    double f = 1;
    while (2 * f * live * unit * bits <= safe * (1 + 1e-12)) f *= 2;
    const answer like_reference = compat(b, {shape}, {cut});
    ASSERT_TRUE(like_reference);
    for (std::size_t i = 0; i < 2; ++i) {
      const double padded = shape[i] == 0 ? 0 : std::exp2(std::ceil(std::log2(static_cast<double>(shape[i]))));
      ASSERT_EQ(like_reference[0][i], cut.contains(i) ? std::max(1.0, std::min(padded, f)) : padded);
    }

    const answer ours = strict(b, {shape}, {cut});
    double held = live * bits, least = held;
    for (std::size_t i = 0; i < 2; ++i) {
      const double padded = static_cast<double>(std::max<std::size_t>(next_power_of_two(shape[i]), 1));
      if (!cut.contains(i)) least *= padded;
      held *= ours ? std::max(1.0, static_cast<double>(ours[0][i])) : 1;
    }
    ASSERT_EQ(static_cast<bool>(ours), least <= safe * (1 + 1e-12));
    if (!ours) {
      ++refused;
      continue;
    }
    ++fitted;
    ASSERT_LE(held, safe * (1 + 1e-12));
    // And it is the largest: a tile that was cut would not fit at twice its size.
    bool was_cut = false;
    for (std::size_t i = 0; i < 2; ++i) was_cut = was_cut || ours[0][i] < next_power_of_two(shape[i]);
    ASSERT_TRUE(!was_cut || 2 * held > safe);
  }
  EXPECT_GT(fitted, 1000u);
  EXPECT_GT(refused, 1000u);
}

struct polish;  // an operator
struct chip : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"chip", {tigon::device::npu}};
};
struct larger_chip : chip {
  using parent = chip;
  static constexpr tigon::backend_info info{"larger_chip", {tigon::device::npu}};
  static constexpr std::size_t tile_capacity_bits = 192 * kib;
};
struct finer_chip : larger_chip {
  using parent = larger_chip;
  static constexpr tigon::backend_info info{"finer_chip", {tigon::device::npu}};
};

}  // namespace

template <>
struct tigon::tile_rule<polish, tigon::tiling::pass::forward, chip> {
  static constexpr tiling::rule value{.tiles = {6}, .floor = 256};
};
template <>
struct tigon::tile_rule<polish, tigon::tiling::pass::forward, finer_chip> {
  static constexpr tiling::rule value{.tiles = {12}};
};

namespace {

TEST(tile_rule, comes_from_the_nearest_backend_and_the_capacity_from_the_most_derived) {
  static_assert(tigon::block_of<polish, pass::forward, chip, float>() == 1024);
  static_assert(tigon::block_of<polish, pass::forward, larger_chip, float>() == 4096);
  static_assert(tigon::block_of<polish, pass::forward, larger_chip, double>() == 2048);
  static_assert(tigon::block_of<polish, pass::forward, finer_chip, float>() == 2048);
  EXPECT_EQ((tigon::rule_for<polish, pass::forward, larger_chip>.floor), 256u);
  EXPECT_EQ((tigon::rule_for<polish, pass::forward, finer_chip>.floor), 1u);
}

}  // namespace

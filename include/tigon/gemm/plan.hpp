// How the packed product (gemm/packed.hpp) is cut: its tuning, and the plan. What decides the order of sums, blocks and
// chunks of depth, depends on the shape and the tuning alone; how the tasks are cut, on the number of workers as well.
#ifndef TIGON_GEMM_PLAN_HPP
#define TIGON_GEMM_PLAN_HPP

#include <tigon/gemm/tiles.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tigon {

/// Tuning of the packed product. Changes the speed and, through the order of sums, the last bits.
///
/// f32, 16 threads of an Intel Xeon with AVX-512 (family 6, model 207), products of a Llama with hidden 768 in units of
/// PyTorch 2.11's in the same run: 2048 x 768 x 768 1.3 (parts of 256 rows, one segment: 0.6), 768 x 768 x 2048 1.0
/// (0.6), 768 x 4096 x 2048 1.2 (1.1). One thread, Zen 4: parts of 32 rows or 48 columns are as fast as longer ones
/// within 2 %, segments of 192 within 3 %, of 96 within 7 %.
///
/// Speed of long tasks without segments relative to short ones, calls alternating: medians of 8 shapes of a Llama with
/// hidden 576 on Intel with AVX-512 (family 6, model 207), f32: one worker 1.08 (hidden 768: 1.03), two 1.06, four
/// 1.02, six 1.00; with 16 workers tasks without segments reached 0.9 to 1. AMX, bf16: one worker 1.09, two 1.06, four
/// 1.02. AVX-512 with bf16 instructions, bf16: 1.00 to 1.02.
struct gemm_tuning {
  std::size_t depth = 512;         ///< most depth of a block
  std::size_t rows_per_task = 32;  ///< most rows of a in a task, where b is shared
  std::size_t cols_per_task = 48;  ///< most columns of b in a task, where a is shared
  std::size_t few_workers = 4;     ///< up to so many, tasks are long where each of them has four
  std::size_t long_rows = 96;      ///< rows_per_task of long tasks, which take all that is shared
  std::size_t long_cols = 96;      ///< cols_per_task of long tasks
  std::size_t segment = 192;       ///< least rows (columns) of the shared operand in a task; a third for 64 tasks
  std::size_t shared_rows = 1024;  ///< most rows of a shared a
  std::size_t shared_cols = 2048;  ///< most columns of a shared b
  std::size_t shared_bytes = std::size_t{6} << 20;  ///< most bytes of shared panels
  std::size_t carry_bytes = std::size_t{8} << 20;   ///< most bytes of sums kept between chunks, for a 16-bit c
  friend constexpr bool operator==(gemm_tuning, gemm_tuning) = default;
};

namespace packed {
inline namespace TIGON_ABI {

template <class P, class T>
struct plan {
  static constexpr std::size_t U = tile_shape<P>::rows, W = tile_shape<P>::cols;
  using A = typename P::value;

  std::size_t m, n, k;
  std::size_t block;    ///< depth of a block, a multiple of four words (less only at the end)
  std::size_t chunk;    ///< depth of a chunk, a multiple of block
  bool share_a;         ///< the shared operand is a, else b
  std::size_t shared;   ///< rows of a (columns of b) that are shared at a time
  std::size_t part;     ///< most columns of b (rows of a) in a task
  std::size_t segment;  ///< rows of a (columns of b) in a task, of those that are shared
  std::size_t super;    ///< columns of b (rows of a) between two packings of the shared operand
  bool share_both;      ///< the parts are packed by all workers as well, a chunk of depth at a time
  std::size_t takers;   ///< so many workers are to have parts of the same extent each
  bool carry;           ///< sums are kept between chunks
  bool total;           ///< sums of plain_blocks blocks are added to compensated totals

  static constexpr std::size_t plain_blocks = plain_blocks_of<P>;
  static constexpr std::size_t words_of(bool a) { return a ? words_of_a<P> : 1; }

  /// Workers that a plan is cut for where their number must not matter.
  static constexpr std::size_t any_workers = SIZE_MAX;

  constexpr plan(std::size_t rows, std::size_t cols, std::size_t depth, gemm_tuning t,
                 std::size_t workers = any_workers)
      : m(rows), n(cols), k(depth) {
    const std::size_t quantum = 4 * P::group;
    block = std::max(quantum, block_of(k, t));
    share_a = m <= n;
    shared = share_a ? std::min(round_up(m, U), round_up(t.shared_rows, U))
                     : std::min(round_up(n, W), round_up(t.shared_cols, W));
    shared = std::max(shared, share_a ? U : W);
    const std::size_t step_bytes = shared * words_of(share_a) * sizeof(typename P::word);
    const std::size_t fit = t.shared_bytes / (block / P::group * step_bytes);
    chunk = std::min(std::max<std::size_t>(1, fit), std::max<std::size_t>(1, ceil_div(k, block))) * block;
    part = has_enough(long_part(t), t, workers) ? long_part(t) : short_part(t);
    carry = chunk < k && (!std::same_as<T, A> || ceil_div(k, chunk) > plain_chunks_of<P>);
    takers = carry || workers > t.few_workers ? 1 : workers;
    total = ceil_div(carry ? k : chunk, block) > plain_blocks;
    super = extent();
    if (carry) super = std::max(part, t.carry_bytes / (shared * sizeof(A)) / part * part);
    super = std::min(super, round_up(std::max<std::size_t>(extent(), 1), part));
    const std::size_t count = std::min(shared_extent(), shared);
    share_both = all_part_words() * sizeof(typename P::word) <= t.shared_bytes;
    segment = has_enough(part, t, workers)
                  ? shared
                  : segment_of(count, ceil_div(extent(), part), share_both ? t.segment / 2 : t.segment);
    share_both = share_both && segment < count;
  }

  constexpr std::size_t long_part(gemm_tuning t) const {
    return share_a ? round_up(t.long_cols, W) : round_up(t.long_rows, U);
  }
  /// Small products: at least eight tasks where the extent allows.
  constexpr std::size_t short_part(gemm_tuning t) const {
    const std::size_t eighth = std::max(part_unit(), round_up(ceil_div(extent(), 8), part_unit()));
    const std::size_t most = share_a ? t.cols_per_task : t.rows_per_task;
    return std::min(std::max(part_unit(), most / part_unit() * part_unit()), eighth);
  }
  /// Whether each of a few workers has four parts of `length`.
  constexpr bool has_enough(std::size_t length, gemm_tuning t, std::size_t workers) const {
    return workers <= t.few_workers && ceil_div(extent(), length) / 4 >= workers;
  }

  /// Segments, so that 64 workers share the tasks evenly: at least one task each, where segments do not become shorter
  /// than a third of `least`, and several of at least `least`. A task packs its part, which is to cost little beside
  /// the product with a segment.
  constexpr std::size_t segment_of(std::size_t count, std::size_t parts, std::size_t least) const {
    if (parts == 0) return shared;
    const std::size_t one_each = std::min(ceil_div(64, parts), 3 * count / least);
    const std::size_t several = std::min(ceil_div(512, parts), count / least);
    const std::size_t segments = std::max({std::size_t{1}, one_each, several});
    return std::clamp(round_up(ceil_div(count, segments), shared_unit()), shared_unit(), shared);
  }

  /// Depth of a block: of k alone, so that a packed b serves every m.
  static constexpr std::size_t block_of(std::size_t k, gemm_tuning t) {
    const std::size_t quantum = 4 * P::group, most = round_up(t.depth * P::group, quantum);
    return round_up(ceil_div(k, std::max<std::size_t>(1, ceil_div(k, most))), quantum);
  }
  constexpr std::size_t extent() const { return share_a ? n : m; }
  constexpr std::size_t shared_extent() const { return share_a ? m : n; }
  constexpr std::size_t shared_unit() const { return share_a ? U : W; }
  constexpr std::size_t part_unit() const { return share_a ? W : U; }

  /// Parts of `all` columns of b (rows of a): as long as they may be; or even, as far as whole tiles allow, and as many
  /// for each of a few workers. Otherwise one of two workers would have 4 of 7.3 parts.
  struct cut_into_parts {
    std::size_t all, count, units, unit;  ///< units: what the parts would have, were all of them whole
    constexpr std::size_t begin(std::size_t index) const { return std::min(all, units * index / count * unit); }
  };
  constexpr cut_into_parts parts_of(std::size_t all) const {
    const std::size_t unit = part_unit(), count = ceil_div(all, part);
    if (takers == 1 || part < 4 * unit) return {all, count, count * (part / unit), unit};
    // Columns of b lie in its rows: two cache lines of them at a time, as a processor fetches them.
    const std::size_t even = share_a && part % (2 * unit) == 0 ? 2 * unit : unit, units = ceil_div(all, even);
    return {all, std::min(round_up(count, takers), units), units, even};
  }

  std::size_t shared_words() const { return shared * words_of(share_a) * (chunk / P::group); }
  constexpr std::size_t all_part_words() const {
    return round_up(super, part_unit()) * words_of(!share_a) * (chunk / P::group);
  }
  /// Words of the parts that a worker, or with share_both all of them, have at a time.
  std::size_t part_words() const {
    return share_both ? all_part_words() : part * words_of(!share_a) * (block / P::group);
  }
  std::size_t part_copies(std::size_t workers) const { return share_both ? 1 : workers; }
  std::size_t segments() const { return ceil_div(shared, segment); }
  /// Sums of one task, tile after tile, between blocks.
  std::size_t part_sums() const { return part * segment * (total ? 3 : 1); }
  std::size_t scratch_parts(std::size_t workers) const {
    if (block >= k) return 0;
    return carry ? ceil_div(super, part) * segments() : workers;
  }
  std::size_t workspace_bytes(std::size_t workers, bool packed_b) const {
    using word = typename P::word;
    std::size_t bytes = workspace::bytes_for<A>(workspace::padded<A>(part_sums()), scratch_parts(workers));
    if (share_a || !packed_b) bytes += workspace::bytes_for<word>(shared_words());
    if (!share_a || !packed_b)
      bytes += workspace::bytes_for<word>(workspace::padded<word>(part_words()), part_copies(workers));
    return bytes;
  }
};

/// Bytes that a product takes on at most `workers` workers, with an epilogue or without.
template <class P, class T>
std::size_t most_workspace_bytes(std::size_t m, std::size_t n, std::size_t k, gemm_tuning t, std::size_t workers,
                                 bool packed_b) {
  const plan<P, T> many(m, n, k, t);
  std::size_t bytes = many.workspace_bytes(workers, packed_b);
  for (const std::size_t part : {many.long_part(t), many.short_part(t)})
    if (const std::size_t few = std::min({workers, t.few_workers, ceil_div(many.extent(), part) / 4}); few != 0)
      bytes = std::max(bytes, plan<P, T>(m, n, k, t, few).workspace_bytes(few, packed_b));
  return bytes;
}

template <class P>
constexpr std::size_t packed_words(std::size_t k, std::size_t n) {
  return round_up(n, tile_shape<P>::cols) * ceil_div(k, P::group);
}

}  // namespace TIGON_ABI
}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_PLAN_HPP

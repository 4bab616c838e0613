// A matrix product on packed operands, over the lanes of any engine.
//
// One operand, the shared one (the smaller extent of c), is packed once by all workers, a chunk of depth at a time. The
// other is packed by each task for itself, a block of depth at a time, while the memory of the block after it is
// prefetched. Sums stay in registers over a block and in a tile-sized scratch between blocks, so c is written once a chunk.
//
//   depth    the extent k that is summed over
//   chunk    depth whose shared panels fit into `shared_bytes`
//   block    depth of one pass of the tile kernel, at most `depth`: three vectors of b and eight rows of a stream
//            through L1
//   word     what is multiplied at a time: one element, or `group` elements that follow each other in depth
//   panel    tile-high rows of a, or tile-wide columns of b, depth-major: word (p, i) at p * width + i
//   tile     rows x vectors of sums in registers
//   part     rows or columns of the operand that is not shared, packed by a task
//   segment  columns or rows of the shared operand that the task multiplies its part by
//   carry    sums that are kept in memory from chunk to chunk
//   total    a compensated sum of the sums of many blocks
#ifndef TIGON_GEMM_PACKED_HPP
#define TIGON_GEMM_PACKED_HPP

#include <tigon/gemm/tiles.hpp>
#include <tigon/simd/totals.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tigon {

/// Tuning of the packed product. Changes the speed and, through the order of sums, the last bits.
///
/// f32, 16 threads of an Intel Xeon with AVX-512 (family 6, model 207), products of a Llama with hidden 768 in units of
/// PyTorch 2.11's in the same run: 2048 x 768 x 768 1.3 (parts of 256 rows, one segment: 0.6), 768 x 768 x 2048 1.0
/// (0.6), 768 x 4096 x 2048 1.2 (1.1). One thread, Zen 4: parts of 32 rows or 48 columns are as fast as longer ones
/// within 2 %, segments of 192 within 3 %, of 96 within 7 %.
struct gemm_tuning {
  std::size_t depth = 512;         ///< most depth of a block
  std::size_t rows_per_task = 32;  ///< rows of a in a task, where b is shared
  std::size_t cols_per_task = 48;  ///< columns of b in a task, where a is shared
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
  std::size_t part;     ///< columns of b (rows of a) in a task
  std::size_t segment;  ///< rows of a (columns of b) in a task, of those that are shared
  std::size_t super;    ///< columns of b (rows of a) between two packings of the shared operand
  bool carry;           ///< sums are kept between chunks
  bool total;           ///< sums of plain_blocks blocks are added to compensated totals

  static constexpr std::size_t plain_blocks = plain_blocks_of<P>;

  constexpr plan(std::size_t rows, std::size_t cols, std::size_t depth, gemm_tuning t) : m(rows), n(cols), k(depth) {
    const std::size_t quantum = 4 * P::group;
    block = std::max(quantum, block_of(k, t));
    share_a = m <= n;
    shared = share_a ? std::min(round_up(m, U), round_up(t.shared_rows, U))
                     : std::min(round_up(n, W), round_up(t.shared_cols, W));
    shared = std::max(shared, share_a ? U : W);
    const std::size_t fit = t.shared_bytes / (shared * (block / P::group) * sizeof(typename P::word));
    chunk = std::min(std::max<std::size_t>(1, fit), std::max<std::size_t>(1, ceil_div(k, block))) * block;
    part = share_a ? round_up(t.cols_per_task, W) : round_up(t.rows_per_task, U);
    // Small products: at least eight tasks where the extent allows.
    const std::size_t extent = share_a ? n : m, unit = share_a ? W : U;
    part = std::min(part, std::max(unit, round_up(ceil_div(extent, 8), unit)));
    carry = chunk < k && (!std::same_as<T, A> || ceil_div(k, chunk) > plain_blocks);
    total = ceil_div(carry ? k : chunk, block) > plain_blocks;
    super = extent;
    if (carry) super = std::max(part, t.carry_bytes / (shared * sizeof(A)) / part * part);
    super = std::min(super, round_up(std::max<std::size_t>(extent, 1), part));
    segment = segment_of(std::min(share_a ? m : n, shared), ceil_div(extent, part), t);
  }

  /// Every task packs its part, so the shared operand is cut only as far as needed for 64 workers to share the tasks
  /// evenly: at least one task each, and several where segments stay long enough that packing costs little beside them.
  constexpr std::size_t segment_of(std::size_t count, std::size_t parts, gemm_tuning t) const {
    if (carry || parts == 0) return shared;  // carried sums stay with their part
    const std::size_t one_each = std::min(ceil_div(64, parts), 3 * count / t.segment);
    const std::size_t several = std::min(ceil_div(512, parts), count / t.segment);
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

  std::size_t shared_words() const { return shared * (chunk / P::group); }
  std::size_t part_words() const { return part * (block / P::group); }
  /// Sums of one task, tile after tile, between blocks.
  std::size_t part_sums() const { return part * segment * (total ? 3 : 1); }
  std::size_t scratch_parts(std::size_t workers) const {
    if (block >= k) return 0;
    return carry ? ceil_div(super, part) : workers;
  }
  std::size_t workspace_bytes(std::size_t workers, bool packed_b) const {
    using word = typename P::word;
    std::size_t bytes = workspace::bytes_for<A>(workspace::padded<A>(part_sums()), scratch_parts(workers));
    if (share_a || !packed_b) bytes += workspace::bytes_for<word>(shared_words());
    if (!share_a || !packed_b) bytes += workspace::bytes_for<word>(workspace::padded<word>(part_words()), workers);
    return bytes;
  }
};

template <class P>
constexpr std::size_t packed_words(std::size_t k, std::size_t n) {
  return round_up(n, tile_shape<P>::cols) * ceil_div(k, P::group);
}

/// All of op(b), block of depth after block of depth.
template <class P, element T>
void pack_operand(source<T> b, std::size_t k, std::size_t n, gemm_tuning t, typename P::word* to, context& ctx) {
  constexpr std::size_t W = tile_shape<P>::cols;
  if (k == 0 || n == 0) return;
  const std::size_t block = plan<P, typename P::value>::block_of(k, t), panels = 4;
  const std::size_t groups = ceil_div(n, W * panels), width = round_up(n, W);
  ctx.executor().run(ceil_div(k, block) * groups, [&](std::size_t task, std::size_t) {
    const std::size_t p = task / groups * block, j = task % groups * W * panels, depth = std::min(block, k - p);
    pack_b<P>(b, j, std::min(W * panels, n - j), p, depth, to + p / P::group * width + j * ceil_div(depth, P::group));
  });
}

// ---- The product

template <class P, element TA, element TB, element TC, class Epilogue>
class product {
  using A = typename P::value;
  using word = typename P::word;
  using V = typename P::sums;
  static constexpr std::size_t U = tile_shape<P>::rows, W = tile_shape<P>::cols, L = P::size;

 public:
  product(const plan<P, TC>& p, source<TA> a, source<TB> b, const word* packed_b, in_vector<TC> bias, matrix_view<TC> c,
          const Epilogue& epilogue, gemm_detail::scaling<A> scale)
      : plan_(p), a_(a), b_(b), packed_b_(packed_b), bias_(bias.data), c_(c), epilogue_(epilogue), scale_(scale) {}

  void run(context& ctx) {
    if (plan_.m == 0 || plan_.n == 0) return;
    workspace::frame frame(ctx.workspace());
    const executor_ref executor = ctx.executor();
    const std::size_t workers = executor.workers();
    if (plan_.share_a || packed_b_ == nullptr) shared_ = frame.template take<word>(plan_.shared_words());
    if (!plan_.share_a || packed_b_ == nullptr) {
      part_step_ = workspace::padded<word>(plan_.part_words());
      parts_ = frame.template take<word>(part_step_ * workers);
    }
    if (const std::size_t parts = plan_.scratch_parts(workers); parts != 0) {
      sums_step_ = workspace::padded<A>(plan_.part_sums());
      sums_ = frame.template take<A>(sums_step_ * parts);
    }
    for (shared_first_ = 0; shared_first_ < plan_.shared_extent(); shared_first_ += plan_.shared) {
      shared_count_ = std::min(plan_.shared, plan_.shared_extent() - shared_first_);
      for (super_first_ = 0; super_first_ < plan_.extent(); super_first_ += plan_.super) {
        const std::size_t count = std::min(plan_.super, plan_.extent() - super_first_);
        chunk_first_ = 0;
        do {
          chunk_depth_ = std::min(plan_.chunk, plan_.k - chunk_first_);
          if (shared_ != nullptr) pack_shared(executor);
          const std::size_t segments = ceil_div(shared_count_, plan_.segment);
          executor.run(ceil_div(count, plan_.part) * segments, [&](std::size_t task, std::size_t worker) {
            compute(task / segments, task % segments * plan_.segment, worker);
          });
          chunk_first_ += plan_.chunk;
        } while (chunk_first_ < plan_.k);
      }
    }
  }

 private:
  static std::size_t length_of(std::size_t depth) { return ceil_div(depth, P::group); }

  void pack_shared(const executor_ref& executor) {
    const std::size_t unit = plan_.shared_unit(), span = unit * std::max<std::size_t>(1, 96 / unit);
    const std::size_t groups = ceil_div(shared_count_, span), width = round_up(shared_count_, unit);
    executor.run(groups * ceil_div(chunk_depth_, plan_.block), [&](std::size_t task, std::size_t) {
      const std::size_t p = task / groups * plan_.block, i = task % groups * span;
      const std::size_t depth = std::min(plan_.block, chunk_depth_ - p), count = std::min(span, shared_count_ - i);
      word* to = shared_ + p / P::group * width + i * length_of(depth);
      if (plan_.share_a)
        pack_a<P>(a_, shared_first_ + i, count, chunk_first_ + p, depth, to);
      else
        pack_b<P>(b_, shared_first_ + i, count, chunk_first_ + p, depth, to);
    });
  }

  /// The panels of a packed b from column `first` on, for the block of `depth` at p.
  const word* in_packed_b(std::size_t first, std::size_t p, std::size_t depth) const {
    return packed_b_ + p / P::group * round_up(plan_.n, W) + first * length_of(depth);
  }

  /// The segment from `from` on of what is shared, times a part.
  void compute(std::size_t part_index, std::size_t from, std::size_t worker) const {
    const std::size_t first = super_first_ + part_index * plan_.part;
    const std::size_t count = std::min(plan_.part, plan_.extent() - first);
    const std::size_t shared_width = round_up(shared_count_, plan_.shared_unit());
    const std::size_t shared_first = shared_first_ + from, shared_count = std::min(plan_.segment, shared_count_ - from);
    const bool last_chunk = chunk_first_ + chunk_depth_ >= plan_.k;
    word* part = parts_ == nullptr ? nullptr : parts_ + worker * part_step_;
    A* sums = sums_ == nullptr ? nullptr : sums_ + (plan_.carry ? part_index : worker) * sums_step_;
    std::size_t p = 0;
    do {
      const std::size_t depth = std::min(plan_.block, chunk_depth_ - p), at = chunk_first_ + p;
      const bool starts = plan_.carry ? at == 0 : p == 0;
      const bool ends = p + depth >= chunk_depth_ && (last_chunk || !plan_.carry);
      const word* shared = shared_ == nullptr ? in_packed_b(shared_first, at, depth)
                                              : shared_ + p / P::group * shared_width + from * length_of(depth);
      const std::size_t index = (plan_.carry ? at : p) / plan_.block;
      const bool folds =
          plan_.total && index != 0 && (index % plan_.plain_blocks == 0 || (ends && index > plan_.plain_blocks));
      if (folds)
        add_to_total(sums, plan_.share_a ? shared_count : count, plan_.share_a ? count : shared_count,
                     index == plan_.plain_blocks, ends);
      const bool from_zero = starts || (folds && !ends);
      if (plan_.share_a) {
        if (packed_b_ == nullptr) pack_b<P>(b_, first, count, at, depth, part);
        prefetch_cursor cursor = packed_b_ == nullptr ? after(b_, first, p) : prefetch_cursor();
        const word* columns = packed_b_ == nullptr ? part : in_packed_b(first, at, depth);
        block({shared_first, shared_count, first, count}, {shared, columns, depth}, sums, from_zero, ends, cursor);
      } else {
        pack_a<P>(a_, first, count, at, depth, part);
        prefetch_cursor cursor = after(a_, first, p);
        block({first, count, shared_first, shared_count}, {part, shared, depth}, sums, from_zero, ends, cursor);
      }
      p += plan_.block;
    } while (p < chunk_depth_);
    if (!last_chunk) return;
    const matrix_view<TC> view = plan_.share_a ? c_.rows_from(shared_first, shared_count).cols_from(first, count)
                                               : c_.rows_from(first, count).cols_from(shared_first, shared_count);
    epilogue_(view, plan_.share_a ? shared_first : first, plan_.share_a ? first : shared_first, worker);
  }

  /// Adds the sums of the tiles of rows x cols to their totals, behind them; at the end the sums are the totals.
  void add_to_total(A* sums, std::size_t rows, std::size_t cols, bool first, bool last) const {
    const std::size_t n = round_up(rows, U) * round_up(cols, W), step = plan_.part * plan_.segment;
    if (last)
      simd::add_to_total<V, simd::sums_after::total>(sums, sums + step, sums + 2 * step, n, first);
    else
      simd::add_to_total<V, simd::sums_after::same>(sums, sums + step, sums + 2 * step, n, first);
  }

  /// Prefetches what this worker most likely packs next: the next block of this part, or the first of the next part.
  template <element T>
  prefetch_cursor after(source<T> s, std::size_t first, std::size_t p) const {
    p += plan_.block;
    if (p >= chunk_depth_) {
      p = 0;
      first += plan_.part;
    }
    if (first >= plan_.extent()) return {};
    return {s, first, std::min(plan_.part, plan_.extent() - first), chunk_first_ + p,
            std::min(plan_.block, chunk_depth_ - p)};
  }

  /// Rows [row, row + rows) by columns [col, col + cols) of c.
  struct rectangle {
    std::size_t row, rows, col, cols;
  };
  /// Panels of both operands, one block of depth.
  struct panels {
    const word *a, *b;
    std::size_t depth;
  };
  /// One block of depth of a rectangle of c.
  void block(rectangle of, panels in, A* sums, bool starts, bool ends, prefetch_cursor& cursor) const {
    const bool adds = !plan_.carry && chunk_first_ != 0;  // c already holds the chunks before
    const block_of_c<P, TC> t{c_.rows_from(of.row, of.rows).cols_from(of.col, of.cols),
                              in.a,
                              in.b,
                              length_of(in.depth),
                              sums,
                              starts,
                              ends,
                              {scale_.alpha, adds ? A(1) : scale_.beta},
                              bias_ == nullptr || adds ? nullptr : bias_ + of.col};
    if constexpr (by_tile_registers<P>)
      P::block(t, cursor);
    else
      tiles_of(t, cursor);
  }
  void tiles_of(const block_of_c<P, TC>& t, prefetch_cursor& cursor) const {
    const std::size_t rows = t.c.rows, cols = t.c.cols, length = t.length;
    A* sums = t.sums;
    alignas(64) A buffer[U * W];
    for (std::size_t j = 0; j < cols; j += W) {
      const std::size_t width = std::min(W, cols - j), vectors = ceil_div(width, L);
      const TC* bias_here = t.bias == nullptr ? nullptr : t.bias + j;
      for (std::size_t i = 0; i < rows; i += U) {
        const std::size_t height = std::min(U, rows - i);
        const A* start = t.starts ? nullptr : sums;
        TC* c = t.c.row(i) + j;
        const word *pa = t.a + i * length, *pb = t.b + j * length;
        tile_target<A> to{sums, nullptr, 0, t.scale, nullptr};
        if (!t.ends) {
          any_tile<P>(height, vectors, length, pa, pb, start, to, cursor);
        } else {
          if constexpr (std::same_as<TC, A>) {
            if (width == vectors * L && std::has_single_bit(height)) {
              to = {nullptr, c, t.c.row_stride, t.scale, bias_here};
              any_tile<P>(height, vectors, length, pa, pb, start, to, cursor);
              sums += sums == nullptr ? 0 : U * W;
              continue;
            }
          }
          to.scratch = buffer;
          any_tile<P>(height, vectors, length, pa, pb, start, to, cursor);
          for (std::size_t y = 0; y < height; ++y)
            gemm_detail::finish<V>(buffer + y * W, width, t.scale, bias_here, c + y * t.c.row_stride);
        }
        sums += sums == nullptr ? 0 : U * W;
      }
    }
  }

  const plan<P, TC>& plan_;
  source<TA> a_;
  source<TB> b_;
  const word* packed_b_;
  const TC* bias_;
  matrix_view<TC> c_;
  const Epilogue& epilogue_;
  gemm_detail::scaling<A> scale_;

  word *shared_ = nullptr, *parts_ = nullptr;
  A* sums_ = nullptr;
  std::size_t part_step_ = 0, sums_step_ = 0;
  std::size_t shared_first_ = 0, shared_count_ = 0, super_first_ = 0, chunk_first_ = 0, chunk_depth_ = 0;
};

}  // namespace TIGON_ABI

/// The tuning values of a product: those of its policy, the backend's own `gemm`, or the defaults.
template <class B, class P>
consteval gemm_tuning tuning_of() {
  if constexpr (by_tile_registers<P>)
    return P::tuning.product;
  else if constexpr (requires {
                       { B::gemm } -> std::convertible_to<gemm_tuning>;
                     })
    return B::gemm;
  else
    return {};
}

/// A kernel of op::gemm by packed panels. Policy<B, TA, TB> names the words and how they are multiplied.
template <template <class, class, class> class Policy>
struct gemm_by_panels : tigon::detail::gemm_kernel {
  template <backend B, element TA, element TB, element TC>
  static constexpr gemm_cut cut_of(std::size_t m, std::size_t n, std::size_t k) {
    using P = Policy<B, TA, TB>;
    const plan<P, TC> p(m, n, k, tuning_of<B, P>());
    return {tile_shape<P>::rows, tile_shape<P>::cols, p.block, p.chunk, p.shared, p.segment, p.part, p.share_a};
  }

  template <backend B, element TA, element TB>
  static constexpr std::size_t packed_bytes(std::size_t k, std::size_t n) {
    using P = Policy<B, TA, TB>;
    return packed_words<P>(k, n) * sizeof(typename P::word);
  }

  template <backend B, element TA, element TB>
  static void pack(matrix_view<const TB> b, transpose t, std::byte* to, context& ctx) {
    using P = Policy<B, TA, TB>;
    pack_operand<P>(source<TB>{b.data, b.row_stride, t == transpose::yes}, gemm_detail::rows_of(b, t),
                    gemm_detail::cols_of(b, t), tuning_of<B, P>(), reinterpret_cast<typename P::word*>(to), ctx);
  }

  template <backend B, element TA, element TB, element TC>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t k, std::size_t workers, bool packed_b) {
    using P = Policy<B, TA, TB>;
    return plan<P, TC>(m, n, k, tuning_of<B, P>()).workspace_bytes(workers, packed_b);
  }

  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    using P = Policy<B, TA, TB>;
    using A = typename P::value;
    const plan<P, TC> p(c.rows, c.cols, gemm_detail::cols_of(a, opt.a), tuning_of<B, P>());
    product<P, TA, TB, TC, Epilogue>(p, {a.data, a.row_stride, opt.a == transpose::no},
                                     {b.view.data, b.view.row_stride, opt.b == transpose::yes},
                                     reinterpret_cast<const typename P::word*>(b.packed), bias, c, epilogue,
                                     {static_cast<A>(opt.alpha), static_cast<A>(opt.beta)})
        .run(ctx);
  }
};

}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_PACKED_HPP

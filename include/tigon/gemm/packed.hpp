// A matrix product on packed operands, over the lanes of any engine.
//
// One operand, the shared one (the smaller extent of c), is packed once by all workers, a chunk of depth at a time. The
// other is packed by each task for itself, a block of depth at a time, while the memory of the block after it is
// prefetched; where several tasks need the same part of it and memory permits, all workers pack it too. Sums stay in
// registers over a block and in a tile-sized scratch between blocks, so c is written once a chunk.
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

#include <tigon/gemm/plan.hpp>
#include <tigon/simd/totals.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tigon {

namespace packed {
inline namespace TIGON_ABI {

/// All of op(b), block of depth after block of depth.
template <class P, element T>
void pack_operand(source<T> b, std::size_t k, std::size_t n, gemm_tuning t, typename P::word* to, context& ctx) {
  constexpr std::size_t W = tile_shape<P>::cols;
  if (k == 0) return;
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
      parts_ = frame.template take<word>(part_step_ * plan_.part_copies(workers));
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
          pack_for_all(executor, count);
          const std::size_t segments = ceil_div(shared_count_, plan_.segment);
          const auto parts = plan_.parts_of(count);
          executor.run(parts.count * segments, [&](std::size_t task, std::size_t worker) {
            compute(parts, task / segments, task % segments, worker);
          });
          chunk_first_ += plan_.chunk;
        } while (chunk_first_ < plan_.k);
      }
    }
  }

 private:
  static std::size_t length_of(std::size_t depth) { return ceil_div(depth, P::group); }

  /// Rows of a, or columns of b, that are packed for all workers: block after block of a chunk.
  struct rows_for_all {
    bool of_a;
    std::size_t first, count;
    word* to;

    std::size_t unit() const { return of_a ? U : W; }
    std::size_t span() const { return unit() * std::max<std::size_t>(1, 96 / unit()); }  ///< of a task
    std::size_t spans() const { return to == nullptr ? 0 : ceil_div(count, span()); }
  };

  /// Packs the shared operand and, where they are shared too, `count` rows (columns) of the other.
  void pack_for_all(const executor_ref& executor, std::size_t count) {
    const rows_for_all shared{plan_.share_a, shared_first_, shared_count_, shared_};
    // Of a chunk that is the whole depth they serve all of what is shared.
    const bool again = shared_first_ == 0 || plan_.chunk < plan_.k;
    const rows_for_all parts{!plan_.share_a, super_first_, count, plan_.share_both && again ? parts_ : nullptr};
    const std::size_t groups = shared.spans() + parts.spans();
    executor.run(groups * ceil_div(chunk_depth_, plan_.block), [&](std::size_t task, std::size_t) {
      const std::size_t p = task / groups * plan_.block, group = task % groups;
      pack_span(group < shared.spans() ? shared : parts, group < shared.spans() ? group : group - shared.spans(), p);
    });
  }
  void pack_span(const rows_for_all& rows, std::size_t span, std::size_t p) const {
    const std::size_t depth = std::min(plan_.block, chunk_depth_ - p), i = span * rows.span();
    const std::size_t count = std::min(rows.span(), rows.count - i);
    const std::size_t before = p / P::group * round_up(rows.count, rows.unit()) + i * length_of(depth);
    word* to = rows.to + before * plan_.words_of(rows.of_a);
    if (rows.of_a)
      pack_a<P>(a_, rows.first + i, count, chunk_first_ + p, depth, to);
    else
      pack_b<P>(b_, rows.first + i, count, chunk_first_ + p, depth, to);
  }

  /// The panels of a packed b from column `first` on, for the block of `depth` at p.
  const word* in_packed_b(std::size_t first, std::size_t p, std::size_t depth) const {
    return packed_b_ + p / P::group * round_up(plan_.n, W) + first * length_of(depth);
  }

  /// A segment of what is shared, times a part.
  void compute(const auto& parts, std::size_t part_index, std::size_t segment_index, std::size_t worker) const {
    const std::size_t begin = parts.begin(part_index), count = parts.begin(part_index + 1) - begin;
    const std::size_t first = super_first_ + begin, from = segment_index * plan_.segment;
    const std::size_t shared_words = plan_.words_of(plan_.share_a);
    const std::size_t shared_width = round_up(shared_count_, plan_.shared_unit()) * shared_words;
    const std::size_t shared_first = shared_first_ + from, shared_count = std::min(plan_.segment, shared_count_ - from);
    const bool last_chunk = chunk_first_ + chunk_depth_ >= plan_.k;
    A* sums = sums_ == nullptr
                  ? nullptr
                  : sums_ + (plan_.carry ? part_index * plan_.segments() + segment_index : worker) * sums_step_;
    std::size_t p = 0;
    do {
      const std::size_t depth = std::min(plan_.block, chunk_depth_ - p), at = chunk_first_ + p;
      const bool starts = plan_.carry ? at == 0 : p == 0;
      const bool ends = p + depth >= chunk_depth_ && (last_chunk || !plan_.carry);
      const word* shared = shared_ == nullptr
                               ? in_packed_b(shared_first, at, depth)
                               : shared_ + p / P::group * shared_width + from * shared_words * length_of(depth);
      const std::size_t index = (plan_.carry ? at : p) / plan_.block;
      const bool folds =
          plan_.total && index != 0 && (index % plan_.plain_blocks == 0 || (ends && index > plan_.plain_blocks));
      if (folds)
        add_to_total(sums, plan_.share_a ? shared_count : count, plan_.share_a ? count : shared_count,
                     index == plan_.plain_blocks, ends);
      const bool from_zero = starts || (folds && !ends);
      prefetch_cursor cursor;
      const word* part = part_of(first, count, p, depth, worker, cursor);
      if (plan_.share_a)
        block({shared_first, shared_count, first, count}, {shared, part, depth}, sums, from_zero, ends, cursor);
      else
        block({first, count, shared_first, shared_count}, {part, shared, depth}, sums, from_zero, ends, cursor);
      p += plan_.block;
    } while (p < chunk_depth_);
    if (!last_chunk) return;
    const matrix_view<TC> view = plan_.share_a ? c_.rows_from(shared_first, shared_count).cols_from(first, count)
                                               : c_.rows_from(first, count).cols_from(shared_first, shared_count);
    epilogue_(view, plan_.share_a ? shared_first : first, plan_.share_a ? first : shared_first, worker);
  }

  /// The panels of a part for the block of `depth` at p of this chunk; the cursor gets what to prefetch meanwhile.
  const word* part_of(std::size_t first, std::size_t count, std::size_t p, std::size_t depth, std::size_t worker,
                      prefetch_cursor& cursor) const {
    const std::size_t at = chunk_first_ + p;
    if (parts_ == nullptr) return in_packed_b(first, at, depth);
    if (plan_.share_both) {
      const std::size_t all = std::min(plan_.super, plan_.extent() - super_first_);
      const std::size_t before = p / P::group * round_up(all, plan_.part_unit());
      return parts_ + (before + (first - super_first_) * length_of(depth)) * plan_.words_of(!plan_.share_a);
    }
    word* part = parts_ + worker * part_step_;
    if (depth == 0) return part;  // an operand may be null
    if (plan_.share_a) {
      pack_b<P>(b_, first, count, at, depth, part);
      cursor = after(b_, first, count, p);
    } else {
      pack_a<P>(a_, first, count, at, depth, part);
      cursor = after(a_, first, count, p);
    }
    return part;
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
  prefetch_cursor after(source<T> s, std::size_t first, std::size_t count, std::size_t p) const {
    p += plan_.block;
    if (p >= chunk_depth_) {
      p = 0;
      first += count;
    }
    if (first >= plan_.extent()) return {};
    return {s, first, std::min(count, plan_.extent() - first), chunk_first_ + p,
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
            if (width == vectors * L && height == tile_height<U>(height)) {
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
  else if constexpr (by_blocks<P>)
    return P::tuning;
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
    static_assert(tigon::detail::loops_on_host<B>());
    using P = Policy<B, TA, TB>;
    pack_operand<P>(source<TB>{b.data, b.row_stride, t == transpose::yes}, gemm_detail::rows_of(b, t),
                    gemm_detail::cols_of(b, t), tuning_of<B, P>(), reinterpret_cast<typename P::word*>(to), ctx);
  }

  template <backend B, element TA, element TB, element TC>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t k, std::size_t workers, bool packed_b) {
    using P = Policy<B, TA, TB>;
    return most_workspace_bytes<P, TC>(m, n, k, tuning_of<B, P>(), workers, packed_b);
  }

  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    static_assert(tigon::detail::loops_on_host<B>());
    using P = Policy<B, TA, TB>;
    using A = typename P::value;
    // The parts that an epilogue sees are the same for any number of workers.
    const std::size_t workers =
        std::same_as<Epilogue, no_epilogue> ? ctx.executor().workers() : plan<P, TC>::any_workers;
    const std::size_t k = gemm_detail::cols_of(a, opt.a);
    // A packed b is cut by its own depth.
    plan<P, TC> p(std::max(c.rows, opt.cut_as.rows), c.cols, b.packed != nullptr ? k : std::max(k, opt.cut_as.depth),
                  tuning_of<B, P>(), workers);
    p.m = c.rows, p.k = k;
    product<P, TA, TB, TC, Epilogue>(p, {a.data, a.row_stride, opt.a == transpose::no},
                                     {b.view.data, b.view.row_stride, opt.b == transpose::yes},
                                     reinterpret_cast<const typename P::word*>(b.packed), bias, c, epilogue,
                                     {static_cast<A>(opt.alpha), static_cast<A>(opt.beta)})
        .run(ctx);
  }
};

/// A kernel of op::gemm whose calls go to another one for each pair of types: Provider<TA, TB>.
template <template <class, class> class Provider>
struct gemm_by_types : tigon::detail::gemm_kernel {
  template <backend B, element TA, element TB, element TC>
  static constexpr gemm_cut cut_of(std::size_t m, std::size_t n, std::size_t k) {
    return Provider<TA, TB>::template cut_of<B, TA, TB, TC>(m, n, k);
  }
  template <backend B, element TA, element TB>
  static constexpr std::size_t packed_bytes(std::size_t k, std::size_t n) {
    return Provider<TA, TB>::template packed_bytes<B, TA, TB>(k, n);
  }
  template <backend B, element TA, element TB>
  static void pack(matrix_view<const TB> b, transpose t, std::byte* to, context& ctx) {
    Provider<TA, TB>::template pack<B, TA, TB>(b, t, to, ctx);
  }
  template <backend B, element TA, element TB, element TC>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t k, std::size_t workers, bool packed_b) {
    return Provider<TA, TB>::template workspace_bytes<B, TA, TB, TC>(m, n, k, workers, packed_b);
  }
  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    Provider<TA, TB>::template forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }
};

}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_PACKED_HPP

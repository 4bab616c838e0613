// The driver that also runs kernels which are written row by row (for_rows, rows/row.hpp): the same functions, whose
// loops over columns go block by block through the buffer.
//
//   using tiles = ub::rows_on_tiles<B, op::group_norm, tiling::pass::forward>;
//   kernel<op::group_norm, backends::generic>::forward<tiles, T>(...)
//
// The buffer is cut into as many tiles as the rule counts live ones. A loop copies a block of every operand in, unless
// a tile holds it, computes, and copies the blocks of its outputs out; a block stays in its tile until that is the one
// which was used least recently. Scratch rows are memory behind the buffer. What a kernel reads or writes as a single
// number (at, put) passes by the buffer, as a scalar unit's numbers do.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_ROW_LOOPS_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_ROW_LOOPS_HPP

#include <tigon/backends/ascend/unified_buffer/row_programs.hpp>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

/// The tiles of a core, each with a block of columns of any operand.
template <class Plan>
class recent_blocks {
  using A = typename Plan::accumulator;
  static constexpr std::size_t count = Plan::rule.tiles.n / Plan::rule.tiles.d * Plan::buffers;
  struct one {
    std::byte* data;
    std::uintptr_t from = 0;  ///< the memory of what is there
    std::size_t bytes = 0, used = 0;
  };

 public:
  TIGON_INLINE explicit recent_blocks(vector_core<Plan>& core) : core_(core) {
    [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      const auto tiles = core.place((static_cast<void>(k), scratch<A>{})...);
      ((tile_[k].data = reinterpret_cast<std::byte*>(std::get<k>(tiles).data)), ...);
    }(std::make_index_sequence<count>{});
  }

  /// A block of an operand in its tile.
  template <class T>
  TIGON_INLINE vector_view<const T> fetch(vector_view<const T> from) {
    static_assert(sizeof(T) <= sizeof(A));
    one& to = tile_for(from);
    if (to.bytes == 0) {
      hold(to, from);
      tile<vector_view<const T>> block{from, reinterpret_cast<T*>(to.data)};
      core_.shape(1, from.size, {1, from.size, 1});
      core_.fetch(block, evict::normally);  // a part of a row, or a parameter: a loop does not say which
    }
    return {in_tile(to, from), from.size};
  }
  /// The tile of a block that will be written.
  template <class T>
  TIGON_INLINE vector_view<T> place(vector_view<T> to) {
    static_assert(sizeof(T) <= sizeof(A));
    one& in = tile_for(to);
    forget(to, &in);
    if (in.bytes == 0) hold(in, to);
    return {in_tile(in, to), to.size};
  }
  template <class T>
  TIGON_INLINE void store(vector_view<T> from, vector_view<T> to) {
    tile<vector_view<T>> block{to, from.data};
    core_.shape(1, to.size, {1, to.size, 1});
    core_.store(block);
  }
  /// No tile but `kept` has anything of this memory any more.
  template <class T>
  TIGON_INLINE void forget(vector_view<T> memory, const one* kept = nullptr) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data), end = begin + memory.size * sizeof(T);
    for (one& t : tile_)
      if (&t != kept && end > t.from && begin < t.from + t.bytes) t.bytes = 0;
  }

 private:
  /// The tile that holds this memory, or the one that was used least recently, emptied.
  template <class T>
  TIGON_INLINE one& tile_for(vector_view<T> memory) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data), end = begin + memory.size * sizeof(T);
    one* oldest = tile_;
    for (one& t : tile_) {
      if (t.from <= begin && end <= t.from + t.bytes) return t.used = ++clock_, t;
      if (t.used < oldest->used) oldest = &t;
    }
    oldest->bytes = 0, oldest->used = ++clock_;
    return *oldest;
  }
  template <class T>
  static TIGON_INLINE void hold(one& t, vector_view<T> memory) {
    t.from = reinterpret_cast<std::uintptr_t>(memory.data), t.bytes = memory.size * sizeof(T);
  }
  template <class T>
  static TIGON_INLINE std::remove_const_t<T>* in_tile(const one& t, vector_view<T> memory) {
    return reinterpret_cast<std::remove_const_t<T>*>(t.data + (reinterpret_cast<std::uintptr_t>(memory.data) - t.from));
  }

  vector_core<Plan>& core_;
  one tile_[count];
  std::size_t clock_ = 0;
};

/// A block of an operand or output, as a loop takes it.
template <class Operand>
struct block_of_operand;
template <class T>
struct block_of_operand<matrix_view<T>> {
  using output = vector_view<T>;
  using input = vector_view<const T>;
};
template <class T>
struct block_of_operand<vector_view<T>> : block_of_operand<matrix_view<T>> {};
template <class T>
struct block_of_operand<simd::rows_of<T>> : block_of_operand<matrix_view<T>> {};
template <class Output>
struct block_of_operand<simd::often_zero<Output>> : block_of_operand<Output> {};
template <class Operand>
struct block_of_operand<simd::cached<Operand>> : block_of_operand<Operand> {};
template <class Operand>
struct block_of_operand<simd::read_again<Operand>> : block_of_operand<Operand> {};
template <class A>
struct block_of_operand<constant<A>> {
  using input = constant<A>;
};

/// One row, or a part of one, as simd::row_worker is. With whole blocks, all of the block in which a part lies is
/// copied in, and stays for the other parts.
template <class Plan, bool WholeBlocks = false>
class row_on_tiles {
  using B = typename Plan::backend;
  using A = typename Plan::accumulator;
  using lanes = simd::row_worker<B, A>;
  using blocks = recent_blocks<Plan>;

 public:
  std::size_t i, cols;

  TIGON_INLINE row_on_tiles(blocks& tiles, std::size_t row, std::size_t width, A* scratch = nullptr,
                            std::size_t stride = 0)
      : i(row), cols(width), tiles_(&tiles), scratch_(scratch), stride_(stride) {}

  TIGON_INLINE bool first() const { return true; }
  template <class S>
  TIGON_INLINE void save(S& to, std::type_identity_t<S> value) const {
    lanes(i, cols).save(to, value);
  }
  TIGON_INLINE void sync() const {}
  template <class S, std::size_t N>
  TIGON_INLINE auto array() const {
    return lanes(i, cols).template array<S, N>();
  }
  TIGON_INLINE row_on_tiles part(std::size_t first, std::size_t width) const {
    row_on_tiles row = *this;
    row.first_ = first, row.cols = width;
    return row;
  }
  TIGON_INLINE vector_view<A> scratch(std::size_t k) const { return {scratch_ + k * stride_, cols}; }

  template <class M>
  TIGON_INLINE auto at(M m, std::size_t j) const {
    return lanes(i, cols).at(m, j);
  }
  template <class T>
  TIGON_INLINE void put(matrix_view<T> m, std::size_t j, accumulator_t<T> value) const {
    put(vector_view<T>{m.row(i), m.cols}, j, value);
  }
  template <class T>
  TIGON_INLINE void put(vector_view<T> v, std::size_t j, accumulator_t<T> value) const {
    lanes(i, cols).put(v, j, value);
    tiles_->forget(vector_view<T>{v.data + j, 1});
  }

  template <class... X, class... Y, class F>
  TIGON_INLINE void map(simd::reads<X...> in, simd::writes<Y...> out, F f) const {
    each_block(in, out, [=](auto row, auto x, auto y) TIGON_LAMBDA { row.map(x, y, f); });
  }
  template <class... X, class F>
  TIGON_INLINE auto sum(simd::reads<X...> in, F f) const {
    using total = decltype(lanes(0, 0).sum(std::declval<simd::reads<input_of<X>...>>(), f));
    return sum_of<total>(in, simd::writes<>(), [=](auto row, auto x, auto) TIGON_LAMBDA { return row.sum(x, f); });
  }
  template <class... X, class... Y, class F>
  TIGON_INLINE auto map_sum(simd::reads<X...> in, simd::writes<Y...> out, F f) const {
    using total = decltype(lanes(0, 0).map_sum(std::declval<simd::reads<input_of<X>...>>(),
                                               std::declval<simd::writes<output_of<Y>...>>(), f));
    return sum_of<total>(in, out, [=](auto row, auto x, auto y) TIGON_LAMBDA { return row.map_sum(x, y, f); });
  }
  template <class... X, class F>
  TIGON_INLINE auto max(simd::reads<X...> in, F f) const {
    auto top = -std::numeric_limits<A>::infinity();
    each_block(in, simd::writes<>(), [&](auto row, auto x, auto) TIGON_LAMBDA { top = math::max(top, row.max(x, f)); });
    return top;
  }

 private:
  template <class X>
  using input_of = typename block_of_operand<X>::input;
  template <class Y>
  using output_of = typename block_of_operand<Y>::output;

  // The memory of n columns from column j on.
  template <class T>
  TIGON_INLINE vector_view<T> memory(matrix_view<T> m, std::size_t j, std::size_t n) const {
    return {m.row(i) + first_ + j, n};
  }
  template <class T>
  TIGON_INLINE vector_view<T> memory(vector_view<T> v, std::size_t j, std::size_t n) const {
    return {v.data + first_ + j, n};
  }
  template <class T>
  TIGON_INLINE vector_view<T> memory(simd::rows_of<T> r, std::size_t j, std::size_t n) const {
    return memory(r.part, j, n);
  }
  template <class Operand>
  TIGON_INLINE auto memory(simd::cached<Operand> y, std::size_t j, std::size_t n) const {
    return memory(y.operand, j, n);
  }
  template <class Output>
  TIGON_INLINE output_of<Output> memory(simd::often_zero<Output> y, std::size_t j, std::size_t n) const {
    return memory(y.output, j, n);
  }
  static TIGON_INLINE std::size_t width_of(const auto& operand) {
    if constexpr (requires { operand.row_stride; })
      return operand.cols;
    else if constexpr (requires { operand.part; })
      return operand.part.cols;
    else
      return operand.size;
  }
  template <class X>
  TIGON_INLINE input_of<X> input(X x, std::size_t j, std::size_t n) const {
    if constexpr (WholeBlocks) {
      const std::size_t at = first_ + j, begin = at / Plan::block * Plan::block;
      if (at + n <= begin + Plan::block) {
        const input_of<X> block(part(begin, cols).memory(x, 0, std::min(Plan::block, width_of(x) - begin)));
        return {tiles_->fetch(block).data + (at - begin), n};
      }
    }
    return tiles_->fetch(input_of<X>(memory(x, j, n)));
  }
  template <class Operand>
  TIGON_INLINE input_of<Operand> input(simd::read_again<Operand> x, std::size_t j, std::size_t n) const {
    return input(x.operand, j, n);
  }
  template <class Operand>
  TIGON_INLINE input_of<Operand> input(simd::cached<Operand> x, std::size_t j, std::size_t n) const {
    return input(x.operand, j, n);
  }
  template <class T>
  TIGON_INLINE constant<T> input(constant<T> c, std::size_t, std::size_t) const {
    return c;
  }

  // g(lanes, operands, outputs) for every block of columns.
  template <class... X, class... Y, class G>
  TIGON_INLINE void each_block(simd::reads<X...> in, simd::writes<Y...> out, G g) const {
    static_assert(sizeof...(X) + sizeof...(Y) <= Plan::rule.tiles.n / Plan::rule.tiles.d,
                  "tigon: this kernel has more live tiles than the operator's tile_rule counts");
    for (std::size_t j = 0; j < cols; j += Plan::block) {
      const std::size_t n = std::min(Plan::block, cols - j);
      const auto x = std::apply(
          [&](auto... operand) TIGON_LAMBDA { return std::tuple<input_of<X>...>{input(operand, j, n)...}; }, in.x);
      const auto to = std::apply(
          [&](auto... output) TIGON_LAMBDA { return std::tuple<output_of<Y>...>{memory(output, j, n)...}; }, out.y);
      const auto y = std::apply(
          [&](auto... output) TIGON_LAMBDA { return std::tuple<output_of<Y>...>{tiles_->place(output)...}; }, to);
      g(lanes(i, n), std::apply([](auto... v) TIGON_LAMBDA { return simd::reads<input_of<X>...>(v...); }, x),
        std::apply([](auto... v) TIGON_LAMBDA { return simd::writes<output_of<Y>...>(v...); }, y));
      [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
        (tiles_->store(std::get<k>(y), std::get<k>(to)), ...);
      }(std::make_index_sequence<sizeof...(Y)>{});
    }
  }
  // Sums of blocks, added up in f64.
  template <class Total, class In, class Out, class G>
  TIGON_INLINE Total sum_of(In in, Out out, G g) const {
    std::array<double, sizeof(Total) / sizeof(A)> total{};
    each_block(in, out, [&](auto row, auto x, auto y) TIGON_LAMBDA { add_part(total, g(row, x, y)); });
    return as_sum<Total>(total);
  }

  blocks* tiles_;
  A* scratch_;
  std::size_t stride_, first_ = 0;
};

/// on_tiles, and kernels written row by row too.
template <backend B, class Op, tiling::pass P, bool WholeBlocks = false>
struct rows_on_tiles : on_tiles<B, Op, P> {
  using parent = B;
  using overrides = op_list<>;
  struct rows : on_tiles<B, Op, P>::rows {
    using row_loops = void;

    template <class A, class F>
    static void for_rows(context& ctx, std::size_t rows, std::size_t cols, simd::row_loop how, F fn) {
      const std::size_t stride = workspace::padded<A>(cols);
      workspace::frame frame(ctx.workspace());
      A* const scratch =
          how.scratch == 0 ? nullptr : frame.template take<A>(ctx.executor().workers() * how.scratch * stride);
      using plan = unified_buffer::plan<B, Op, P, A>;
      for_programs<plan>(ctx, rows, plan::programs, [=](auto& core, std::size_t, auto items) TIGON_LAMBDA {
        recent_blocks<plan> tiles(core);
        A* const own = scratch + core.worker * how.scratch * stride;
        items([&](std::size_t i) TIGON_LAMBDA { fn(row_on_tiles<plan, WholeBlocks>(tiles, i, cols, own, stride)); });
      });
    }
  };
};

constexpr row_tuning with_block_cols(row_tuning row, std::size_t cols) {
  row.block_cols = cols;
  return row;
}
/// rows_on_tiles, with accumulators of type A, for kernels that cut a row into parts which are read several times
/// (columns_per_block): a part is a block, and what is summed up in shorter ones is copied in by blocks.
template <backend B, class Op, tiling::pass P, class A>
struct row_parts_on_tiles : rows_on_tiles<B, Op, P, true> {
  using parent = B;
  using overrides = op_list<>;
  static constexpr row_tuning row = with_block_cols(B::row, plan<B, Op, P, A>::block);
};

/// An operator's own kernel, written row by row, with its rows on tiles.
template <class Op>
struct kernel_of_rows_on_tiles : kernel<Op, backends::generic> {
  using lanes = kernel<Op, backends::generic>;

  template <backend B, element T, class... Argument>
  static void forward(Argument&&... argument) {
    lanes::template forward<rows_on_tiles<B, Op, tiling::pass::forward>, T>(argument...);
  }
  template <backend B, element T, class... Argument>
  static void backward(Argument&&... argument) {
    lanes::template backward<rows_on_tiles<B, Op, tiling::pass::backward>, T>(argument...);
  }
};

/// The same with the parts of its rows.
template <class Op>
struct kernel_of_row_parts_on_tiles : kernel<Op, backends::generic> {
  using lanes = kernel<Op, backends::generic>;

  template <backend B, element T, class... Argument>
  static void forward(Argument&&... argument) {
    lanes::template forward<row_parts_on_tiles<B, Op, tiling::pass::forward, accumulator_t<T>>, T>(argument...);
  }
  template <backend B, element T, class... Argument>
  static void backward(Argument&&... argument) {
    lanes::template backward<row_parts_on_tiles<B, Op, tiling::pass::backward, accumulator_t<T>>, T>(argument...);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_ROW_LOOPS_HPP

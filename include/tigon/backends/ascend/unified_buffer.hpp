// A vector core's scratch memory and the loops over tiles in it: copy a block of every operand in, run row programs on
// the copies, copy the results out.
//
//   ub::for_row_blocks<plan>(ctx, x.rows, x.cols, plan::cut_of(x.cols),
//       [=](auto& core, auto& xt, auto& yt) {                       // for every block of rows
//         core.pass(ub::reads(xt), ub::writes(yt), [=] TIGON_LAMBDA(auto row, auto xv, auto yv) {
//           row.map(tigon::reads(xv), tigon::writes(yv), [](auto v) { return v + v; });          // for every row of every block of columns
//         });
//       },
//       x, y);
//
// A core is played by the thread that runs a program. Programs are as many as the backend's cores and the operator's
// rule say, and which blocks a program works on depends on shapes alone, so results do not depend on the number of
// threads. All tiles of a kernel exist at the same time, with a guard zone behind each of them; that they fit is known
// to the compiler, and every program reports to the backend's ledger.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP

#include <tigon/backend/tiling.hpp>
#include <tigon/core/division.hpp>
#include <tigon/rows/gradients.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

/// What one program did with its core's buffer.
struct usage {
  std::size_t bytes = 0, capacity = 0;        ///< of all tiles and guard zones, of the buffer
  std::size_t copied_in = 0, copied_out = 0;  ///< bytes
  bool intact = true;                         ///< no guard zone was written to
};

/// The ledger of a backend that states none. It cannot throw: programs run on any thread.
struct abort_on_damage {
  static constexpr bool poison = false;  ///< fill the buffer with NaN before every program
  static void note(const usage& u) {
    if (u.intact && u.bytes <= u.capacity) return;
    std::fprintf(stderr, "tigon: a kernel wrote outside its tiles in a unified buffer of %zu bytes\n", u.capacity);
    std::abort();
  }
};

/// Bytes between tiles, and around the buffer.
inline constexpr std::size_t guard_bytes = 64;

/// The unified buffer of the core that this thread plays.
template <std::size_t Capacity>
std::byte* this_core() {
  struct alignas(guard_bytes) buffer {
    std::byte bytes[Capacity + 2 * guard_bytes];
  };
  static thread_local buffer own;
  return own.bytes;
}

// Operands beside matrices, vectors and constants.

/// A number for every row.
template <class T>
struct column {
  T* data;
  constexpr TIGON_INLINE explicit column(T* d) : data(d) {}
};
/// As column, but it never leaves the buffer.
template <class T>
struct local {};
/// A matrix block of intermediates that never leaves.
template <class T>
struct scratch {};
/// A program's partial row of a parameter gradient.
template <class A>
struct partial {
  A* data;
};

/// Extents of a block, and in how many programs the blocks are worked on at most.
struct cut {
  std::size_t rows, cols, programs;
};

/// The numbers of operator Op's pass P on B, with accumulators of type A.
template <backend B, class Op, tiling::pass P, class A>
struct plan {
  using backend = B;
  using accumulator = A;
  static constexpr const tiling::rule& rule = rule_for<Op, P, B>;
  static constexpr std::size_t capacity = B::tile_capacity_bits / 8;
  static constexpr std::size_t safe = tiling::budget{B::tile_capacity_bits, rule.margin}.safe_bits() / 8;
  static constexpr std::size_t block = block_of<Op, P, B, A>();
  static constexpr std::size_t area = area_of<Op, P, B, A>();
  static constexpr std::size_t matrix_elements = std::max(block, area);
  static constexpr std::size_t programs = rule.programs * B::vector_cores;
  /// Blocks of rows that share a block of columns where a row has several.
  static constexpr std::size_t group = 16;
  static constexpr std::size_t most_rows = std::min(rule.most_rows, area);
  static constexpr std::size_t column_elements = std::max(most_rows, group);

  /// Short rows together, long rows in blocks of columns.
  static constexpr cut cut_of(std::size_t cols) {
    const std::size_t width = tiling::next_power_of_two(std::max<std::size_t>(cols, 1));
    return {std::clamp<std::size_t>(area / width, 1, most_rows), std::min(cols, block), programs};
  }
};

using detail::ceil_div;
constexpr std::size_t whole_lines(std::size_t bytes) { return ceil_div(bytes, guard_bytes) * guard_bytes; }

inline constexpr std::size_t nothing = ~std::size_t{0};

/// The place of an operand in the buffer, and which block of it is there.
template <class Operand>
struct tile;

template <class T>
struct tile<matrix_view<T>> {
  using element_type = std::remove_const_t<T>;
  template <class Plan>
  static constexpr std::size_t elements = Plan::matrix_elements;
  matrix_view<T> global;
  element_type* data = nullptr;
  std::size_t held_row = nothing, held_col = nothing;
};
template <class T>
struct tile<vector_view<T>> {
  using element_type = std::remove_const_t<T>;
  template <class Plan>
  static constexpr std::size_t elements = Plan::block;
  vector_view<T> global;
  element_type* data = nullptr;
  std::size_t held_col = nothing;
};
/// A vector that may be absent: a block of the number that stands for it.
template <class T, int Value>
struct tile<simd::given_or<vector_view<T>, Value>> : tile<vector_view<T>> {};
template <class A>
struct tile<partial<A>> {
  using element_type = A;
  template <class Plan>
  static constexpr std::size_t elements = Plan::block;
  partial<A> global;
  A* data = nullptr;
  std::size_t held_col = nothing, held_count = 0;
};
template <class T>
struct tile<column<T>> {
  using element_type = std::remove_const_t<T>;
  template <class Plan>
  static constexpr std::size_t elements = Plan::column_elements;
  column<T> global;
  element_type* data = nullptr;
  TIGON_INLINE element_type& operator[](std::size_t i) const { return data[i]; }
};
template <class T>
struct tile<local<T>> {
  using element_type = T;
  template <class Plan>
  static constexpr std::size_t elements = Plan::column_elements;
  local<T> global;
  T* data = nullptr;
  TIGON_INLINE T& operator[](std::size_t i) const { return data[i]; }
};
template <class T>
struct tile<scratch<T>> {
  using element_type = T;
  template <class Plan>
  static constexpr std::size_t elements = Plan::matrix_elements;
  scratch<T> global;
  T* data = nullptr;
};
template <class A>
struct tile<constant<A>> {
  using element_type = std::byte;
  template <class Plan>
  static constexpr std::size_t elements = 0;
  constant<A> global;
  std::byte* data = nullptr;
};

template <class... Tile>
struct reads : std::tuple<Tile&...> {
  TIGON_INLINE explicit reads(Tile&... t) : std::tuple<Tile&...>(t...) {}
};
template <class... Tile>
struct writes : std::tuple<Tile&...> {
  TIGON_INLINE explicit writes(Tile&... t) : std::tuple<Tile&...>(t...) {}
};

/// One program on its core: the tiles, the block it is at, and the copies that it makes.
template <class Plan>
class vector_core {
  using B = typename Plan::backend;
  using A = typename Plan::accumulator;

 public:
  std::size_t row = 0, row_count = 0;  ///< rows of the block
  std::size_t col = 0, col_count = 0;  ///< its columns

  TIGON_INLINE vector_core(std::size_t rows, std::size_t cols, cut by) : memory_(this_core<Plan::capacity>()) {
    if constexpr (B::ledger::poison) std::memset(memory_, 0xff, Plan::capacity + 2 * guard_bytes);
    shape(rows, cols, by);
    paint(0);
    paint(guard_bytes + Plan::capacity);
  }
  vector_core(const vector_core&) = delete;
  vector_core& operator=(const vector_core&) = delete;
  TIGON_INLINE ~vector_core() {
    for (std::size_t g = 0; g < guards_; ++g)
      for (std::size_t i = 0; i < guard_bytes; ++i) used_.intact &= memory_[guard_[g] + i] == mark;
    used_.capacity = Plan::capacity;
    B::ledger::note(used_);
  }

  /// A tile for each operand, all at the same time.
  template <class... Operand>
  TIGON_INLINE std::tuple<tile<Operand>...> place(Operand... operand) {
    static_assert((sizeof...(Operand) + 2) <= most_guards);
    static_assert(
        ((tile<Operand>::template elements<Plan> * sizeof(typename tile<Operand>::element_type)) + ... + 0) <=
            Plan::safe,
        "tigon: the tiles of this kernel take more of the unified buffer than the operator's tile_rule allows");
    static_assert((bytes_of<Operand>() + ... + 0) <= Plan::capacity,
                  "tigon: the tiles of this kernel and their guard zones exceed the unified buffer");
    return {place_one(operand)...};
  }

  /// Extents of the operands and of their blocks, where one program works on several.
  TIGON_INLINE void shape(std::size_t rows, std::size_t cols, cut by) {
    rows_ = rows, cols_ = cols, by_ = by;
    row = 0, row_count = std::min(by.rows, rows);
    col = 0, col_count = std::min(by.cols, cols);
  }
  TIGON_INLINE bool whole_rows() const { return by_.cols >= cols_; }
  TIGON_INLINE void rows_at(std::size_t block) {
    row = block * by_.rows;
    row_count = std::min(by_.rows, rows_ - row);
  }
  TIGON_INLINE void cols_at(std::size_t block) {
    col = block * by_.cols;
    col_count = std::min(by_.cols, cols_ - col);
  }
  TIGON_INLINE std::size_t row_blocks() const { return ceil_div(rows_, by_.rows); }
  TIGON_INLINE std::size_t col_blocks() const { return ceil_div(cols_, by_.cols); }

  /// Another operand in the same place.
  template <class Operand>
  TIGON_INLINE void point(tile<Operand>& t, Operand operand) const {
    t = {operand, t.data};
  }

  /// f(row, the row's part of every tile) for each row of the block and each block of columns.
  template <class... In, class... Out, class F>
  TIGON_INLINE void pass(reads<In...> in, writes<Out...> out, F f) {
    for (std::size_t j = 0; j < col_blocks(); ++j) {
      cols_at(j);
      part(in, out, f);
    }
  }
  /// The same for the present block of columns.
  template <class... In, class... Out, class F>
  TIGON_INLINE void part(reads<In...> in, writes<Out...> out, F f) {
    std::apply([&](auto&... t) TIGON_LAMBDA { (fetch(t), ...); }, as_tuple(in));
    std::apply(
        [&](auto&... t) TIGON_LAMBDA {
          for (std::size_t i = 0; i < row_count; ++i) f(simd::row_worker<B, A>(i, col_count), view(t, i)...);
        },
        std::tuple_cat(as_tuple(in), as_tuple(out)));
    std::apply([&](auto&... t) TIGON_LAMBDA { (store(t), ...); }, as_tuple(out));
  }
  /// f(i) for each row of the block, beside its columns.
  template <class F>
  TIGON_INLINE void each_row(F f) const {
    for (std::size_t i = 0; i < row_count; ++i) f(i);
  }
  /// f(row, tiles...) once, on all elements of the block as if they were one row.
  template <class... In, class... Out, class F>
  TIGON_INLINE void flat_part(reads<In...> in, writes<Out...> out, F f) {
    std::apply([&](auto&... t) TIGON_LAMBDA { (fetch(t), ...); }, as_tuple(in));
    const std::size_t n = row_count * col_count;
    std::apply([&](auto&... t) TIGON_LAMBDA { f(simd::row_worker<B, A>(0, n), flat_view(t, n)...); },
               std::tuple_cat(as_tuple(in), as_tuple(out)));
    std::apply([&](auto&... t) TIGON_LAMBDA { (store(t), ...); }, as_tuple(out));
  }

  /// Copies the present block in, unless it is there. A matrix without memory is one of zeros.
  template <class T>
  TIGON_INLINE void fetch(tile<matrix_view<const T>>& t) {
    if (t.held_row == row && t.held_col == col) return;
    t.held_row = row, t.held_col = col;
    if (t.global.data == nullptr) return std::fill(t.data, t.data + row_count * by_.cols, T());
    for (std::size_t i = 0; i < row_count; ++i) copy_in(t.data + i * by_.cols, t.global.row(row + i) + col, col_count);
  }
  template <class T>
  TIGON_INLINE void fetch(tile<vector_view<const T>>& t) {
    if (t.held_col == col) return;
    t.held_col = col;
    copy_in(t.data, t.global.data + col, col_count);
  }
  template <class T, int Value>
  TIGON_INLINE void fetch(tile<simd::given_or<vector_view<const T>, Value>>& t) {
    if (t.global.data != nullptr) return fetch(static_cast<tile<vector_view<const T>>&>(t));
    if (t.held_col == col) return;
    t.held_col = col;
    std::fill(t.data, t.data + col_count, static_cast<T>(A(Value)));
  }
  template <class T>
  TIGON_INLINE void fetch(tile<partial<T>>& t) {
    if (t.held_col == col) return;
    flush(t);
    t.held_col = col, t.held_count = col_count;
    copy_in(t.data, t.global.data + col, col_count);
  }
  template <class T>
  TIGON_INLINE void fetch(tile<column<T>>& t) {
    copy_in(t.data, t.global.data + row, row_count);
  }
  template <class T>
  TIGON_INLINE void fetch(tile<scratch<T>>&) {}
  template <class T>
  TIGON_INLINE void fetch(tile<constant<T>>&) {}

  /// Copies the present block out; nothing where the operand has no memory.
  template <class T>
  TIGON_INLINE void store(tile<matrix_view<T>>& t) {
    if (t.global.data == nullptr) return;
    for (std::size_t i = 0; i < row_count; ++i) copy_out(t.global.row(row + i) + col, t.data + i * by_.cols, col_count);
  }
  template <class T>
  TIGON_INLINE void store(tile<vector_view<T>>& t) {
    copy_out(t.global.data + col, t.data, col_count);
  }
  template <class T>
  TIGON_INLINE void store(tile<column<T>>& t) {
    copy_out(t.global.data + row, t.data, row_count);
  }
  /// Writes a partial row back.
  template <class T>
  TIGON_INLINE void flush(tile<partial<T>>& t) {
    if (t.held_col != nothing) copy_out(t.global.data + t.held_col, t.data, t.held_count);
    t.held_col = nothing;
  }
  template <class Operand>
  TIGON_INLINE void flush(tile<Operand>&) {}

 private:
  static constexpr std::size_t most_guards = 16;
  static constexpr std::byte mark{0xa5};

  template <class Operand>
  static constexpr std::size_t bytes_of() {
    constexpr std::size_t bytes = tile<Operand>::template elements<Plan> * sizeof(typename tile<Operand>::element_type);
    return bytes == 0 ? 0 : whole_lines(bytes) + guard_bytes;
  }
  template <class Operand>
  TIGON_INLINE tile<Operand> place_one(Operand operand) {
    tile<Operand> t{operand};
    if constexpr (bytes_of<Operand>() != 0) {
      t.data = reinterpret_cast<typename tile<Operand>::element_type*>(memory_ + guard_bytes + used_.bytes);
      used_.bytes += bytes_of<Operand>();
      paint(used_.bytes);  // the last guard_bytes of what was taken
    }
    return t;
  }
  TIGON_INLINE void paint(std::size_t at) {
    std::memset(memory_ + at, static_cast<int>(mark), guard_bytes);
    guard_[guards_++] = at;
  }
  template <class T>
  TIGON_INLINE void copy_in(T* to, const T* from, std::size_t n) {
    std::memcpy(static_cast<void*>(to), from, n * sizeof(T));
    used_.copied_in += n * sizeof(T);
  }
  template <class T>
  TIGON_INLINE void copy_out(T* to, const T* from, std::size_t n) {
    std::memcpy(static_cast<void*>(to), from, n * sizeof(T));
    used_.copied_out += n * sizeof(T);
  }

  template <class T>
  TIGON_INLINE vector_view<T> view(const tile<matrix_view<T>>& t, std::size_t i) const {
    return {t.data + i * by_.cols, col_count};
  }
  template <class T>
  TIGON_INLINE vector_view<T> view(const tile<scratch<T>>& t, std::size_t i) const {
    return {t.data + i * by_.cols, col_count};
  }
  template <class T>
  TIGON_INLINE vector_view<T> view(const tile<vector_view<T>>& t, std::size_t) const {
    return {t.data, col_count};
  }
  template <class T>
  TIGON_INLINE vector_view<T> view(const tile<partial<T>>& t, std::size_t) const {
    return {t.data, col_count};
  }
  template <class T>
  TIGON_INLINE constant<T> view(const tile<constant<T>>& t, std::size_t) const {
    return t.global;
  }
  template <class T>
  TIGON_INLINE vector_view<T> flat_view(const tile<matrix_view<T>>& t, std::size_t n) const {
    return {t.data, n};
  }

  template <class... T>
  static TIGON_INLINE const std::tuple<T&...>& as_tuple(const reads<T...>& t) {
    return t;
  }
  template <class... T>
  static TIGON_INLINE const std::tuple<T&...>& as_tuple(const writes<T...>& t) {
    return t;
  }

  std::byte* memory_;
  std::size_t rows_, cols_;
  cut by_;
  usage used_;
  std::size_t guard_[most_guards];
  std::size_t guards_ = 0;
};

/// f(core, items) for every program: `items(g)` calls g(item) for the program's share of the work.
template <class Plan, class F>
void for_programs(context& ctx, std::size_t items, std::size_t most_programs, F f) {
  const std::size_t grid = std::min(most_programs, items);
  const std::size_t chunk = grid == 0 ? 0 : ceil_div(items, grid);
  ctx.executor().run(grid, [&](std::size_t program, std::size_t) TIGON_FLATTEN {
    constexpr bool chunked = Plan::rule.order == tiling::schedule::chunked;
    vector_core<Plan> core(0, 0, {1, 1, 1});
    f(core, program, [=](auto item) TIGON_LAMBDA {
      const std::size_t end = chunked ? std::min(items, (program + 1) * chunk) : items;
      for (std::size_t i = chunked ? program * chunk : program; i < end; i += chunked ? 1 : grid) item(i);
    });
  });
}

/// f(core, tiles...) for every block of rows.
template <class Plan, class F, class... Operand>
void for_row_blocks(context& ctx, std::size_t rows, std::size_t cols, cut by, F f, Operand... operand) {
  for_programs<Plan>(ctx, ceil_div(rows, by.rows), by.programs, [=](auto& core, std::size_t, auto blocks) TIGON_LAMBDA {
    core.shape(rows, cols, by);
    auto tiles = core.place(operand...);
    blocks([&](std::size_t block) TIGON_LAMBDA {
      core.rows_at(block);
      std::apply([&](auto&... t) TIGON_LAMBDA { f(core, t...); }, tiles);
    });
  });
}

/// f(core, tiles...) for every block of matrices whose elements have nothing to do with one another. Matrices without
/// padding are cut as the one row that they are in memory.
template <class Plan, class F, class T, class... M>
void for_blocks(context& ctx, F f, matrix_view<T> first, M... more) {
  std::size_t rows = first.rows, cols = first.cols;
  const bool dense = first.row_stride == cols && ((more.row_stride == cols) && ... && true);
  if (dense) cols *= std::exchange(rows, rows == 0 ? 0 : 1);
  if (cols == 0) return;
  const std::size_t width = std::min(cols, Plan::block);
  const cut by{width < cols ? 1 : std::clamp<std::size_t>(Plan::block / width, 1, std::max<std::size_t>(rows, 1)),
               width, Plan::programs};
  const std::size_t across = ceil_div(cols, width);
  for_programs<Plan>(ctx, ceil_div(rows, by.rows) * across, by.programs,
                     [=](auto& core, std::size_t, auto blocks) TIGON_LAMBDA {
                       core.shape(rows, cols, by);
                       auto tiles = core.place(first, more...);
                       blocks([&](std::size_t block) TIGON_LAMBDA {
                         core.rows_at(block / across);
                         core.cols_at(block % across);
                         std::apply([&](auto&... t) TIGON_LAMBDA { f(core, t...); }, tiles);
                       });
                     });
}

/// y = x * factor, with one factor for all rows or one a row; y may be x. A 0 stays 0 for any factor.
template <class Plan, class T, class A>
void multiply_rows(context& ctx, matrix_view<const T> x, vector_view<const A> factor, matrix_view<T> y, cut by) {
  const bool common = factor.size == 1;
  for_row_blocks<Plan>(
      ctx, y.rows, y.cols, by,
      [=](auto& core, auto& xt, auto& yt) TIGON_LAMBDA {
        core.pass(reads(xt), writes(yt), [&](auto row, auto xv, auto yv) TIGON_LAMBDA {
          const A f = factor.data[common ? 0 : core.row + row.i];
          if (math::abs(f) <= std::numeric_limits<A>::max())
            row.map(tigon::reads(xv), tigon::writes(yv), [=](auto v) { return v * f; });
          else
            row.map(tigon::reads(xv), tigon::writes(yv), [=](auto v) {
              const decltype(v) zero(A(0));
              return select(v == zero, zero, v * f);
            });
        });
      },
      x, y);
}

/// The gradient of a parameter from the partial rows of all programs: added in pairs, level by level, and rounded once.
template <class Plan, class A, class W>
void combine(context& ctx, matrix_view<const A> partials, simd::parameter_gradient<W> g) {
  static_assert(std::bit_ceil(Plan::programs) <= Plan::block);
  if (g.out.data == nullptr) return;
  const std::size_t cols = partials.cols, programs = partials.rows;
  const std::size_t width = std::min(Plan::block / std::bit_ceil(std::max<std::size_t>(programs, 1)), cols);
  const bool add = g.mode == gradient::accumulate;
  for_programs<Plan>(
      ctx, ceil_div(cols, width), Plan::programs, [=](auto& core, std::size_t, auto blocks) TIGON_LAMBDA {
        core.shape(programs, cols, {std::max<std::size_t>(programs, 1), width, 1});
        auto tiles = core.place(partials, vector_view<const W>(g.out), g.out);
        std::apply(
            [&](auto& sums, auto& old, auto& out) TIGON_LAMBDA {
              blocks([&](std::size_t block) TIGON_LAMBDA {
                core.cols_at(block);
                core.fetch(sums);
                if (add) core.fetch(old);
                const std::size_t n = core.col_count;
                const simd::row_worker<typename Plan::backend, A> row(0, n);
                const auto sum = [&](std::size_t k) TIGON_LAMBDA { return vector_view<A>{sums.data + k * width, n}; };
                for (std::size_t step = 1; step < programs; step *= 2)
                  for (std::size_t k = 0; k + step < programs; k += 2 * step)
                    row.map(tigon::reads(sum(k), sum(k + step)), tigon::writes(sum(k)),
                            [](auto a, auto b) { return a + b; });
                if (programs == 0) std::fill(sums.data, sums.data + n, A(0));
                if (add)
                  row.map(tigon::reads(sum(0), vector_view<W>{old.data, n}), tigon::writes(vector_view<W>{out.data, n}),
                          [](auto s, auto v) { return v + s; });
                else
                  row.map(tigon::reads(sum(0)), tigon::writes(vector_view<W>{out.data, n}), [](auto s) { return s; });
                core.store(out);
              });
            },
            tiles);
      });
}

/// How many programs add up rows, and in how many rows of memory each: three where it has to keep totals, for fewer
/// programs if memory is for no more.
struct sums_of_programs {
  std::size_t programs, rows = 1;

  constexpr sums_of_programs(std::size_t grid, std::size_t row_blocks, std::size_t block_rows, std::size_t reserved)
      : programs(grid) {
    if (grid == 0 || ceil_div(row_blocks, grid) * block_rows <= simd::plain_rows) return;
    rows = simd::rows_per_sum(simd::plain_rows + 1);
    programs = std::clamp<std::size_t>(reserved / rows, 1, grid);
  }
};

/// The partial rows of one program, `count` of them, in columns [first, first + n). Where it adds up more than
/// simd::plain_rows rows, the high and the low parts of their compensated totals lie behind them.
template <class V>
class program_sums {
  using A = typename V::value_type;

 public:
  TIGON_INLINE program_sums(A* memory, std::size_t count, std::size_t stride, bool totals, std::size_t first,
                            std::size_t n)
      : memory_(memory + first), count_(count), stride_(stride), n_(n), totals_(totals) {
    for (std::size_t k = 0; k < (totals ? 3 : 1) * count; ++k) std::fill_n(memory_ + k * stride, n, A(0));
  }
  /// Before so many rows more; flush() writes back what a tile holds of the sums.
  template <class F>
  TIGON_INLINE void before(std::size_t rows, F flush) {
    if (totals_ && plain_ + rows > simd::plain_rows) {
      flush();
      add_to_totals<simd::sums_after::zero>();
      plain_ = 0;
    }
    plain_ += rows;
  }
  /// After the last: the partial rows become the totals.
  template <class F>
  TIGON_INLINE void finish(F flush) const {
    flush();
    if (totals_) add_to_totals<simd::sums_after::total>();
  }

 private:
  template <simd::sums_after After>
  TIGON_INLINE void add_to_totals() const {
    for (std::size_t k = 0; k < count_; ++k) {
      A* const sums = memory_ + k * stride_;
      simd::add_to_total<V, After>(sums, sums + count_ * stride_, sums + 2 * count_ * stride_, n_);
    }
  }

  A* memory_;
  std::size_t count_, stride_, n_, plain_ = 0;
  bool totals_;
};

/// As for_row_blocks, in two steps: sum(core, values, tiles...) leaves in values[i] what row i of the block needs of
/// its whole length; write(core, values, tiles...) works on the present block of columns. `sum` and `write` are given
/// a tile of each partial row of a parameter gradient first, and then those of the operands. Where rows have several
/// blocks of columns, some rows share the visit to a block, so that partial rows and weights are copied more rarely.
/// Programs of more than simd::plain_rows rows keep compensated totals behind their partial rows.
template <class Plan, class S, class Sum, class Write, class... W, class... Operand>
void for_row_blocks_with_partials(context& ctx, std::size_t rows, std::size_t cols, cut by, Sum sum, Write write,
                                  std::tuple<simd::parameter_gradient<W>...> gradients, Operand... operand) {
  using A = typename Plan::accumulator;
  constexpr std::size_t K = sizeof...(W);
  by.rows = std::min(by.rows, simd::plain_rows);
  // No more partial rows than the door has asked memory for.
  const std::size_t row_blocks = ceil_div(rows, by.rows);
  const std::size_t stride = workspace::padded<A>(cols);
  const std::size_t reserved =
      (simd::partials_workspace<typename Plan::backend, A>(rows, cols, K) - workspace::alignment) /
      (K * stride * sizeof(A));
  const sums_of_programs sums(std::min({by.programs, reserved, row_blocks}), row_blocks, by.rows, reserved);
  const std::size_t grid = sums.programs, step = sums.rows * K * stride;
  using V = simd::vec<typename Plan::backend::engine, A>;
  workspace::frame frame(ctx.workspace());
  A* partials = frame.template take<A>(grid * step);
  for_programs<Plan>(ctx, row_blocks, grid, [=](auto& core, std::size_t program, auto blocks) TIGON_LAMBDA {
    A* own = partials + program * step;
    program_sums<V> partial_rows(own, K, stride, sums.rows > 1, 0, cols);
    core.shape(rows, cols, by);
    auto tiles = [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return core.place(local<S>{}, (static_cast<void>(k), partial<A>{own + k * stride})..., operand...);
    }(std::make_index_sequence<K>{});
    std::apply(
        [&](auto& values, auto&... t) TIGON_LAMBDA {
          const std::size_t most = core.whole_rows() ? 1 : Plan::group;
          std::size_t group[Plan::group], count = 0;
          const auto flush = [&]() TIGON_LAMBDA { (core.flush(t), ...); };
          const auto work = [&]() TIGON_LAMBDA {
            partial_rows.before(count * by.rows, flush);
            for (std::size_t k = 0; k < count; ++k) {
              core.rows_at(group[k]);
              sum(core, values.data + k, t...);
            }
            for (std::size_t j = 0; j < core.col_blocks(); ++j) {
              core.cols_at(j);
              for (std::size_t k = 0; k < count; ++k) {
                core.rows_at(group[k]);
                write(core, values.data + k, t...);
              }
            }
            count = 0;
          };
          blocks([&](std::size_t block) TIGON_LAMBDA {
            group[count++] = block;
            if (count == most) work();
          });
          if (count != 0) work();
          partial_rows.finish(flush);
        },
        tiles);
  });
  [&]<std::size_t... k>(std::index_sequence<k...>) {
    (combine<Plan>(ctx, matrix_view<const A>(partials + k * stride, grid, cols, step), std::get<k>(gradients)), ...);
  }(std::make_index_sequence<K>{});
}

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

namespace tigon {
namespace ub = unified_buffer;
}

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_HPP

// One program on its core: the tiles, the block that it is at, and the copies that it makes.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_VECTOR_CORE_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_VECTOR_CORE_HPP

#include <tigon/backends/ascend/unified_buffer/tiles.hpp>

#include <cstring>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

/// One program on its core.
template <class Plan>
class vector_core {
  using B = typename Plan::backend;
  using A = typename Plan::accumulator;

 public:
  std::size_t row = 0, row_count = 0;  ///< rows of the block
  std::size_t col = 0, col_count = 0;  ///< its columns
  std::size_t worker = 0;              ///< of the executor: the thread that plays the core

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
        (counted_bytes<Operand>() + ... + 0) <= Plan::safe,
        "tigon: the tiles of this kernel take more of the unified buffer than the operator's tile_rule allows");
    static_assert((bytes_of<Operand>() + ... + 0) <= Plan::capacity,
                  "tigon: the tiles of this kernel and their guard zones exceed the unified buffer");
    return {place_one(operand)...};
  }

  /// Whether the buffer has room for so many elements beside nothing else; and the room, with a guard zone behind it.
  template <class T>
  static constexpr bool holds(std::size_t n) {
    return n <= Plan::safe / sizeof(T) && whole_lines(n * sizeof(T)) + guard_bytes <= Plan::safe;
  }
  template <class T>
  TIGON_INLINE T* take(std::size_t n) {
    T* const data = reinterpret_cast<T*>(memory_ + guard_bytes + used_.bytes);
    used_.bytes += whole_lines(n * sizeof(T)) + guard_bytes;
    paint(used_.bytes);
    return data;
  }
  /// Bytes that were copied to such memory, and from it.
  TIGON_INLINE void count_in(std::size_t bytes, evict hint = evict::normally) {
    used_.copied_in += bytes;
    used_.in_by[static_cast<std::size_t>(hint)] += bytes;
  }
  TIGON_INLINE void count_out(std::size_t bytes, evict hint = evict::normally) {
    used_.copied_out += bytes;
    used_.out_by[static_cast<std::size_t>(hint)] += bytes;
  }

  /// Extents of the operands and of their blocks, where one program works on several.
  TIGON_INLINE void shape(std::size_t rows, std::size_t cols, cut by) {
    rows_ = rows, cols_ = cols, by_ = by;
    row = 0, row_count = std::min(by.rows, rows);
    col = 0, col_count = std::min(by.cols, cols);
  }
  TIGON_INLINE bool whole_rows() const { return by_.cols >= cols_; }
  /// Says that the kernel comes to every block once. Of whole rows that is so without saying.
  TIGON_INLINE void visits_once() { once_ = true; }
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
    const tile_places places = t.places;
    t = {operand, t.data};
    t.places = places;
  }

  /// f(row, the row's part of every tile) for each row of the block and each block of columns.
  template <class... In, class... Out, class F>
  TIGON_INLINE void pass(reads<In...> in, writes<Out...> out, F f) {
    for (std::size_t j = 0; j < col_blocks(); ++j) {
      cols_at(j);
      part(in, out, f);
    }
  }
  /// The same for the present block of columns. Where f returns a bool, rows for which it is false are not copied out.
  template <class... In, class... Out, class F>
  TIGON_INLINE void part(reads<In...> in, writes<Out...> out, F f) {
    std::apply([&](auto&... t) TIGON_LAMBDA { (fetch(t), ...); }, as_tuple(in));
    std::apply(
        [&](auto&... t) TIGON_LAMBDA {
          constexpr bool chooses = std::same_as<decltype(f(simd::row_worker<B, A>(0, 0), view(t, 0)...)), bool>;
          for (std::size_t i = 0; i < row_count; ++i) {
            const auto run = [&]() TIGON_LAMBDA { return f(simd::row_worker<B, A>(i, col_count), view(t, i)...); };
            if constexpr (!chooses)
              run();
            else if (run())
              std::apply([&](auto&... y) TIGON_LAMBDA { (store_row(y, i), ...); }, as_tuple(out));
          }
          if constexpr (!chooses) std::apply([&](auto&... y) TIGON_LAMBDA { (store(y), ...); }, as_tuple(out));
        },
        std::tuple_cat(as_tuple(in), as_tuple(out)));
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
    t.places.swap(t.data);
    if (t.global.data == nullptr) return std::fill(t.data, t.data + row_count * by_.cols, T());
    const evict hint = once_ || whole_rows() ? evict::first : evict::normally;
    for (std::size_t i = 0; i < row_count; ++i)
      copy_in(t.data + i * by_.cols, t.global.row(row + i) + col, col_count, hint);
  }
  template <class T>
  TIGON_INLINE void fetch(tile<vector_view<const T>>& t, evict hint = evict::last) {
    if (t.held_col == col) return;
    t.held_col = col;
    t.places.swap(t.data);
    copy_in(t.data, t.global.data + col, col_count, hint);
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
    t.places.swap(t.data);
    copy_in(t.data, t.global.data + col, col_count, evict::last);
  }
  template <class T>
  TIGON_INLINE void fetch(tile<column<T>>& t) {
    copy_in(t.data, t.global.data + row, row_count, evict::normally);
  }
  template <class T>
  TIGON_INLINE void fetch(tile<scratch<T>>&) {}
  template <class T>
  TIGON_INLINE void fetch(tile<constant<T>>&) {}

  /// Copies the present block out; nothing where the operand has no memory.
  template <class T>
  TIGON_INLINE void store(tile<matrix_view<T>>& t) {
    for (std::size_t i = 0; i < row_count; ++i) store_row(t, i);
  }
  template <class T>
  TIGON_INLINE void store_row(tile<matrix_view<T>>& t, std::size_t i) {
    if (t.global.data == nullptr) return;
    copy_out(t.global.row(row + i) + col, t.data + i * by_.cols, col_count, evict::first);
  }
  template <class T>
  TIGON_INLINE void store(tile<vector_view<T>>& t) {
    copy_out(t.global.data + col, t.data, col_count, evict::first);
  }
  template <class T>
  TIGON_INLINE void store(tile<column<T>>& t) {
    copy_out(t.global.data + row, t.data, row_count, evict::normally);
  }
  /// Writes a partial row back.
  template <class T>
  TIGON_INLINE void flush(tile<partial<T>>& t) {
    if (t.held_col != nothing) copy_out(t.global.data + t.held_col, t.data, t.held_count, evict::last);
    t.held_col = nothing;
  }
  template <class Operand>
  TIGON_INLINE void flush(tile<Operand>&) {}

 private:
  static constexpr std::size_t most_guards = 36;
  static constexpr std::byte mark{0xa5};

  template <class Operand>
  static constexpr std::size_t places_of = requires(tile<Operand> t) { t.places; } ? Plan::buffers : 1;
  template <class Operand>
  static constexpr std::size_t counted_bytes() {
    return places_of<Operand> * tile<Operand>::template elements<Plan> * sizeof(typename tile<Operand>::element_type);
  }
  template <class Operand>
  static constexpr std::size_t place_bytes() {
    return whole_lines(tile<Operand>::template elements<Plan> * sizeof(typename tile<Operand>::element_type));
  }
  template <class Operand>
  static constexpr std::size_t bytes_of() {
    constexpr std::size_t bytes = places_of<Operand> * place_bytes<Operand>();
    return bytes == 0 ? 0 : bytes + guard_bytes;
  }
  template <class Operand>
  TIGON_INLINE tile<Operand> place_one(Operand operand) {
    tile<Operand> t{operand};
    if constexpr (bytes_of<Operand>() != 0) {
      t.data = reinterpret_cast<typename tile<Operand>::element_type*>(memory_ + guard_bytes + used_.bytes);
      if constexpr (places_of<Operand> > 1)
        t.places.to_other =
            static_cast<std::ptrdiff_t>(place_bytes<Operand>() / sizeof(typename tile<Operand>::element_type));
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
  TIGON_INLINE void copy_in(T* to, const T* from, std::size_t n, evict hint) {
    B::copier::in(static_cast<void*>(to), static_cast<const void*>(from), n * sizeof(T), hint);
    count_in(n * sizeof(T), hint);
  }
  template <class T>
  TIGON_INLINE void copy_out(T* to, const T* from, std::size_t n, evict hint) {
    B::copier::out(static_cast<void*>(to), static_cast<const void*>(from), n * sizeof(T), hint);
    count_out(n * sizeof(T), hint);
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
  bool once_ = false;
  std::size_t rows_, cols_;
  cut by_;
  usage used_;
  std::size_t guard_[most_guards];
  std::size_t guards_ = 0;
};

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_VECTOR_CORE_HPP

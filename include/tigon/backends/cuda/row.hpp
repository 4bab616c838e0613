// A row of a program on a GPU: a thread of its group, and what that keeps of the row. The same programs, reduced and
// mapped, whatever the group (backends/cuda/group.hpp).
#ifndef TIGON_BACKENDS_CUDA_ROW_HPP
#define TIGON_BACKENDS_CUDA_ROW_HPP

#include <tigon/backends/cuda/lanes.hpp>
#include <tigon/backends/cuda/operands.hpp>
#include <tigon/backends/cuda/plan.hpp>

#include <array>
#include <utility>

namespace tigon::gpu {
inline namespace TIGON_ABI {

template <class V, std::size_t>
using vector_of = V;
template <class V, class F, std::size_t... k>
auto result_for(std::index_sequence<k...>)
    -> std::type_identity<std::remove_cvref_t<decltype(std::declval<const F&>()(std::declval<vector_of<V, k>>()...))>>;
/// What f returns for X vectors.
template <class V, class F, std::size_t X>
using result_of = typename decltype(result_for<V, F>(std::make_index_sequence<X>()))::type;

/// A program and all that it reads and writes, as a kernel takes it. X: operands of reduce and map; More: of map alone;
/// Direct: outputs that need no reduction; Kept: flags of rows. Reduces: whether there is a reduction.
template <bool Reduces, class Vector, class Bound, class X, class More, class Y, class Direct, class Kept>
struct row_call {
  using V = Vector;
  using A = typename V::value_type;
  using operands = decltype(std::tuple_cat(std::declval<X>(), std::declval<More>()));
  using outputs = decltype(std::tuple_cat(std::declval<Direct>(), std::declval<Y>()));
  static constexpr bool reduces = Reduces, maps = std::tuple_size_v<Y> != 0;
  static constexpr std::size_t reduced = std::tuple_size_v<X>, direct = std::tuple_size_v<Direct>;
  static constexpr int N = columns_at_a_time<A>(static_cast<operands*>(nullptr), static_cast<outputs*>(nullptr));
  static constexpr std::size_t vector_bytes = N * kept_bytes(static_cast<operands*>(nullptr));

  Bound bound;
  operands x;
  outputs y;
  Kept kept;

  /// The same operands for a program in f64.
  template <class P>
  TIGON_DEVICE_INLINE auto in_f64(const P& program) const {
    const rows::bound_program wide(program, bound.numbers, bound.to);
    return row_call<Reduces, simd::vec<typename V::engine, double>, std::remove_const_t<decltype(wide)>, X, More, Y,
                    Direct, Kept>{wide, x, y, kept};
  }
};

/// The program of a row_call.
template <class Call>
using program_of = std::remove_cvref_t<decltype(std::declval<const Call&>().bound.p)>;

/// map behind the value of the row, if there is one, and behind what prepare makes of the first operand.
template <class V, class P, class... Value>
struct map_of_row {
  P p;
  std::tuple<Value...> value;

  template <class... X>
  TIGON_DEVICE_INLINE auto operator()(V first, X... rest) const {
    return std::apply(
        [&](const auto&... of_row) {
          if constexpr (rows::prepares<P, V>)
            return rows::as_pack(p.map(of_row..., p.prepare(first), first, rest...));
          else
            return rows::as_pack(p.map(of_row..., first, rest...));
        },
        value);
  }
};

/// A thread of the group of row i. `here` is false where the group has no row: it keeps the others of its warp company.
/// With Shape::kept the row is in registers, and read once.
template <class Shape, int N, class Call, keeps Keeps = keeps::rows>
struct row_thread {
  using group = gpu::group<Shape::lanes>;
  using V = typename Call::V;
  using A = typename V::value_type;
  using columns = loaded_columns<Keeps, N, typename Call::operands>;
  static constexpr int vectors = Shape::kept == 0 ? 1 : Shape::kept;

  const Call& call;
  std::size_t i;
  unsigned cols;
  columns (&row)[vectors];
  bool here = true;

  /// Of a kernel whose blocks take `rows` rows, one a group.
  static TIGON_DEVICE_INLINE row_thread of_launch(const Call& of, std::size_t rows, unsigned columns_of_row,
                                                  columns (&kept)[vectors]) {
    const std::size_t at = blockIdx.x * std::size_t{group::count()} + group::index();
    const bool is_row = at < rows;
    return {of, is_row ? at : rows - 1, is_row ? columns_of_row : 0, kept, is_row};
  }

  /// Whether this thread writes what belongs to the row.
  TIGON_DEVICE_INLINE bool first() const { return here && group::lane() == 0; }
  /// The first column of this thread's vector t.
  static TIGON_DEVICE_INLINE unsigned column(int t) {
    return (static_cast<unsigned>(t) * group::size() + group::lane()) * N;
  }
  TIGON_DEVICE_INLINE void load() const {
#pragma unroll
    for (int t = 0; t < Shape::kept; ++t)
      if (column(t) < cols) row[t].load(call.x, i, column(t));
  }

  /// Starts to bring the row into L2; one thread comes here.
  TIGON_DEVICE_INLINE void prefetch() const {
    std::apply([&](const auto&... x) { (prefetch_of(x), ...); }, call.x);
  }
  TIGON_DEVICE_INLINE void load_vectors() const {
#pragma unroll
    for (int t = 0; t < Shape::kept; ++t)
      if (column(t) < cols) row[t].load_vectors(call.x, column(t));
  }

  /// f(t, column, N columns) for the vectors of this thread.
  template <class F>
  TIGON_DEVICE_INLINE void for_columns(F f) const {
    if constexpr (Shape::kept != 0) {
#pragma unroll
      for (int t = 0; t < Shape::kept; ++t)
        if (column(t) < cols) f(t, std::size_t{column(t)}, row[t]);
    } else {
      const std::size_t step = std::size_t{group::size()} * N;
      std::size_t j = column(0);
      if constexpr (two_vectors_at_a_time(Call::vector_bytes)) {  // nvcc 13.0 wants braces where this is false
        for (; j + step < cols; j += 2 * step) {
          columns a, b;
          a.load(call.x, i, j), b.load(call.x, i, j + step);
          f(0, j, a), f(0, j + step, b);
        }
      }
      for (; j < cols; j += step) {
        columns a;
        a.load(call.x, i, j);
        f(0, j, a);
      }
    }
  }

  /// What f returns for the operands of reduce, joined over the row: a number, or an array of several. put(column,
  /// results) gets what f returned of N columns, of which the first D results are not joined.
  template <class Monoid, std::size_t D, class F, class Put>
  TIGON_DEVICE_INLINE auto joined(const F& f, const Put& put) const {
    A s[joined_numbers<F, D>];
    join_columns<Monoid, D>(f, put, s);
    group::template reduce<Monoid>(s);
    return as_sum(s);
  }
  /// The same of the columns of this thread alone, joined into s.
  template <class Monoid, std::size_t D, class F, class Put, std::size_t K>
  TIGON_DEVICE_INLINE void join_columns(const F& f, const Put& put, A (&s)[K]) const {
#pragma unroll
    for (std::size_t k = 0; k < K; ++k) s[k] = Monoid::template none<A>;
    for_columns([&](int, std::size_t j, const columns& c) {
      result_of_columns<F> r[N];
      c.template each<V>(call.x, i, j, [&](int u, auto... v) {
        r[u] = rows::as_pack(rows::with_first<Call::reduced>(f, v...));
#pragma unroll
        for (std::size_t k = 0; k < K; ++k) s[k] = Monoid::join(s[k], r[u].v[D + k].r);
      });
      put(j, r);
    });
  }
  template <class F>
  using result_of_columns = decltype(rows::as_pack(std::declval<result_of<V, F, Call::reduced>>()));
  template <class F, std::size_t D = 0>
  static constexpr std::size_t joined_numbers = rows::pack_size<result_of_columns<F>> - D;
  /// As programs take it.
  template <std::size_t K>
  static TIGON_DEVICE_INLINE auto as_sum(const A (&s)[K]) {
    if constexpr (K == 1) {
      return s[0];
    } else {
      std::array<A, K> all;
#pragma unroll
      for (std::size_t k = 0; k < K; ++k) all[k] = s[k];
      return all;
    }
  }
  /// The operands of reduce, as bound_program counts them: their values are loaded already.
  template <std::size_t... k>
  static TIGON_DEVICE_INLINE auto reads_of(std::index_sequence<k...>) {
    return simd::reads((static_cast<void>(k), simd::columns_t())...);
  }
  static TIGON_DEVICE_INLINE auto reads() { return reads_of(std::make_index_sequence<Call::reduced>()); }
  template <class Reads, class F>
  TIGON_DEVICE_INLINE auto sum(Reads, const F& f) const {
    return joined<add, 0>(f, [](std::size_t, const auto&) {});
  }
  template <class Reads, class F>
  TIGON_DEVICE_INLINE auto max(Reads, const F& f) const {
    return joined<larger, 0>(f, [](std::size_t, const auto&) {});
  }

  /// What the program makes of the row. A reduction about a guess at the mean begins about that of the first columns,
  /// which is nearly always near enough; a barrier of a block is dearer than their loads.
  TIGON_DEVICE_INLINE auto value() const {
    if constexpr (requires(typename program_of<Call>::state s, A guess) { s.begin_about(guess); }) {
      typename program_of<Call>::state state{};
      columns_of<N, std::tuple_element_t<0, typename Call::operands>> first;
      first.load(std::get<0>(call.x), i, 0);
      A sum(0);
#pragma unroll
      for (int u = 0; u < N; ++u) sum += first.template get<V>(u).r;
      state.begin_about(sum / A(N));
      return call.bound.value_after(*this, call.bound.reduced_from(*this, state, reads()), reads(), state);
    } else {
      return call.bound.value_of(*this, reads());
    }
  }

  /// Whether there are rows that another program computes, in f64.
  static constexpr bool some_in_f64() {
    if constexpr (Call::reduces)
      return rows::has_rows_in_f64<program_of<Call>,
                                   std::remove_cvref_t<decltype(std::declval<const row_thread&>().value())>>;
    else
      return false;
  }
  /// run(thread, map) with the map of this row: the row is reduced, if the program does so, and what it saves is saved.
  /// For a row that another program computes, in f64, in_f64(thread, program) is called instead.
  template <class Run, class InF64>
  TIGON_DEVICE_INLINE void with_map(Run run, InF64 in_f64) const {
    if constexpr (Call::reduces)
      with_map_of(this->value(), run, in_f64);
    else
      run(*this, map_of_row<V, program_of<Call>>{call.bound.p, {}});
  }
  /// The same for two rows of one group, whose sums are joined together.
  template <class Run, class InF64>
  static TIGON_DEVICE_INLINE void with_maps(const row_thread& a, const row_thread& b, Run run, InF64 in_f64) {
    const auto& bound = a.call.bound;
    const auto of_a = bound.template reduction<Call::reduced>(a.i), of_b = bound.template reduction<Call::reduced>(b.i);
    constexpr std::size_t K = joined_numbers<std::remove_const_t<decltype(of_a)>>;
    const auto put = [](std::size_t, const auto&) {};
    A s[K], t[K], both[2 * K];
    a.template join_columns<add, 0>(of_a, put, s), b.template join_columns<add, 0>(of_b, put, t);
#pragma unroll
    for (std::size_t k = 0; k < K; ++k) both[k] = s[k], both[K + k] = t[k];
    group::template reduce<add>(both);
#pragma unroll
    for (std::size_t k = 0; k < K; ++k) s[k] = both[k], t[k] = both[K + k];
    // Both, before anything is stored, so that their numbers are loaded together.
    const auto value_of_a = bound.value_after(a, as_sum(s), reads()),
               value_of_b = bound.value_after(b, as_sum(t), reads());
    a.with_map_of(value_of_a, run, in_f64), b.with_map_of(value_of_b, run, in_f64);
  }
  /// Whether every row is reduced once, from its operands as they are.
  static constexpr bool reduces_once = Call::reduces && !rows::has_state<program_of<Call>>;
  /// Stores what the map makes, and what needs no reduction.
  template <class Map>
  TIGON_DEVICE_INLINE void store(const Map& map) const {
    if (!here) return;
    for_columns([&](int, std::size_t j, const columns& c) {
      result_of<V, direct_then<Map>, std::tuple_size_v<typename Call::operands>> r[N];
      c.template each<V>(call.x, i, j, [&](int u, auto... v) { r[u] = direct_then<Map>{map}(v...); });
      put_all(call.y, i, j, r);
    });
  }
  /// The same of a program with K sums over the rows, which the map takes and returns behind everything else.
  template <class Map, class Sums, std::size_t... k>
  TIGON_DEVICE_INLINE void store_and_add(const Map& map, Sums& sums, std::index_sequence<k...>) const {
    constexpr std::size_t K = sizeof...(k), operands = std::tuple_size_v<typename Call::operands>;
    using result = result_of<V, direct_then<Map>, operands + K>;
    constexpr std::size_t first_sum = rows::pack_size<result> - K;
    for_columns([&](int t, std::size_t j, const columns& c) {
      result r[N];
      A s[K][N];
      sums.load(s, t, j);
      c.template each<V>(call.x, i, j, [&](int u, auto... v) {
        r[u] = direct_then<Map>{map}(v..., V(s[k][u])...);
        ((s[k][u] = r[u].v[first_sum + k].r), ...);
      });
      sums.store(s, t, j);
      put_all(call.y, i, j, r);
    });
  }
  /// Zeros in what needs no reduction.
  TIGON_DEVICE_INLINE void clear() const {
    simd::pack<V, Call::direct + 1> none[N];
#pragma unroll
    for (int u = 0; u < N; ++u)
#pragma unroll
      for (std::size_t k = 0; k <= Call::direct; ++k) none[u].v[k] = V(A(0));
    for (std::size_t j = column(0); j < cols; j += std::size_t{group::size()} * N) put_all(call.y, i, j, none);
  }

 private:
  template <class X>
  TIGON_DEVICE_INLINE void prefetch_of(const X& x) const {
    using op = operand<X>;
    if constexpr (op::has_rows)
      if (const auto* const row = op::row(x, i); row != nullptr)
        prefetch_to_l2(row, cols * op::per_column * static_cast<unsigned>(sizeof(*row)));
  }

  template <class Value, class Run, class InF64>
  TIGON_DEVICE_INLINE void with_map_of(const Value& value, Run run, InF64 in_f64) const {
    if constexpr (rows::has_rows_in_f64<program_of<Call>, Value>)
      if (const auto program = call.bound.p.in_f64(value)) return in_f64(*this, *program);
    run(*this, map_of_row<V, program_of<Call>, Value>{call.bound.p, {value}});
  }

  // What direct makes of the operands of reduce, if the program has it, then the map of all.
  template <class Map>
  struct direct_then {
    const Map& map;
    template <class... X>
    TIGON_DEVICE_INLINE auto operator()(X... v) const {
      if constexpr (Call::direct != 0) {
        const auto direct = [&](auto... x) { return rows::as_pack(map.p.direct(x...)); };
        return rows::joined(rows::with_first<Call::reduced>(direct, v...), map(v...));
      } else {
        return map(v...);
      }
    }
  };
};

/// A row that `program` computes, in f64: read again for it, element by element, by a function of its own, since there
/// are few, and f64 would leave no registers for the others. run(thread, map) stores it.
template <class Shape, class Call, class P, class Run>
TIGON_DEVICE_NOINLINE void row_in_f64(const Call& call, P program, std::size_t i, unsigned cols, bool here, Run run) {
  const auto wide = call.in_f64(program);
  using thread = row_thread<row_shape<Shape::lanes, 0, Shape::most_threads>, 1, std::remove_const_t<decltype(wide)>>;
  typename thread::columns none[1];
  const thread row{wide, i, cols, none, here};
  row.with_map(run, [](const auto&, const auto&) {});
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_ROW_HPP

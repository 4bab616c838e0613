// Elementary steps, each a pass over memory of its own, as a framework without fusion runs them. Loops and elementary
// functions are those of the row layer, so that a comparison with the operators shows what fusion gains and nothing
// else.
#ifndef TIGON_BENCH_PLAIN_PASSES_HPP
#define TIGON_BENCH_PLAIN_PASSES_HPP

#include <tigon/backends/highway/backend.hpp>
#include <tigon/rows/matrices.hpp>
#include <tigon/rows/row.hpp>

#include <cmath>
#include <cstddef>
#include <string_view>

namespace tigon_bench {

/// Takes the place of a backend in a benchmark that has steps beside the operator.
struct plain {
  struct described {
    std::string_view name;
  };
  static constexpr described info{"plain"};
};

namespace passes {

using lanes = tigon::backends::highway;
template <class T>
using in = tigon::matrix_view<const T>;
template <class T>
using out = tigon::matrix_view<T>;

/// Matrices of intermediate results, in the workspace, where their memory is counted. Beside them is room for sums over
/// rows of `cols` columns.
template <class A>
class temporaries {
 public:
  temporaries(tigon::context& ctx, std::size_t count, std::size_t rows, std::size_t cols)
      : frame_((ctx.workspace().expect("plain", bytes(count, rows, cols)), ctx.workspace())),
        rows_(rows),
        cols_(cols) {}

  tigon::matrix_view<A> matrix() { return {frame_.template take<A>(rows_ * cols_), rows_, cols_}; }
  /// A number of every row.
  A* numbers() { return frame_.template take<A>(rows_); }

 private:
  static std::size_t bytes(std::size_t count, std::size_t rows, std::size_t cols) {
    using tigon::workspace;
    return count * workspace::bytes_for<A>(rows * cols) + numbers_of_rows * workspace::bytes_for<A>(rows) +
           tigon::simd::partials_workspace<lanes, A>(rows, cols, 1);
  }
  static constexpr std::size_t numbers_of_rows = 4;

  tigon::workspace::frame frame_;
  std::size_t rows_, cols_;
};

inline constexpr auto product = [](auto a, auto b) { return a * b; };
inline constexpr auto sum = [](auto a, auto b) { return a + b; };
inline constexpr auto difference = [](auto a, auto b) { return a - b; };
inline constexpr auto square = [](auto a) { return a * a; };
inline constexpr auto same = [](auto a) { return a; };
inline constexpr auto exponential = [](auto a) { return exp(a); };
/// A number of the row, then an element.
inline constexpr auto scaled = [](auto s, auto v) { return v * s; };
inline constexpr auto shifted = [](auto s, auto v) { return v - s; };
inline constexpr auto raised = [](auto s, auto v) { return v + s; };
/// v -> a v, of a number that all elements share.
template <class A>
auto times(A a) {
  return [a](auto v) { return v * a; };
}

/// Operand: of row i the row at(i) of a matrix, as it is looked up.
template <class T, class At>
struct looked_up {
  in<T> table;
  At at;
};
template <class T, class At>
looked_up<T, At> look_up(in<T> table, At at) {
  return {table, at};
}

template <class X>
X of_row(X x, std::size_t) {
  return x;
}
template <class T, class At>
tigon::vector_view<const T> of_row(looked_up<T, At> x, std::size_t i) {
  return {x.table.row(x.at(i)), x.table.cols};
}

/// y = f(x...), element by element.
template <class T, class F, class... X>
void each(tigon::context& ctx, out<T> y, F f, X... x) {
  tigon::simd::for_rows<lanes, tigon::accumulator_t<T>>(
      ctx, y.rows, y.cols, [=] TIGON_FN(auto row) { row.map(tigon::reads(of_row(x, row.i)...), tigon::writes(y), f); });
}

/// y = f(s, x...), s a number of the row.
template <class T, class A, class F, class... X>
void each_with(tigon::context& ctx, out<T> y, const A* s, F f, X... x) {
  tigon::simd::for_rows<lanes, A>(ctx, y.rows, y.cols, [=] TIGON_FN(auto row) {
    const A of_this_row = s[row.i];
    row.map(tigon::reads(of_row(x, row.i)...), tigon::writes(y), [=](auto... v) {
      using V = std::common_type_t<decltype(v)...>;
      return f(V(of_this_row), v...);
    });
  });
}

/// s = the sum of every row.
template <class T, class A>
void sum_rows(tigon::context& ctx, in<T> x, A* s) {
  tigon::simd::for_rows<lanes, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
    const auto total = row.sum(tigon::reads(x), [](auto v) { return v; });
    if (row.first()) s[row.i] = static_cast<A>(total);
  });
}

/// s = the maximum of every row.
template <class T, class A>
void max_rows(tigon::context& ctx, in<T> x, A* s) {
  tigon::simd::for_rows<lanes, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
    const auto most = row.max(tigon::reads(x), [](auto v) { return v; });
    if (row.first()) s[row.i] = static_cast<A>(most);
  });
}

/// s = f(s), number by number.
template <class A, class F>
void numbers(A* s, std::size_t count, F f) {
  for (std::size_t i = 0; i < count; ++i) s[i] = static_cast<A>(f(s[i]));
}

/// sums = the sum of every column.
template <class T, class P>
void sum_columns(tigon::context& ctx, in<T> x, tigon::vector_view<P> sums) {
  tigon::detail::sum_columns<lanes>(x, sums, tigon::gradient::overwrite, ctx);
}

/// s[i] = the sum of t = f(x...) of every row, and t.
template <class A, class F, class... X>
void each_and_sum(tigon::context& ctx, out<A> t, A* s, F f, X... x) {
  each(ctx, t, f, x...);
  sum_rows(ctx, in<A>(t), s);
}

template <class A>
A sum_of(const A* s, std::size_t count) {
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) total += s[i];
  return static_cast<A>(total);
}

}  // namespace passes
}  // namespace tigon_bench

#endif  // TIGON_BENCH_PLAIN_PASSES_HPP

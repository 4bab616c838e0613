// Row programs: every pass over a row against a plain loop. Values are small whole numbers, so that sums are exact in
// every order and comparisons are equalities.
#include <gtest/gtest.h>

#include <tigon/rows/row.hpp>

#include <numeric>

#include "support/backends.hpp"
#include "support/guarded.hpp"
#include "support/measure.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::for_rows, tigon::gradient, tigon::matrix_view, tigon::pack,
    tigon::vector_view;
using tigon::simd::detail::no_reduction, tigon::simd::detail::prepared_map, tigon::simd::detail::row_value,
    tigon::simd::detail::touched;

/// What the driver makes of a program, of operands one by one.
template <class F, class... X>
auto declared_reduction(F f, X... x) {
  return tigon::simd::detail::declared_reduction(f, std::tuple(x...));
}
template <class T, class F, class... X>
auto declared_map(matrix_view<T> out, F f, X... x) {
  return tigon::simd::detail::declared_map(tigon::writes(out), f, std::tuple(x...));
}
template <class... Y, class F, class... X>
auto declared_map(tigon::simd::writes<Y...> out, F f, X... x) {
  return tigon::simd::detail::declared_map(out, f, std::tuple(x...));
}
template <class B, class A, class Reduction, class F, class... T>
void run_with_partials(context& ctx, std::size_t rows, std::size_t cols, Reduction reduction, F fn,
                       tigon::parameter_gradient<T>... to) {
  tigon::simd::detail::run_rows<B, A>(ctx, rows, cols, reduction, fn, tigon::adds_to(to...));
}

/// The engine of a backend with thresholds so low that every task, group, block and streamed row occurs in small
/// shapes.
template <class Parent, std::size_t Unroll, tigon::row_order Order = tigon::row_order::lookahead>
struct eager : Parent {
  using parent = Parent;
  static constexpr tigon::backend_info info = Parent::info;
  using overrides = tigon::op_list<>;
  static constexpr tigon::row_tuning row{
      .cpu = {.name = "eager", .order = Order, .reduced_bytes = 3000, .group_elements = 300},
      .unroll = Unroll,
      .task_elements = 256,
      .partials = 5,
      .stream_bytes = 64,
      .block_cols = 64};
};

/// Single numbers and the default's lanes, a type of every width, every order and number of vectors a step; with
/// TIGON_TESTS_ENGINES every engine, and more of each with the others.
using pairs = with_engines<
    list<on<tigon::backends::highway, float>, on<eager<tigon::backends::generic, 1>, float>,
         on<eager<tigon::backends::highway, 4, tigon::row_order::interleaved>, double>,
         on<eager<tigon::backends::highway, 2, tigon::row_order::reduce_then_map>, tigon::bfloat16>>,
    on<eager<tigon::backends::eigen, 4>, tigon::bfloat16>,
    on<eager<tigon::backends::xsimd, 4, tigon::row_order::interleaved>, double>, on<tigon::backends::generic, float>,
    on<tigon::backends::eigen, tigon::bfloat16>, on<tigon::backends::xsimd, double>,
    on<eager<tigon::backends::xsimd, 4, tigon::row_order::interleaved>, float>,
    on<eager<tigon::backends::highway, 1>, tigon::bfloat16>, on<eager<tigon::backends::highway, 4>, double>>;

template <class T>
TIGON_TEST_NOINLINE guarded_matrix<T> whole_numbers(shape s, std::uint64_t seed, guard side = guard::behind) {
  guarded_matrix<T> out(s.rows, s.cols, s.padding, side);
  std::mt19937_64 generator(seed);
  std::vector<double> values(s.rows * s.cols);
  for (double& v : values) v = static_cast<double>(generator() % 8);
  out.assign(values);
  return out;
}

/// Lengths around those at which a loop has another step or tail, and an empty row.
template <class B, class T>
std::vector<std::size_t> lengths() {
  const std::size_t n = lanes<B, T>, step = B::row.unroll * n;
  std::vector<std::size_t> out{0, 1, 2, n + 1, step, step + 1, 2 * step + n + 1, 70 * step + n + 3, 130};
  if (n > 1) out.insert(out.end(), {n - 1, n, step - 1});
  return out;
}

template <class On>
class row : public testing::Test {};
struct with_thresholds {
  template <class P>
  static std::string GetName(int i) {
    const bool eager = P::backend::row.stream_bytes < 100;
    return names::GetName<P>(i) + (!eager                                                     ? ""
                                   : P::backend::row.cpu.order == tigon::row_order::lookahead ? "_eager_ahead"
                                                                                              : "_eager");
  }
};
TYPED_TEST_SUITE(row, pairs, with_thresholds);

TYPED_TEST(row, sums_and_maxima) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : lengths<B, T>())
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << side);
      const auto x = whole_numbers<T>({3, cols, 2}, 1, side), y = whole_numbers<T>({3, cols, 2}, 2, side);
      const auto a = x.view(), b = y.view();
      guarded<A> sums(3), maxima(3), products(3), counts(3), many(15);
      for_rows<B, A>(tigon::default_context(), 3, cols, [&](auto row) {
        const auto two = row.sum(tigon::reads(a, b, tigon::constant(A(1))), [](auto u, auto v, auto one) {
          return pack{u * v, one};
        });
        products[row.i] = two[0], counts[row.i] = two[1];
        const auto five = row.sum(tigon::reads(a, b),  // more than registers hold of four accumulators each
                                  [](auto u, auto v) {
                                    return pack{u, v, u * v, u * u, v * v};
                                  });
        for (std::size_t k = 0; k < 5; ++k) many[5 * row.i + k] = five[k];
        sums[row.i] = row.sum(tigon::reads(tigon::read_again(a)), [](auto u) { return u; });
        maxima[row.i] =
            row.max(tigon::reads(a), [](auto u) { return decltype(u)(A(-1)) - u; });  // never 0, where registers begin
      });
      for (std::size_t i = 0; i < 3; ++i) {
        double sum = 0, other = 0, product = 0, square = 0, other_square = 0;
        double most = -std::numeric_limits<double>::infinity();
        for (std::size_t j = 0; j < cols; ++j) {
          const double u = to_f64(x(i, j)), v = to_f64(y(i, j));
          sum += u, other += v, product += u * v, square += u * u, other_square += v * v, most = std::max(most, -1 - u);
        }
        const double five[] = {sum, other, product, square, other_square};
        for (std::size_t k = 0; k < 5; ++k) EXPECT_EQ(to_f64(many[5 * i + k]), five[k]) << "sum " << k << " of five";
        EXPECT_EQ(to_f64(sums[i]), sum);
        EXPECT_EQ(to_f64(products[i]), product);
        EXPECT_EQ(to_f64(counts[i]), static_cast<double>(cols));
        EXPECT_EQ(to_f64(maxima[i]), most);
      }
    }
}

TYPED_TEST(row, sums_prefetch_rows_further_down) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t rows = 6, cols = 40, large = 3 * B::row.stream_bytes;
  const auto x = whole_numbers<T>({rows, cols, 3}, 1);
  const auto small = x.view();
  // Only its numbers are looked at: nothing is read.
  const matrix_view<const T> whole(small.data, large, 1, 5), wide(small.data, large, B::row.cpu.prefetch_row_bytes, 5);
  const auto next = [](auto m, std::size_t row, std::size_t matrices, std::size_t ahead) {
    // Where memory is read and written alternately, a sum prefetches half as much.
    constexpr bool half = B::row.cpu.order == tigon::row_order::reduce_then_map;
    using tigon::simd::detail::source;
    EXPECT_EQ(source<B>(tigon::read_again(m), {row, 0, matrices, ahead}).next,
              source<B>(m, {row, 0, half ? 2 * matrices : matrices, ahead}).next);
    return source<B>(m, {row, 0, matrices, ahead}).next;
  };
  EXPECT_EQ(next(whole, 0, 1, 1), 5u);
  EXPECT_EQ(next(whole, 1, 1, 4), 20u);
  EXPECT_EQ(next(whole, large - 5, 1, 4), 20u);
  EXPECT_EQ(next(whole, large - 4, 1, 4), 0u) << "there is none";
  EXPECT_EQ(next(wide, 0, 1, 1), 0u) << "two rows do not stay in the cache";
  EXPECT_EQ(next(whole, 0, B::row.cpu.prefetch_row_bytes, 1), 0u) << "nor do those of all matrices";
  const std::size_t stride = rows * cols * sizeof(T) >= B::row.stream_bytes ? small.row_stride : 0;
  EXPECT_EQ(next(small, 0, 1, 2), 2 * stride) << "a small matrix is cached anyhow";
  EXPECT_EQ(next(tigon::rows_of<const T>{small, B::row.stream_bytes}, 0, 1, 2), 2 * small.row_stride)
      << "a part of a large one is not";
  const auto in_line = [](auto operand, std::size_t ahead, std::size_t width) {
    return tigon::simd::detail::is_contiguous(tigon::simd::detail::source<B>(operand, {0, 0, 1, ahead}), width);
  };
  EXPECT_TRUE(in_line(whole, 1, 5));
  EXPECT_FALSE(in_line(whole, 2, 5)) << "prefetches the row after the next";
  EXPECT_FALSE(in_line(whole, 1, 4)) << "part of a row";
  EXPECT_FALSE(in_line(vector_view<const T>{small.data, cols}, 1, cols)) << "the same for every row";
  EXPECT_TRUE(in_line(tigon::constant<double>{1}, 1, 5));
  using source = decltype(tigon::simd::detail::source<B>(tigon::read_again(small), {0, 0}));
  EXPECT_EQ(tigon::simd::detail::is_read_again<source>, B::row.cpu.order != tigon::row_order::lookahead);
}

template <class B, class A, class SideWork>
constexpr bool map_prefetches(const tigon::simd::row_worker<B, A, SideWork>&) {
  return SideWork::prefetches;
}

TYPED_TEST(row, maps_prefetch_the_rows_that_sums_prefetch) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const auto x = whole_numbers<T>({3, 40}, 1);
  const auto a = x.view();
  std::size_t rows = 0;
  run_with_partials<B, A>(
      tigon::default_context(), 3, 40, declared_reduction([](std::size_t) { return [](auto v) { return v; }; }, a),
      [&] TIGON_FN(auto row, A) {
        EXPECT_EQ(map_prefetches(row), B::row.cpu.order != tigon::row_order::lookahead &&
                                           (tigon::simd::vec<typename B::engine, A>::size > 1));
        ++rows;
      },
      tigon::parameter_gradient<T>{});
  EXPECT_EQ(rows, 3u);
}

/// Which way a map goes over rows: a vector's last columns are still cached where the next row begins with them. Where
/// nothing is read again, or the map sums up too, it goes on from the beginning.
TYPED_TEST(row, maps_turn_round_for_vectors) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  using V = tigon::simd::vec<typename B::engine, A>;
  constexpr std::size_t rows = 4, step = B::row.unroll, cols = 4 * step * V::size;
  const auto x = whole_numbers<T>({rows, cols, 1}, 1), weight = whole_numbers<T>({1, cols}, 2);
  guarded_matrix<T> y(rows, cols, 2);
  const auto a = x.view();
  const auto out = y.view();
  const vector_view<const T> w{weight.view().data, cols};
  for_rows<B, A>(tigon::default_context(), rows, cols, [&](auto row) {
    std::vector<A> seen;
    const auto saw = [&](auto j) {
      alignas(64) A lanes[V::size];
      tigon::simd::store(j, lanes);
      seen.push_back(lanes[0]);
    };
    const auto backwards = [&](auto pass) {
      seen.clear();
      pass();
      return seen.at(step) < seen.at(0);  // the second step, the first one
    };
    const auto f = [&](auto v, auto g, auto j) {
      saw(j);
      return v * g;
    };
    tigon::cached in_cache{a, false};
    const auto map = [&] { row.map(tigon::reads(in_cache, w, tigon::columns), tigon::writes(out), f); };
    const auto map_alone = [&] { row.map(tigon::reads(in_cache, a, tigon::columns), tigon::writes(out), f); };
    const auto map_and_sum = [&] {
      (void)row.map_sum(tigon::reads(in_cache, w, tigon::columns), tigon::writes(out), [&](auto v, auto g, auto j) {
        saw(j);
        return pack{v * g, v};
      });
    };
    EXPECT_FALSE(backwards(map)) << "of a row that was not read before";
    in_cache.is = true;
    const bool every_row = B::row.cpu.order == tigon::row_order::lookahead;
    EXPECT_EQ(backwards(map), every_row || (B::row.cpu.order == tigon::row_order::interleaved && row.i % 2 != 0));
    EXPECT_EQ(backwards(map_alone), every_row) << "without a vector";
    EXPECT_EQ(backwards(map_and_sum), every_row) << "bits of sums would depend on the row's place";
    map();
  });
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j) ASSERT_EQ(to_f64(y(i, j)), to_f64(x(i, j)) * to_f64(weight(0, j)));
  EXPECT_TRUE(y.padding_intact());
}

TYPED_TEST(row, does_not_stream_what_is_cached) {
  using T = typename TypeParam::element;
  guarded_matrix<T> y(2, 64, 1);
  const auto streams = [](auto output) { return tigon::simd::detail::sink(output, {1, 0}).streams(64); };
  EXPECT_TRUE(streams(y.view()) && streams(tigon::cached{y.view(), false}));
  EXPECT_FALSE(streams(tigon::cached{y.view()}));
  const tigon::pair_columns<T> pairs{y.view()};
  EXPECT_TRUE(streams(pairs) && !streams(tigon::cached{pairs}));
}

TYPED_TEST(row, reduces_with_any_monoid) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : lengths<B, T>()) {
    const auto x = whole_numbers<T>({2, cols}, 3);
    const auto a = x.view();
    for_rows<B, A>(tigon::default_context(), 2, cols, [&](auto row) {
      // The largest value and where it is first.
      const auto best = row.reduce(
          tigon::reads(a, tigon::columns), std::array<A, 2>{-1, 1e9},
          [](auto v, auto j) {
            return pack{v, j};
          },
          [](auto p, auto q) {
            const auto better = q.v[0] > p.v[0] || (q.v[0] == p.v[0] && q.v[1] < p.v[1]);
            return decltype(p){{select(better, q.v[0], p.v[0]), select(better, q.v[1], p.v[1])}};
          });
      std::array<A, 2> wanted{-1, 1e9};
      for (std::size_t j = cols; j-- > 0;)
        if (static_cast<A>(x(row.i, j)) >= wanted[0]) wanted = {static_cast<A>(x(row.i, j)), static_cast<A>(j)};
      EXPECT_EQ(best, wanted) << cols << " columns";
    });
  }
}

TYPED_TEST(row, reads_and_writes_pairs_of_columns) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : lengths<B, T>())
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << cols << " pairs, " << side);
      const guarded_matrix<T> x = random_matrix<T>({2, 2 * cols, 2}, 4, side);
      guarded_matrix<T> even(2, cols, 2, side), swapped(2, 2 * cols, 2, side);
      const auto in = x.view();
      for_rows<B, A>(tigon::default_context(), 2, cols, [&](auto row) {
        row.map(tigon::reads(tigon::pair_column<0>(in)), tigon::writes(even.view()), [](auto v) { return v; });
        row.map(tigon::reads(tigon::pair_column<0>(in), tigon::pair_column<1>(in)),
                tigon::writes(tigon::pair_columns{swapped.view()}), [](auto a, auto b) {
                  return pack{b, a};
                });
      });
      for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t j = 0; j < cols; ++j) {
          EXPECT_EQ(to_f64(even(i, j)), to_f64(x(i, 2 * j)));
          EXPECT_EQ(to_f64(swapped(i, 2 * j)), to_f64(x(i, 2 * j + 1)));
          EXPECT_EQ(to_f64(swapped(i, 2 * j + 1)), to_f64(x(i, 2 * j)));
        }
      EXPECT_TRUE(even.padding_intact() && swapped.padding_intact());
    }
}

/// Zeros, subnormal and other numbers mixed are stored as they are among few zeros.
TYPED_TEST(row, writes_what_is_often_zero) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : lengths<B, T>())
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << side);
      T smallest;
      if constexpr (sizeof(T) == 2)
        smallest = std::bit_cast<T>(std::uint16_t{1});
      else
        smallest = std::numeric_limits<T>::denorm_min();
      guarded_matrix<T> x = random_matrix<T>({2, cols, 2}, 4, side);
      for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t j = 0; j < cols; ++j)
          if ((i + j) % 3 != 0) x(i, j) = (i + j) % 3 == 1 ? T(0) : smallest;
      guarded_matrix<T> y(2, cols, 2, side), pairs(2, 2 * cols, 2, side);
      const auto in = x.view();
      for_rows<B, A>(tigon::default_context(), 2, cols, [&](auto row) {
        row.map(tigon::reads(in), tigon::writes(tigon::often_zero{y.view()}), [](auto v) { return -v; });
        row.map(tigon::reads(in), tigon::writes(tigon::often_zero{tigon::pair_columns{pairs.view()}}), [](auto v) {
          return pack{v, -v};
        });
      });
      for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t j = 0; j < cols; ++j) {
          EXPECT_EQ(to_f64(y(i, j)), -to_f64(x(i, j))) << i << ", " << j;
          EXPECT_EQ(to_f64(pairs(i, 2 * j)), to_f64(x(i, j))) << i << ", " << j;
          EXPECT_EQ(to_f64(pairs(i, 2 * j + 1)), -to_f64(x(i, j))) << i << ", " << j;
        }
      EXPECT_TRUE(y.padding_intact() && pairs.padding_intact());
    }
}

/// y = 2x + j and z = x * w + 1 with the sums of x and of one, written up or (where x was just read) down the row.
TYPED_TEST(row, maps_to_two_outputs_and_sums) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : lengths<B, T>())
    for (const bool after_reading : {false, true})
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << cols << " columns, " << side << (after_reading ? ", downwards" : ""));
        const auto x = whole_numbers<T>({3, cols, 1}, 5, side), w = whole_numbers<T>({1, cols}, 6, side);
        guarded_matrix<T> y(3, cols, 2, side), z(3, cols, 3, side);
        guarded<A> sums(3), counts(3);
        const auto a = x.view();
        const auto out = tigon::writes(y.view(), z.view());
        const vector_view<const T> g{w.view().data, cols};
        for_rows<B, A>(tigon::default_context(), 3, cols, [&](auto row) {
          const auto two =
              row.map_sum(tigon::reads(tigon::cached{a, after_reading}, tigon::columns, g, tigon::constant(A(1))), out,
                          [](auto v, auto j, auto f, auto one) {
                            return pack{v + v + select(j < decltype(j)(A(64)), j, one - one), v * f + one, v, one};
                          });
          sums[row.i] = two[0], counts[row.i] = two[1];
        });
        for (std::size_t i = 0; i < 3; ++i) {
          double sum = 0;
          for (std::size_t j = 0; j < cols; ++j) {
            const double v = to_f64(x(i, j));
            sum += v;
            ASSERT_EQ(to_f64(y(i, j)), 2 * v + (j < 64 ? static_cast<double>(j) : 0))
                << "row " << i << ", column " << j;
            ASSERT_EQ(to_f64(z(i, j)), v * to_f64(w(0, j)) + 1) << "row " << i << ", column " << j;
          }
          EXPECT_EQ(to_f64(sums[i]), sum);
          EXPECT_EQ(to_f64(counts[i]), static_cast<double>(cols));
        }
        EXPECT_TRUE(y.padding_intact() && z.padding_intact());
      }
}

/// y = 2x with the sum of x and the maximum of -x.
TYPED_TEST(row, maps_with_a_sum_and_a_maximum) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : lengths<B, T>()) {
    SCOPED_TRACE(testing::Message() << cols << " columns");
    auto x = whole_numbers<T>({7, cols, 1}, 5);
    for (std::size_t i = 0; i < 7 && cols > 0; ++i) x(i, i * (cols - 1) / 6) = from_f64<T>(-300);
    for (std::size_t j = 0; j < cols; ++j) x(6, j) = from_f64<T>(300);  // all below zero: no lane is a zero
    guarded_matrix<T> y(7, cols, 2);
    const auto a = x.view();
    const auto out = y.view();
    std::array<A, 2> got[7];
    for_rows<B, A>(tigon::default_context(), 7, cols, [&](auto row) {
      got[row.i] = row.template map_sum<1>(tigon::reads(a), tigon::writes(out), [](auto v) {
        return pack{v + v, v, decltype(v)(A(0)) - v};
      });
    });
    for (std::size_t i = 0; i < 7; ++i) {
      double sum = 0, most = -std::numeric_limits<double>::infinity();
      for (std::size_t j = 0; j < cols; ++j) {
        const double v = to_f64(x(i, j));
        sum += v, most = std::max(most, -v);
        ASSERT_EQ(to_f64(y(i, j)), 2 * v) << "row " << i << ", column " << j;
      }
      EXPECT_EQ(static_cast<double>(got[i][0]), sum);
      EXPECT_EQ(static_cast<double>(got[i][1]), most);
    }
    EXPECT_TRUE(y.padding_intact());
  }
}

TYPED_TEST(row, writes_from_every_alignment_and_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const std::size_t n = lanes<B, T>, cols = 9 * n + 5, room = 2 * n + cols;
  const auto x = whole_numbers<T>({4, cols}, 7);
  const auto a = x.view();
  for (std::size_t shift = 0; shift <= n; ++shift)
    for (const std::size_t second : {shift, n - shift}) {  // outputs with one alignment, and with two
      guarded_matrix<T> y(4, room, 1), z(4, room, 3);
      const auto first_out = y.view().cols_from(shift, cols), second_out = z.view().cols_from(second, cols);
      for_rows<B, A>(tigon::default_context(), 4, cols, [=](auto row) {
        row.map(tigon::reads(a), tigon::writes(first_out, second_out), [](auto v) { return pack{v + v, v * v}; });
      });
      for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t j = 0; j < room; ++j) {
          const bool in_first = j >= shift && j < shift + cols, in_second = j >= second && j < second + cols;
          ASSERT_TRUE(in_first ? to_f64(y(i, j)) == 2 * to_f64(x(i, j - shift)) : std::isnan(to_f64(y(i, j))))
              << i << ", " << j;
          const double v = in_second ? to_f64(x(i, j - second)) : 0;
          ASSERT_TRUE(in_second ? to_f64(z(i, j)) == v * v : std::isnan(to_f64(z(i, j)))) << i << ", " << j;
        }
      for_rows<B, A>(tigon::default_context(), 4, cols, [=](auto row) {
        row.map(tigon::reads(first_out, second_out), tigon::writes(second_out, first_out), [](auto u, auto v) {
          return pack{u, v};
        });  // exchange
      });
      for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t j = 0; j < cols; ++j) {
          ASSERT_EQ(to_f64(z(i, second + j)), 2 * to_f64(x(i, j)));
          ASSERT_EQ(to_f64(y(i, shift + j)), to_f64(x(i, j)) * to_f64(x(i, j)));
        }
      guarded_matrix<T> u(4, room, 2);
      const auto beside = u.view().cols_from(second, cols);
      for_rows<B, A>(tigon::default_context(), 4, cols, [=](auto row) {
        row.map(tigon::reads(first_out), tigon::writes(first_out, beside), [](auto v) {
          return pack{v + v, v};
        });  // one in place, the other not
      });
      for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t j = 0; j < room; ++j) {
          const bool in_first = j >= shift && j < shift + cols, in_second = j >= second && j < second + cols;
          const double v = in_first ? to_f64(x(i, j - shift)) : 0, w = in_second ? to_f64(x(i, j - second)) : 0;
          ASSERT_TRUE(in_first ? to_f64(y(i, j)) == 2 * v * v : std::isnan(to_f64(y(i, j)))) << i << ", " << j;
          ASSERT_TRUE(in_second ? to_f64(u(i, j)) == w * w : std::isnan(to_f64(u(i, j)))) << i << ", " << j;
        }
    }
}

TYPED_TEST(row, narrows_reads_and_puts) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const std::size_t cols = 3 * lanes<B, T> + 5;
  const auto x = whole_numbers<T>({3, cols}, 8);
  guarded_matrix<T> y(3, cols);
  const auto a = x.view();
  const auto out = y.view();
  const vector_view<const T> shared{a.row(1), cols};
  for_rows<B, A>(tigon::default_context(), 3, cols, [=](auto row) {
    row.part(0, cols - 3).map(tigon::reads(a), tigon::writes(out), [](auto v) { return v; });
    row.part(cols - 3, 2).map(tigon::reads(a, tigon::columns), tigon::writes(out), [](auto v, auto j) {
      return v + j;
    });
    row.put(out, cols - 1, row.at(a, 0) + 8 * row.at(shared, 2));
  });
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < cols - 1; ++j)
      ASSERT_EQ(to_f64(y(i, j)), to_f64(x(i, j)) + (j < cols - 3 ? 0 : static_cast<double>(j)));
    EXPECT_EQ(to_f64(y(i, cols - 1)), to_f64(x(i, 0)) + 8 * to_f64(x(1, 2)));
  }
}

TYPED_TEST(row, partials_add_up_to_parameter_gradients) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : {std::size_t{1}, lanes<B, T> + 1, std::size_t{64}, std::size_t{200}, std::size_t{1100}})
    for (const std::size_t rows : {0u, 1u, 7u, 40u})
      for (const gradient mode : {gradient::overwrite, gradient::accumulate}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << (mode == gradient::accumulate ? ", added" : ""));
        const auto x = whole_numbers<T>({rows, cols}, 9), factors = whole_numbers<T>({1, cols}, 13);
        const vector_view<const T> w{factors.view().data, cols};
        guarded<A> sums(rows), weighted(rows);
        auto second = whole_numbers<T>({1, cols}, 10);
        guarded_matrix<T> y(rows, cols, 1);
        const auto before = second.f64();
        const auto a = x.view();
        const auto out = y.view();
        run_with_partials<B, A>(
            tigon::default_context(), rows, cols,
            declared_reduction(
                [](std::size_t i) {
                  return [=](auto v, auto f) {
                    const decltype(v) number(static_cast<A>(i % 3));
                    return pack{v + decltype(v)(A(1)), number * v * f};
                  };
                },
                a, w),
            [&](auto row, std::array<A, 2> sum) {
              sums[row.i] = sum[0], weighted[row.i] = sum[1];
              const auto nowhere = row.partial(0), square = row.partial(1);
              row.map(tigon::reads(a, nowhere, square), tigon::writes(out, nowhere, square),
                      [=](auto v, auto s, auto t) {
                        return pack{v + v, s + v, t + v * v};
                      });
            },
            tigon::parameter_gradient<T>{{}, mode}, tigon::parameter_gradient<T>{{second.view().data, cols}, mode});
        for (std::size_t j = 0; j < cols; ++j) {
          double wanted = mode == gradient::accumulate ? before[j] : 0;
          for (std::size_t i = 0; i < rows; ++i) wanted += to_f64(x(i, j)) * to_f64(x(i, j));
          ASSERT_EQ(to_f64(second(0, j)), to_f64(static_cast<T>(static_cast<A>(wanted)))) << "column " << j;
        }
        for (std::size_t i = 0; i < rows; ++i) {
          double sum = 0, of_products = 0;
          for (std::size_t j = 0; j < cols; ++j) {
            sum += to_f64(x(i, j)) + 1,
                of_products += static_cast<double>(i % 3) * to_f64(x(i, j)) * to_f64(factors(0, j));
            ASSERT_EQ(to_f64(y(i, j)), 2 * to_f64(x(i, j))) << "row " << i << ", column " << j;
          }
          ASSERT_EQ(to_f64(sums[i]), sum) << "row " << i;
          ASSERT_EQ(to_f64(weighted[i]), of_products) << "row " << i;
        }
        EXPECT_TRUE(y.padding_intact());
      }
}

TYPED_TEST(row, imperative_reductions_take_whole_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t rows = 40;
  for (const std::size_t cols : lengths<B, T>()) {
    SCOPED_TRACE(testing::Message() << cols << " columns");
    const auto x = whole_numbers<T>({rows, cols}, 18);
    const auto a = x.view();
    guarded_matrix<T> early(rows, cols, 2), y(rows, cols, 1);
    const auto to_early = early.view(), to_y = y.view();
    guarded_matrix<A> dw(1, cols);
    guarded<A> sums(rows);
    std::size_t calls[rows] = {};
    tigon::for_rows<B, A>(
        tigon::default_context(), rows, cols, tigon::adds_to(tigon::parameter_gradient<A>{{dw.view().data, cols}}),
        [&](auto row) {
          ++calls[row.i];
          ASSERT_EQ(row.cols, cols);
          const A sum = row.map_sum(tigon::reads(a), tigon::writes(to_early), [](auto v) { return pack{v, v + v}; });
          sums[row.i] = sum;
          const auto acc = row.partial(0);
          row.map(tigon::reads(a, acc), tigon::writes(to_y, acc), [](auto v, auto s) { return pack{v * v, s + v}; });
        });
    for (std::size_t i = 0; i < rows; ++i) {
      ASSERT_EQ(calls[i], 1u) << "row " << i;
      double sum = 0;
      for (std::size_t j = 0; j < cols; ++j) {
        sum += 2 * to_f64(x(i, j));
        ASSERT_EQ(to_f64(early(i, j)), to_f64(x(i, j))) << "row " << i << ", column " << j;
        ASSERT_EQ(to_f64(y(i, j)), to_f64(x(i, j)) * to_f64(x(i, j))) << "row " << i << ", column " << j;
      }
      ASSERT_EQ(to_f64(sums[i]), sum) << "row " << i;
    }
    for (std::size_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < rows; ++i) sum += to_f64(x(i, j));
      ASSERT_EQ(to_f64(dw(0, j)), sum) << "column " << j;
    }
    EXPECT_TRUE(early.padding_intact() && y.padding_intact());
  }
}

TYPED_TEST(row, maps_with_sums_take_rows_together_or_one_by_one) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : {std::size_t{1}, lanes<B, T> + 1, std::size_t{64}, std::size_t{200}, std::size_t{1100}})
    for (const std::size_t rows : {0u, 1u, 7u, 40u})
      for (const std::size_t offset : {0u, 1u}) {  // of y: at a whole vector, and not
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << " from " << offset);
        const auto x = whole_numbers<T>({rows, cols}, 9), z = whole_numbers<T>({rows, cols}, 14),
                   factors = whole_numbers<T>({1, cols}, 13);
        const vector_view<const T> w{factors.view().data, cols};
        guarded_matrix<T> y(rows, cols + offset, 64 - (cols + offset) % 64);
        const matrix_view<T> out(y.view().data + offset, rows, cols, y.view().row_stride);
        auto ones = whole_numbers<A>({1, cols}, 10), products = whole_numbers<A>({1, cols}, 11);
        const auto before = products.f64();
        const auto a = x.view(), b = z.view();
        guarded<A> seen(rows);
        A* const reduced = seen.data();
        run_with_partials<B, A>(
            tigon::default_context(), rows, cols,
            declared_reduction([](std::size_t) { return [](auto v, auto f, auto zero) { return v * f + zero; }; }, a, w,
                               touched(b)),
            declared_map(
                out,
                [=](std::size_t i, A sum) {
                  const A row_number = static_cast<A>(i);
                  reduced[i] = sum;
                  return [=](auto v, auto f, auto u, auto s, auto t) {
                    return pack{v + f + u, s + v, t + v * row_number};
                  };
                },
                a, w, b),
            tigon::parameter_gradient<A>{{ones.view().data, cols}},
            tigon::parameter_gradient<A>{{products.view().data, cols}, gradient::accumulate});
        for (std::size_t j = 0; j < cols; ++j) {
          double sum = 0, product = before[j];
          for (std::size_t i = 0; i < rows; ++i) {
            const double v = to_f64(x(i, j));
            sum += v, product += v * static_cast<double>(i);
            ASSERT_EQ(to_f64(out.row(i)[j]), v + to_f64(factors(0, j)) + to_f64(z(i, j)))
                << "row " << i << ", column " << j;
          }
          ASSERT_EQ(to_f64(ones(0, j)), sum) << "column " << j;
          ASSERT_EQ(to_f64(products(0, j)), product) << "column " << j;
        }
        for (std::size_t i = 0; i < rows; ++i) {
          double sum = 0;
          for (std::size_t j = 0; j < cols; ++j) sum += to_f64(x(i, j)) * to_f64(factors(0, j));
          ASSERT_EQ(to_f64(seen[i]), sum) << "row " << i;
        }
        EXPECT_TRUE(y.padding_intact());
      }
}

/// Maps of three matrices: the sums of a group of rows are made before one of these is written, and the rows may be
/// written in parts. `wide` columns are too many for two rows to stay in the cache.
TYPED_TEST(row, maps_of_three_matrices_know_their_row_and_columns) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t block = B::row.block_cols, wide = 12'000;
  for (const auto& [rows, cols, padding] : {shape{1, 1}, shape{2, lanes<B, T> + 1}, shape{7, block},
                                            shape{40, block + 76, 4}, shape{3, 2 * block + 1}, shape{3, wide}})
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols << (in_place ? " in place" : ""));
      auto x = whole_numbers<T>({rows, cols, padding}, 41);
      const auto before = whole_numbers<T>({rows, cols}, 41), z = whole_numbers<T>({rows, cols}, 42),
                 u = whole_numbers<T>({rows, cols}, 43), factors = whole_numbers<T>({1, cols}, 44);
      const vector_view<const T> w{factors.view().data, cols};
      guarded_matrix<T> y(rows, cols);
      const auto out = in_place ? x.view() : y.view();
      guarded<A> seen(rows), sums(cols);
      A* const reduced = seen.data();
      run_with_partials<B, A>(
          tigon::default_context(), rows, cols,
          declared_reduction(
              [](std::size_t i) { return [=](auto v, auto f, auto, auto) { return v * f + static_cast<A>(i); }; },
              matrix_view<const T>(x.view()), w, touched(z.view()), touched(u.view())),
          declared_map(
              out,
              [=](std::size_t i, A sum) {
                const A number = static_cast<A>(i);
                reduced[i] = sum;
                return [=](auto a, auto b, auto c, auto f, auto s) { return pack{a + b + c + f, s + a * number}; };
              },
              matrix_view<const T>(x.view()), z.view(), u.view(), w),
          tigon::parameter_gradient<A>{{sums.data(), cols}});
      for (std::size_t i = 0; i < rows; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < cols; ++j) {
          sum += to_f64(before(i, j)) * to_f64(factors(0, j)) + static_cast<double>(i);
          ASSERT_EQ(to_f64(out.row(i)[j]),
                    to_f64(before(i, j)) + to_f64(z(i, j)) + to_f64(u(i, j)) + to_f64(factors(0, j)))
              << "row " << i << ", column " << j;
        }
        ASSERT_EQ(to_f64(seen[i]), sum) << "row " << i;
      }
      for (std::size_t j = 0; j < cols; ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < rows; ++i) sum += to_f64(before(i, j)) * static_cast<double>(i);
        ASSERT_EQ(to_f64(sums[j]), sum) << "column " << j;
      }
    }
}

/// Of every row, whatever its width and however many are written together, the first stage is made of that row's own
/// columns, and nothing beyond its end is read.
TYPED_TEST(row, maps_in_two_stages_are_maps) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (std::size_t cols : lengths<B, T>())
    for (const std::size_t rows : {1u, 2u, 7u})
      for (const std::size_t offset : {0u, 1u}) {  // of y: at a whole vector, and not
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << " from " << offset);
        const auto x = whole_numbers<T>({rows, cols}, 31), z = whole_numbers<T>({rows, cols}, 32);
        guarded_matrix<T> y(rows, cols + offset, 64 - (cols + offset) % 64);
        const matrix_view<T> out(y.view().data + offset, rows, cols, y.view().row_stride);
        guarded<A> sums(cols);
        run_with_partials<B, A>(tigon::default_context(), rows, cols, no_reduction{},
                                declared_map(
                                    out,
                                    [](std::size_t i, int) {
                                      const A number = static_cast<A>(i);
                                      return prepared_map{[=](auto v) {
                                                            return pack{v + number, v * v};
                                                          },
                                                          [](auto first, auto v, auto u, auto sum) {
                                                            return pack{first.v[0] + u, sum + first.v[1] - v};
                                                          }};
                                    },
                                    x.view(), z.view()),
                                tigon::parameter_gradient<A>{{sums.data(), cols}});
        for (std::size_t j = 0; j < cols; ++j) {
          double sum = 0;
          for (std::size_t i = 0; i < rows; ++i) {
            const double v = to_f64(x(i, j));
            sum += v * v - v;
            ASSERT_EQ(to_f64(out.row(i)[j]), v + static_cast<double>(i) + to_f64(z(i, j)))
                << "row " << i << ", column " << j;
          }
          ASSERT_EQ(to_f64(sums[j]), sum) << "column " << j;
        }
        EXPECT_TRUE(y.padding_intact());
      }
}

/// Rows in groups, each with a vector of its own, and a reduction of two passes.
template <class B, class T>
TIGON_TEST_NOINLINE void check_map_rows(std::size_t rows, std::size_t size, std::size_t cols, std::size_t offset,
                                        bool in_place) {
  using A = accumulator_t<T>;
  SCOPED_TRACE(testing::Message() << rows << " x " << cols << " in groups of " << size << " from " << offset
                                  << (in_place ? " in place" : ""));
  const std::size_t groups = (rows + size - 1) / size;
  const shape buffer{rows, cols + offset, 64 - (cols + offset) % 64};
  auto x = whole_numbers<T>(buffer, 21);
  const auto before = x.f64();
  guarded_matrix<T> y(buffer.rows, buffer.cols, buffer.padding);
  const auto factors = whole_numbers<T>({groups, cols}, 22), terms = whole_numbers<T>({1, cols}, 23);
  const matrix_view<const T> a(x.view().data + offset, rows, cols, x.view().row_stride);
  auto& to = in_place ? x : y;
  const matrix_view<T> out(to.view().data + offset, rows, cols, to.view().row_stride);
  const matrix_view<const T> w = factors.view();
  const vector_view<const T> b{terms.view().data, cols};
  guarded<A> seen(rows);
  seen.assign(std::vector<double>(rows));
  A* const reduced = seen.data();
  run_with_partials<B, A>(tigon::default_context(), rows, cols, row_value([=](const auto& row) {
                            const A most = row.max(tigon::reads(tigon::read_again(a)), [](auto v) { return v; });
                            reduced[row.i] += row.sum(tigon::reads(tigon::read_again(a)), [](auto v) { return v; });
                            return row.cols == 0 ? A(0) : most;
                          }),
                          declared_map(
                              out,
                              [=](std::size_t i, A most) {
                                const A row_number = static_cast<A>(i);
                                return [=](auto v, auto g, auto t) { return pack{v * g + t + most + row_number}; };
                              },
                              a, tigon::row_of_group(w, size), tigon::or_zeros(b)));
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0, most = 0;
    const auto value = [&](std::size_t j) { return before[i * buffer.cols + offset + j]; };
    for (std::size_t j = 0; j < cols; ++j) sum += value(j), most = std::max(most, value(j));
    ASSERT_EQ(to_f64(seen[i]), sum) << "row " << i;
    for (std::size_t j = 0; j < cols; ++j)
      ASSERT_EQ(to_f64(out.row(i)[j]),
                value(j) * to_f64(factors(i / size, j)) + to_f64(terms(0, j)) + most + static_cast<double>(i))
          << "row " << i << ", column " << j;
  }
  EXPECT_TRUE(to.padding_intact());
  // The same without a reduction and in one group.
  const auto next = declared_map(
      out, [](std::size_t, int none) { return [=](auto, auto t) { return pack{t + A(none + 1)}; }; }, a, b);
  run_with_partials<B, A>(tigon::default_context(), rows, cols, no_reduction{}, next);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j)
      ASSERT_EQ(to_f64(out.row(i)[j]), to_f64(terms(0, j)) + 1) << "row " << i << ", column " << j;
  EXPECT_TRUE(to.padding_intact());
}
template <class B, class T>
TIGON_TEST_NOINLINE void check_map_rows() {
  for (const std::size_t cols : {std::size_t{0}, std::size_t{1}, lanes<B, T> + 1, std::size_t{64}, std::size_t{1100}})
    for (const std::size_t rows : {0u, 1u, 7u, 40u})
      for (const std::size_t size : {1u, 3u, 10u, 40u})
        for (const std::size_t offset : {0u, 1u})  // of y: at a whole vector, and not
          for (const bool in_place : {false, true}) check_map_rows<B, T>(rows, size, cols, offset, in_place);
}

TYPED_TEST(row, maps_take_rows_in_groups) {
  check_map_rows<typename TypeParam::backend, typename TypeParam::element>();
}
TEST(row_maps, of_16_bits_take_four_rows_where_memory_is_read_while_it_is_written) {
  using B = eager<tigon::backends::highway, 4, tigon::row_order::interleaved>;
  using T = tigon::bfloat16;
  using map = tigon::simd::detail::declared_map<tigon::simd::writes<matrix_view<T>>, int, matrix_view<const T>,
                                                vector_view<const T>>;
  using V = tigon::simd::vec<B::engine, float>;
  constexpr auto shape = tigon::simd::detail::program_shape<V, no_reduction, map>(0);
  EXPECT_EQ((tigon::simd::plan_of<B, shape>.rows), V::size == 1 ? 1u : 4u);
  check_map_rows<B, T>();
}

TYPED_TEST(row, absent_operands_are_ones_or_zeros) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t rows = 40;  // more than a task takes at a time
  for (const std::size_t cols : lengths<B, T>())
    for (const bool present : {false, true}) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << (present ? "present" : "absent"));
      const auto x = whole_numbers<T>({rows, cols}, 15), more = whole_numbers<T>({rows, cols, 3}, 16),
                 factors = whole_numbers<T>({1, cols}, 17);
      const matrix_view<const T> a = x.view(), b = present ? more.view() : matrix_view<const T>{};
      const auto w = present ? vector_view<const T>{factors.view().data, cols} : vector_view<const T>{};
      const auto value = [&](std::size_t i, std::size_t j) {
        return to_f64(x(i, j)) * (present ? to_f64(factors(0, j)) : 1) + (present ? to_f64(more(i, j)) : 0);
      };
      const auto f = [](auto v, auto g, auto e) { return v * g + e; };
      guarded_matrix<T> y(rows, cols), dx(rows, cols);
      guarded_matrix<A> dw(1, cols);
      guarded<A> sums(rows), seen(rows);
      const auto out = y.view();
      A* const reduced = seen.data();
      for_rows<B, A>(tigon::default_context(), rows, cols, [&](auto row) {
        sums[row.i] = row.sum(tigon::reads(a, tigon::or_ones(w), tigon::or_zeros(b)), f);
        row.map(tigon::reads(a, tigon::or_ones(w), tigon::or_zeros(b)), tigon::writes(out), f);
      });
      run_with_partials<B, A>(
          tigon::default_context(), rows, cols,
          declared_reduction([](std::size_t) { return [](auto v, auto g, auto zero) { return v * g + zero; }; }, a,
                             tigon::or_ones(w), touched(tigon::or_zeros(b))),
          declared_map(
              dx.view(),
              [=](std::size_t i, A sum) {
                reduced[i] = sum;
                return [=](auto v, auto g, auto e, auto s) { return pack{v * g + e, s + v}; };
              },
              a, tigon::or_ones(w), tigon::or_zeros(b)),
          tigon::parameter_gradient<A>{{dw.view().data, cols}});
      for (std::size_t i = 0; i < rows; ++i) {
        double sum = 0, weighted = 0;
        for (std::size_t j = 0; j < cols; ++j) {
          sum += value(i, j), weighted += value(i, j) - (present ? to_f64(more(i, j)) : 0);
          ASSERT_EQ(to_f64(y(i, j)), value(i, j)) << "row " << i << ", column " << j;
          ASSERT_EQ(to_f64(dx(i, j)), value(i, j)) << "row " << i << ", column " << j;
        }
        ASSERT_EQ(to_f64(sums[i]), sum) << "row " << i;
        if (cols == 0) continue;  // without columns no row is reduced
        ASSERT_EQ(to_f64(seen[i]), weighted) << "row " << i;
      }
      for (std::size_t j = 0; j < cols; ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < rows; ++i) sum += to_f64(x(i, j));
        ASSERT_EQ(to_f64(dw(0, j)), sum) << "column " << j;
      }
    }
}

TYPED_TEST(row, scratch_rows_are_apart) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : lengths<B, T>()) {
    const auto x = whole_numbers<T>({9, cols}, 12);
    const auto a = x.view();
    guarded<A> results(9);
    tigon::for_rows<B, A>(tigon::default_context(), 9, cols, {.scratch = 2}, [&](auto row) {
      const auto first = row.scratch(0), second = row.scratch(1);
      row.map(tigon::reads(a), tigon::writes(first, second), [](auto v) { return pack{v, v * v}; });
      results[row.i] = row.sum(tigon::reads(first, second), [](auto u, auto v) { return u - v; });
    });
    for (std::size_t i = 0; i < 9; ++i) {
      double wanted = 0;
      for (std::size_t j = 0; j < cols; ++j) wanted += to_f64(x(i, j)) - to_f64(x(i, j)) * to_f64(x(i, j));
      EXPECT_EQ(to_f64(results[i]), wanted) << cols << " columns, row " << i;
    }
  }
}

TYPED_TEST(row, workspaces_are_enough) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t rows = 70, cols = 67;
  guarded_matrix<A> x(rows, cols), y(rows, cols);
  const auto a = x.view(), out = y.view();
  const auto scratch = [&](context& ctx) {
    tigon::for_rows<B, A>(ctx, rows, cols, {.scratch = 2}, [=](auto row) {
      row.map(tigon::reads(a), tigon::writes(row.scratch(1)), [](auto v) { return v; });
      row.map(tigon::reads(row.scratch(1)), tigon::writes(out), [](auto v) { return v; });
    });
  };
  guarded<A> dw(cols), db(cols);
  const auto partials = [&](context& ctx) {
    tigon::for_rows<B, A>(ctx, rows, cols,
                          tigon::adds_to(tigon::parameter_gradient<A>{{dw.data(), cols}},
                                         tigon::parameter_gradient<A>{{db.data(), cols}}),
                          [=](auto row) {
                            const auto first = row.partial(0), second = row.partial(1);
                            row.map(tigon::reads(a, first, second), tigon::writes(first, second),
                                    [](auto v, auto s, auto t) {
                                      return pack{s + v, t + v};
                                    });
                          });
  };
  for (const std::size_t threads : {1u, 3u})
    with_workspace_of(
        0,
        [&](context& ctx) {
          const std::size_t bytes = tigon::simd::scratch_workspace<B, A>(cols, 2, ctx);
          with_workspace_of(bytes, scratch, threads);
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, scratch, threads), workspace, "workspace is of");
        },
        threads);
  const std::size_t bytes = tigon::simd::partials_workspace<B, A>(rows, cols, 2);
  with_workspace_of(bytes, partials);
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, partials), workspace, "workspace is of");
}

/// A prefetch changes no result and never faults, so that nobody would see one beyond the last row.
TEST(row_sources, prefetch_rows_that_exist) {
  using B = eager<tigon::backends::highway, 4>;
  guarded_matrix<float> x(7, 64, 3);
  const matrix_view<const float> a = x.view();
  for (std::size_t i = 0; i < 7; ++i) {
    const tigon::simd::detail::place at{i, 6};
    const std::size_t next = i + 1 < 7 ? a.row_stride : 0;
    EXPECT_EQ(tigon::simd::detail::source<B>(a, at).next, next) << i;
    EXPECT_EQ(tigon::simd::detail::source<B>(tigon::pair_column<0>(a), at).next, next) << i;
    EXPECT_EQ(tigon::simd::detail::source<B>(tigon::or_ones(a), at).next, next) << i;
  }
  EXPECT_EQ(tigon::simd::detail::source<B>(tigon::or_ones(matrix_view<const float>{}), {}).next, 0u);
}

/// What is summed in one go grows, and rounds what is added to it: a row of equal numbers is the worst.
TYPED_TEST(row, long_sums_keep_their_digits) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  constexpr std::size_t cols = std::size_t{1} << 20;
  const A tenth = A(0.1);
  guarded<A> x(cols), y(cols);
  std::ranges::fill(x, tenth);
  const vector_view<const A> in{x.data(), cols};
  const vector_view<A> out{y.data(), cols};
  A sum = 0, of_map = 0;
  for_rows<B, A>(tigon::default_context(), 1, cols, [&](auto row) {
    sum = row.sum(tigon::reads(in), [](auto v) { return v; });
    of_map = row.map_sum(tigon::reads(in), tigon::writes(out), [](auto v) { return pack{v, v}; });
  });
  // One addition to the total for every 64 steps; each rounds by half an eps of what is there, half the sum on average.
  const double additions = 64 + cols / (64.0 * B::row.unroll * lanes<B, A>)+16;
  const double bound = additions / 4 * std::numeric_limits<A>::epsilon();
  const std::vector<double> wanted{cols * static_cast<double>(tenth)};
  EXPECT_LE(measure(std::vector<double>{sum}, wanted).rel_l2, bound);
  EXPECT_LE(measure(std::vector<double>{of_map}, wanted).rel_l2, bound);
}

TYPED_TEST(row, order_does_not_depend_on_threads_or_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const shape s{90, 1030, 3};
  auto x = random_matrix<T>(s, 11);
  for (std::size_t j = 0; j < s.cols; ++j) x(89, j) = x(0, j);  // the same row elsewhere
  guarded_matrix<T> y(s.rows, s.cols, s.padding);
  const auto a = x.view(), out = y.view();
  guarded<A> sums(s.rows), dw(s.cols), of_map(s.cols), tails(s.rows);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    sums.clear(), dw.clear(), of_map.clear(), tails.clear();
    ctx.workspace().expect("test", tigon::simd::partials_workspace<B, A>(s.rows, s.cols, 1));
    run_with_partials<B, A>(
        ctx, s.rows, s.cols, declared_reduction([](std::size_t) { return [](auto v) { return v * v; }; }, a),
        [&](auto row, A sum) {
          sums[row.i] = sum;
          const auto dw_row = row.partial(0);
          row.map(tigon::reads(a, dw_row), tigon::writes(out, dw_row), [=](auto v, auto d) {
            return pack{v, d + v * sum};
          });
        },
        tigon::parameter_gradient<A>{{dw.data(), s.cols}, gradient::overwrite});
    run_with_partials<B, A>(
        ctx, s.rows, s.cols, declared_reduction([](std::size_t) { return [](auto v) { return v * v; }; }, a),
        declared_map(
            out, [](std::size_t, A sum) { return [=](auto v, auto d) {
                                            return pack{v * sum, d + v * sum};
                                          }; }, a),
        tigon::parameter_gradient<A>{{of_map.data(), s.cols}, gradient::overwrite});
    ctx.workspace().expect("test", tigon::simd::scratch_workspace<B, A>(s.cols, 2, ctx));
    tigon::for_rows<B, A>(ctx, s.rows, s.cols, {.scratch = 2}, [&](auto row) {
      const auto first = row.scratch(0), second = row.scratch(1);
      row.map(tigon::reads(a), tigon::writes(first, second), [](auto v) { return pack{v, v * v}; });
      tails[row.i] = row.sum(tigon::reads(first, second), [](auto u, auto v) { return u - v; });
    });
    return bits_of(sums, dw, of_map, y, tails);
  }));
  for (std::size_t j = 0; j < s.cols; ++j) ASSERT_EQ(to_f64(y(0, j)), to_f64(y(89, j))) << "column " << j;
  EXPECT_EQ(sums[0], sums[89]);
  EXPECT_EQ(tails[0], tails[89]);
}

}  // namespace

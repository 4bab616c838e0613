// Acme's driver of row programs: a core copies a part of a row at a time to its scratch memory and computes there. It
// runs the structs that tigon's own driver runs (tigon/rows/reduce_map.hpp), of the kinds that acme's operators are.
#ifndef ACME_TILE_ROWS_HPP
#define ACME_TILE_ROWS_HPP

#include <atomic>
#include <cstring>
#include <tigon/backend/capacity.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace acme {
inline namespace TIGON_ABI {

/// Bytes that all cores have copied to their scratch memory.
inline std::atomic<std::size_t> copied_in{0};

/// The scratch memory of a core: a tile for each of `Count` operands.
template <class B, class T, std::size_t Count>
struct tiles {
  static constexpr std::size_t width = tigon::tile_capacity_of<B> / 8 / Count / sizeof(T);
  alignas(64) T data[Count][width];

  TIGON_INLINE tigon::vector_view<const T> load(std::size_t k, const T* from, std::size_t n) {
    std::memcpy(static_cast<void*>(data[k]), from, n * sizeof(T));
    copied_in += n * sizeof(T);
    return {data[k], n};
  }
  TIGON_INLINE void store(std::size_t k, T* to, std::size_t n) const {
    std::memcpy(static_cast<void*>(to), data[k], n * sizeof(T));
  }
};

/// B, but row programs run on tiles.
template <class B>
struct on_tiles : B {
  struct rows {
    /// One matrix that is reduced and mapped.
    template <class P, class T>
    static void reduce_map(tigon::context& ctx, P program, tigon::reads<tigon::matrix_view<const T>> in,
                           tigon::writes<tigon::matrix_view<T>> out) {
      using A = tigon::accumulator_t<T>;
      using tile = tiles<B, T, 2>;
      tigon::expect_capacity<B>();
      const auto [x] = in.x;
      const auto [y] = out.y;
      tigon::for_rows<B, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
        tile t;
        double sum = 0;
        for (std::size_t j = 0; j < x.cols; j += tile::width) {
          const auto part = t.load(0, x.row(row.i) + j, std::min(tile::width, x.cols - j));
          sum += row.part(0, part.size).sum(tigon::reads(part), [=](auto v) TIGON_LAMBDA { return program.reduce(v); });
        }
        const auto value = program.finish(static_cast<A>(sum));
        for (std::size_t j = 0; j < x.cols; j += tile::width) {
          const auto part = t.load(0, x.row(row.i) + j, std::min(tile::width, x.cols - j));
          row.part(0, part.size)
              .map(tigon::reads(part), tigon::writes(tigon::vector_view<T>{t.data[1], part.size}),
                   [=](auto v) TIGON_LAMBDA { return program.map(value, v); });
          t.store(1, y.row(row.i) + j, part.size);
        }
      });
    }

    /// One matrix or two that are mapped.
    template <class P, class T>
    static void map_rows(tigon::context& ctx, P program, tigon::reads<tigon::matrix_view<const T>> in,
                         tigon::writes<tigon::matrix_view<T>> out, tigon::adds_to<>) {
      using tile = tiles<B, T, 2>;
      tigon::expect_capacity<B>();
      const auto [x] = in.x;
      const auto [y] = out.y;
      tigon::for_rows<B, tigon::accumulator_t<T>>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
        tile t;
        for (std::size_t j = 0; j < x.cols; j += tile::width) {
          const auto part = t.load(0, x.row(row.i) + j, std::min(tile::width, x.cols - j));
          row.part(0, part.size)
              .map(tigon::reads(part), tigon::writes(tigon::vector_view<T>{t.data[1], part.size}),
                   [=](auto v) TIGON_LAMBDA { return program.map(v); });
          t.store(1, y.row(row.i) + j, part.size);
        }
      });
    }
    template <class P, class T>
    static void map_rows(tigon::context& ctx, P program,
                         tigon::reads<tigon::matrix_view<const T>, tigon::matrix_view<const T>> in,
                         tigon::writes<tigon::matrix_view<T>> out, tigon::adds_to<>) {
      using tile = tiles<B, T, 3>;
      tigon::expect_capacity<B>();
      const auto [a, b] = in.x;
      const auto [y] = out.y;
      tigon::for_rows<B, tigon::accumulator_t<T>>(ctx, a.rows, a.cols, [=] TIGON_FN(auto row) {
        tile t;
        for (std::size_t j = 0; j < a.cols; j += tile::width) {
          const std::size_t n = std::min(tile::width, a.cols - j);
          const auto first = t.load(0, a.row(row.i) + j, n), second = t.load(1, b.row(row.i) + j, n);
          row.part(0, n).map(tigon::reads(first, second), tigon::writes(tigon::vector_view<T>{t.data[2], n}),
                             [=](auto u, auto v) TIGON_LAMBDA { return program.map(u, v); });
          t.store(2, y.row(row.i) + j, n);
        }
      });
    }
  };
};

}  // namespace TIGON_ABI
}  // namespace acme

#endif  // ACME_TILE_ROWS_HPP

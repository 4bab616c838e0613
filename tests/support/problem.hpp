// Reproducible inputs, and the shapes at which loops over rows go wrong.
#ifndef TIGON_TESTS_SUPPORT_PROBLEM_HPP
#define TIGON_TESTS_SUPPORT_PROBLEM_HPP

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <tigon/simd/vec.hpp>
#include <vector>

#include "guarded.hpp"

namespace tigon::test {

struct distribution {
  double mean = 0, deviation = 1;
};

/// Normal values; one seed, one sequence.
TIGON_TEST_NOINLINE inline std::vector<double> normal_values(std::size_t count, std::uint64_t seed,
                                                             distribution d = {}) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> draw(d.mean, d.deviation);
  std::vector<double> out(count);
  for (double& value : out) value = draw(generator);
  return out;
}

struct shape {
  std::size_t rows, cols, padding = 0;
  friend std::ostream& operator<<(std::ostream& out, shape s) {
    return out << s.rows << " x " << s.cols << " (padding " << s.padding << ')';
  }
};

template <class T>
TIGON_TEST_NOINLINE guarded_matrix<T> random_matrix(shape s, std::uint64_t seed, guard side = guard::behind,
                                                    distribution d = {}) {
  guarded_matrix<T> out(s.rows, s.cols, s.padding, side);
  out.assign(normal_values(s.rows * s.cols, seed, d));
  return out;
}

template <class T>
TIGON_TEST_NOINLINE guarded<T> random_vector(std::size_t size, std::uint64_t seed, guard side = guard::behind,
                                             distribution d = {}) {
  guarded<T> out(size, side);
  out.assign(normal_values(size, seed, d));
  return out;
}

/// Lanes of backend B when it computes on elements of type T.
template <class B, class T>
inline constexpr std::size_t lanes = simd::vec<typename B::engine, accumulator_t<T>>::size;

/// No rows at all; then one, three (rows apart) and five (rows adjacent) of every width at which a vector loop turns
/// a corner: inside, at and behind one vector, two vectors and a tail, a full unrolled step, and long odd rows.
TIGON_TEST_NOINLINE inline std::vector<shape> row_shapes(std::size_t n) {
  std::vector<std::size_t> widths{1, n - 1, n, n + 1, 2 * n + 3, 4 * n, 257, 1000};
  std::erase(widths, 0u);
  std::vector<shape> out{{0, 1}, {0, n + 1}};
  for (const std::size_t cols : widths) out.insert(out.end(), {{1, cols}, {3, cols, 3}, {5, cols}});
  return out;
}
template <class B, class T>
std::vector<shape> row_shapes() {
  return row_shapes(lanes<B, T>);
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_PROBLEM_HPP

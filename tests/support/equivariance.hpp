// Equivariance, bit for bit: rows, sequences or samples in another order have their results in that order, and an
// upstream gradient times a power of two gives gradients times that. No reference is needed: what one row leaves to the
// next, or depends on its place, shows, and so does a gradient with a part that is not linear.
#ifndef TIGON_TESTS_SUPPORT_EQUIVARIANCE_HPP
#define TIGON_TESTS_SUPPORT_EQUIVARIANCE_HPP

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <source_location>

#include "backends.hpp"
#include "guarded.hpp"
#include "problem.hpp"

namespace tigon::test {

inline constexpr std::size_t rows = 11, cols = 69;

/// The memory of one call. Rows have the same numbers wherever they are.
template <class T>
class call_of {
 public:
  using element = T;
  using A = accumulator_t<T>;

  call_of(bool moved, int exponent) : moved_(moved), exponent_(exponent) {}

  template <class E = T>
  matrix_view<E> in(std::size_t width = cols) {
    return filled<E>(rows, width, 0, true);
  }
  std::span<T> parameter(std::size_t size = cols) { return {filled<T>(1, size, 0, false).data, size}; }
  template <class E = T>
  matrix_view<E> upstream(std::size_t width = cols) {
    return filled<E>(rows, width, exponent_, true);
  }
  template <class E = T>
  matrix_view<E> out(std::size_t width = cols) {
    return result<E>(rows, width, 0, results_);
  }
  std::span<A> numbers(std::size_t a_row = 1) { return {out<A>(a_row).data, rows * a_row}; }
  template <class E = T>
  matrix_view<E> gradient(std::size_t width = cols) {
    return result<E>(rows, width, exponent_, results_);
  }
  std::span<T> parameter_gradient(std::size_t size = cols) {
    return {result<T>(1, size, exponent_, parameter_results_).data, size};
  }
  /// `a_row` of each row, below cols.
  std::vector<std::int32_t> labels(std::size_t a_row = 1) const {
    std::vector<std::int32_t> out(rows * a_row);
    for (std::size_t k = 0; k < out.size(); ++k)
      out[place(k / a_row) * a_row + k % a_row] = static_cast<std::int32_t>(k * 17 % cols);
    return out;
  }
  /// An upstream gradient of all rows.
  A factor() const { return std::ldexp(A(1.375), exponent_); }

  /// Every row's, in the order of the rows and without the power of two; those of parameters, whose sums depend on it.
  std::vector<std::uint64_t> results() const { return bits(results_); }
  std::vector<std::uint64_t> parameter_results() const { return bits(parameter_results_); }

 private:
  using readers = std::vector<std::function<void(std::vector<std::uint64_t>&)>>;

  std::size_t place(std::size_t i) const { return moved_ ? (4 * i + 3) % rows : i; }

  template <class E>
  TIGON_TEST_NOINLINE matrix_view<E> memory(std::size_t height, std::size_t width) {
    const auto buffer = std::make_shared<guarded<E>>(height * width);
    kept_.push_back(buffer);
    return {buffer->data(), height, width};
  }
  template <class E>
  TIGON_TEST_NOINLINE matrix_view<E> filled(std::size_t height, std::size_t width, int exponent, bool of_rows) {
    const auto m = memory<E>(height, width);
    const std::vector<double> values = normal_values(height * width, ++seed_);
    for (std::size_t k = 0; k < values.size(); ++k)
      m.row(of_rows ? place(k / width) : 0)[k % width] =
          from_f64<E>(std::ldexp(to_f64(from_f64<E>(values[k])), exponent));
    return m;
  }
  template <class E>
  TIGON_TEST_NOINLINE matrix_view<E> result(std::size_t height, std::size_t width, int exponent, readers& to) {
    const auto m = memory<E>(height, width);
    to.push_back([=, this](std::vector<std::uint64_t>& all) {
      for (std::size_t k = 0; k < height * width; ++k)
        all.push_back(std::bit_cast<std::uint64_t>(
            std::ldexp(to_f64(m.row(height == 1 ? 0 : place(k / width))[k % width]), -exponent)));
    });
    return m;
  }
  static std::vector<std::uint64_t> bits(const readers& of) {
    std::vector<std::uint64_t> out;
    for (const auto& read : of) read(out);
    return out;
  }

  bool moved_;
  int exponent_;
  std::uint64_t seed_ = 0;
  std::vector<std::shared_ptr<void>> kept_;
  readers results_, parameter_results_;
};

template <class T, class F>
void expect_equivariant(F f, std::source_location at = std::source_location::current()) {
  const testing::ScopedTrace trace(at.file_name(), static_cast<int>(at.line()), "this operator");
  call_of<T> plain(false, 0), moved(true, 0), scaled(false, 7);
  f(plain), f(moved), f(scaled);
  ASSERT_FALSE(plain.results().empty());
  EXPECT_TRUE(moved.results() == plain.results()) << "rows in another order";
  EXPECT_TRUE(scaled.results() == plain.results()) << "upstream gradients times 128";
  EXPECT_TRUE(scaled.parameter_results() == plain.parameter_results()) << "upstream gradients times 128, parameters";
}

#if defined(TIGON_CONFORMANCE_BACKEND)
using usual_pairs = pairs_of<float, tigon::bfloat16>;
#else
using usual_pairs = with_engines<list<on<usual_backend, float>>, on<usual_backend, tigon::bfloat16>>;
#endif

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_EQUIVARIANCE_HPP

// A table of the scalar options of operators: what each door refuses in the type in which it computes. Kernels of
// no_kernels are not compiled: a call that passes the checks is counted.
#ifndef TIGON_TESTS_SUPPORT_OPTION_TABLE_HPP
#define TIGON_TESTS_SUPPORT_OPTION_TABLE_HPP

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <tigon/backend/operator.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <vector>

#include "throws.hpp"

namespace tigon::test {

inline int kernel_calls = 0;

/// What an option may be: any number, one of at least 0, above 0, from 0 to 1, one that is added to others, or one of a
/// range of its own in every type, 1e-30 to 1e30.
enum class takes { number, from_zero, above_zero, share, term, range };

/// The operands of all doors, of the smallest shapes, and the rows of the table.
template <class T>
class option_table {
 public:
  using A = accumulator_t<T>;
  static constexpr bool is_f32 = std::same_as<A, float>;

  option_table() : inputs_(1024, from_f64<T>(0.5)), outputs_(16384, from_f64<T>(0.25)) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) inputs_[i] = from_f64<T>(0.25 + static_cast<double>(i % 7) / 16);
  }
  matrix_view<const T> in(std::size_t rows, std::size_t cols) const { return {inputs_.data(), rows, cols}; }
  std::span<const T> in(std::size_t size) const { return {inputs_.data(), size}; }
  heads_view<const T> heads(std::size_t tokens, std::size_t d) const {
    return heads_view<const T>::of_heads(inputs_.data(), 1, 1, tokens, d);
  }
  /// Memory of its own for every output of one door.
  matrix_view<T> out(std::size_t rows, std::size_t cols) { return {take(rows * cols), rows, cols}; }
  std::span<T> out(std::size_t size) { return {take(size), size}; }
  heads_view<T> out_heads(std::size_t tokens, std::size_t d) {
    return heads_view<T>::of_heads(take(tokens * d), 1, 1, tokens, d);
  }

  /// A row, "door: option": call(value) with another value of the option.
  void row(const std::string& name, takes what, const std::function<void(double)>& call, double usual = 0.5) {
    SCOPED_TRACE(testing::Message() << name << " in " << element_name<T>());
    constexpr double infinity = std::numeric_limits<double>::infinity();
    std::vector<double> bad{std::numeric_limits<double>::quiet_NaN(), infinity, -infinity}, fine{usual};
    if (what != takes::number) bad.push_back(-usual);
    if (what == takes::above_zero || what == takes::range) bad.push_back(0);
    (is_f32 || what == takes::range ? bad : fine).push_back(1e-46);
    if (is_f32) (what == takes::term ? fine : bad).push_back(1e-40);  // has few digits
    (is_f32 || what == takes::share || what == takes::range ? bad : fine).push_back(1e39);
    for (const double value : fine) {
      EXPECT_NO_THROW(call(value)) << value;
      EXPECT_GT(kernel_calls, 0) << value;
      kernel_calls = 0;
    }
    for (const double value : bad) {
      const std::vector<T> before = outputs_;
      std::string sentence;
      bound of{&call, value};
      EXPECT_TRUE(refused([](void* b) { (*static_cast<bound*>(b)->call)(static_cast<bound*>(b)->value); }, &of,
                          error_code::argument, name.substr(name.find(' ') + 1), sentence))
          << value;
      EXPECT_TRUE(kernel_calls == 0 && before == outputs_) << "written for " << value;
      kernel_calls = 0;
    }
  }

 private:
  struct bound {
    const std::function<void(double)>* call;
    double value;
  };
  T* take(std::size_t n) {
    T* const begin = outputs_.data() + taken_;
    taken_ += (n + 15) / 16 * 16;
    EXPECT_LE(taken_, outputs_.size());
    return begin;
  }

  std::vector<T> inputs_, outputs_;
  std::size_t taken_ = 0;
};

template <class Kernel>
struct counted_kernel;
using option_types = testing::Types<float, double>;

}  // namespace tigon::test

/// A kernel whose passes only count.
template <class Kernel>
struct tigon::test::counted_kernel : Kernel {
  template <class...>
  static void forward(auto&&...) {
    ++kernel_calls;
  }
  template <class...>
  static void backward(auto&&...) {
    ++kernel_calls;
  }
};

/// The backend, and the operators of whose kernels nothing is compiled.
#define TIGON_TEST_NO_KERNELS(...)                                   \
  namespace tigon::backends {                                        \
  inline namespace TIGON_ABI {                                       \
  struct no_kernels : generic {                                      \
    using self = no_kernels;                                         \
    using parent = generic;                                          \
    static constexpr backend_info info{"no_kernels", {device::cpu}}; \
    using overrides = op_list<__VA_ARGS__>;                          \
  };                                                                 \
  }                                                                  \
  }                                                                  \
  template <class Op>                                                \
    requires(tigon::backends::no_kernels::overrides::contains<Op>)   \
  struct tigon::kernel<Op, tigon::backends::no_kernels>              \
      : tigon::test::counted_kernel<tigon::kernel<Op, tigon::backends::generic>> {};

#endif  // TIGON_TESTS_SUPPORT_OPTION_TABLE_HPP

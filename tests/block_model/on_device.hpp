// Arrays in the memory of the model of a device, and calls during which the host does not reach it.
#ifndef TIGON_TESTS_BLOCK_MODEL_ON_DEVICE_HPP
#define TIGON_TESTS_BLOCK_MODEL_ON_DEVICE_HPP

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "backend.hpp"

namespace tigon::test::on_device {

using namespace tigon;

/// In the memory of the device, which the host reads and writes between calls alone.
template <class T>
struct of_device {
  using value_type = T;
  T* allocate(std::size_t n) { return static_cast<T*>(test::device_memory::instance().take(n * sizeof(T))); }
  void deallocate(T* p, std::size_t n) { test::device_memory::instance().give(p, n * sizeof(T)); }
  friend bool operator==(of_device, of_device) { return true; }
};
template <class T>
using array = std::vector<T, of_device<T>>;
using numbers = array<float>;

/// Runs a call of B, whose memory the host reaches where its rows run alone.
template <class B, class Call>
void on(Call call) {
  const test::reach by_host(host_memory<B>);
  call();
}

inline numbers some(std::size_t n, unsigned seed) {
  numbers values(n);
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) / static_cast<float>(1u << 23) - 1;
  }
  return values;
}
inline matrix_view<float> matrix(numbers& values, std::size_t cols) {
  return {values.data(), values.size() / cols, cols};
}
inline numbers joined(std::initializer_list<numbers> parts) {
  numbers all;
  for (const numbers& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
inline const float unwritten = std::numeric_limits<float>::quiet_NaN();

inline void expect_same(const numbers& seen, const numbers& expected) {
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t i = 0; i < seen.size(); ++i)
    ASSERT_NEAR(seen[i], expected[i], 4e-6f * (1 + std::abs(expected[i]))) << "number " << i;
}

}  // namespace tigon::test::on_device

#endif  // TIGON_TESTS_BLOCK_MODEL_ON_DEVICE_HPP

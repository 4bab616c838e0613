#include "support/registry.hpp"

#include <charconv>
#include <stdexcept>

namespace tigon_bench {

std::string_view name_of(dtype element) {
  switch (element) {
    case dtype::f32: return "f32";
    case dtype::bf16: return "bf16";
    case dtype::f16: return "f16";
    case dtype::f64: return "f64";
    case dtype::i8: return "i8";
  }
  return "?";
}

std::string_view name_of(mode direction) {
  switch (direction) {
    case mode::forward: return "forward";
    case mode::backward: return "backward";
    case mode::full: return "full";
    case mode::no_grad_forward: return "no_grad_forward";
  }
  return "?";
}

dtype dtype_named(std::string_view name) {
  for (const dtype d : {dtype::f32, dtype::bf16, dtype::f16, dtype::f64, dtype::i8})
    if (name_of(d) == name) return d;
  throw std::invalid_argument("dtype is " + std::string(name) + "; expected f32, bf16, f16, f64 or i8");
}

mode mode_named(std::string_view name) {
  for (const mode m : {mode::forward, mode::backward, mode::full, mode::no_grad_forward})
    if (name_of(m) == name) return m;
  throw std::invalid_argument("mode is " + std::string(name) + "; expected forward, backward, full or no_grad_forward");
}

std::size_t size_of(dtype element) {
  switch (element) {
    case dtype::f32: return 4;
    case dtype::bf16:
    case dtype::f16: return 2;
    case dtype::f64: return 8;
    case dtype::i8: return 1;
  }
  return 0;
}

std::string text_of(const extents& shape) {
  std::string text;
  for (const std::size_t n : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(n);
  }
  return text;
}

extents parse_shape(std::string_view text) {
  extents shape;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::size_t n = 0;
    const auto [next, failure] = std::from_chars(at, end, n);
    if (failure != std::errc{} || n == 0 || (next != end && *next != 'x'))
      throw std::invalid_argument("shape is " + std::string(text) +
                                  "; expected positive numbers with x between, as 2048x4096");
    shape.push_back(n);
    if (next == end) return shape;
    at = next + 1;
  }
}

double plan::bytes() const {
  double total = 0;
  for (const limit_request& l : limits)
    if (l.bound == limit_bound::stream)
      total += static_cast<double>(l.reads + l.writes) * static_cast<double>(l.array_bytes);
  return total;
}

double plan::flops() const {
  double total = 0;
  for (const limit_request& l : limits) total += l.flops;
  return total;
}

}  // namespace tigon_bench

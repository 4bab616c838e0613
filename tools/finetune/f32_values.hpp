// Numbers of a safetensors file in f32.
#ifndef EXAMPLE_FINETUNE_F32_VALUES_HPP
#define EXAMPLE_FINETUNE_F32_VALUES_HPP

#include <tigon/core/element.hpp>

#include <cstddef>
#include <cstring>
#include <span>

#include "../../support/safetensors.hpp"

namespace example {

namespace detail {

/// to[i] = from[i] of a 16-bit type.
template <class T>
void widen(std::span<const std::byte> from, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
    to[i] = static_cast<float>(value);
  }
}

}  // namespace detail

/// All numbers of a tensor of f32, bf16 or f16; false if it has another type.
inline bool read_f32(const tensor_view& tensor, std::span<float> to) {
  switch (tensor.type) {
    case dtype::f32: std::memcpy(to.data(), tensor.bytes.data(), to.size_bytes()); return true;
    case dtype::bf16: detail::widen<tigon::bfloat16>(tensor.bytes, to); return true;
    case dtype::f16: detail::widen<tigon::float16>(tensor.bytes, to); return true;
    default: return false;
  }
}

}  // namespace example
#endif

#ifndef EXAMPLE_TRAIN_LLAMA_ROTARY_HPP
#define EXAMPLE_TRAIN_LLAMA_ROTARY_HPP

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "../../support/kernel_memory.hpp"

namespace example {

/// cos and sin of position * theta^(-2 j / head_dim), [seq_len, head_dim], the second half of a row like the first.
struct rotary_tables {
  kernel_vector<float> cos, sin;

  rotary_tables(std::size_t seq_len, std::size_t head_dim, double theta) {
    std::vector<float> of_cos(seq_len * head_dim), of_sin(seq_len * head_dim);
    const std::size_t half = head_dim / 2;
    for (std::size_t t = 0; t < seq_len; ++t)
      for (std::size_t j = 0; j < head_dim; ++j) {
        const double turn = -2.0 * static_cast<double>(j % half) / static_cast<double>(head_dim);
        const double angle = static_cast<double>(t) * std::pow(theta, turn);
        of_cos[t * head_dim + j] = static_cast<float>(std::cos(angle));
        of_sin[t * head_dim + j] = static_cast<float>(std::sin(angle));
      }
    cos = for_kernels(std::move(of_cos)), sin = for_kernels(std::move(of_sin));
  }
};

}  // namespace example
#endif

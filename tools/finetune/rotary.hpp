// Frequencies of a model's rotary position embedding, and their tables for packed documents.
#ifndef EXAMPLE_FINETUNE_ROTARY_HPP
#define EXAMPLE_FINETUNE_ROTARY_HPP

#include <tigon/ops/rotary_tables.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace example {

/// The scalings that config.json names, each with the numbers that it takes.
struct rotary_scaling {
  enum class kind { none, linear, dynamic, llama3, yarn, longrope };

  kind type = kind::none;
  double theta = 1e4, factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4, beta_fast = 32, beta_slow = 1;
  double attention_factor = 0, mscale = 0, mscale_all_dim = 0;
  bool truncate = true;
  std::size_t original_positions = 0;
  std::vector<double> short_factors = {}, long_factors = {};

  /// f[j] for a document of so many tokens; returns the factor of the tables.
  double frequencies(std::span<double> f, std::size_t length) const {
    switch (type) {
      case kind::none: break;
      case kind::linear: return tigon::rotary_frequencies(f, theta, tigon::linear_rotary{factor});
      case kind::dynamic:
        return tigon::rotary_frequencies(f, theta, tigon::dynamic_ntk_rotary{factor, original_positions, length});
      case kind::llama3:
        return tigon::rotary_frequencies(
            f, theta, tigon::llama3_rotary{factor, low_freq_factor, high_freq_factor, original_positions});
      case kind::yarn:
        return tigon::rotary_frequencies(f, theta,
                                         tigon::yarn_rotary{factor, original_positions, beta_fast, beta_slow,
                                                            attention_factor, mscale, mscale_all_dim, truncate});
      case kind::longrope:
        return tigon::rotary_frequencies(
            f, theta,
            tigon::long_rotary{short_factors, long_factors, factor, original_positions, length, attention_factor});
    }
    return tigon::rotary_frequencies(f, theta);
  }

  bool operator==(const rotary_scaling&) const = default;
};

/// Rows of the tables for documents that begin at begins[i] and end at begins[i + 1]: positions count from 0 in each. A
/// document has one token more, its last target, which no row is for, and which counts where a scaling depends on the
/// length.
inline void fill_packed_tables(const rotary_scaling& by, std::span<const std::int32_t> begins,
                               tigon::matrix_view<float> cos, tigon::matrix_view<float> sin, tigon::context& ctx) {
  std::vector<double> f(cos.cols);
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    const auto begin = static_cast<std::size_t>(begins[i]), length = static_cast<std::size_t>(begins[i + 1]) - begin;
    const double factor = by.frequencies(f, length + 1);
    tigon::fill_rotary_tables(f, tigon::positions_from{}, cos.rows_from(begin, length), sin.rows_from(begin, length),
                              factor, ctx);
  }
}

}  // namespace example
#endif

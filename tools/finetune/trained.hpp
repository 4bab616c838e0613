// What a run trains, beside what it reads.
#ifndef EXAMPLE_FINETUNE_TRAINED_HPP
#define EXAMPLE_FINETUNE_TRAINED_HPP

#include <cstddef>
#include <utility>
#include <vector>

#include "weights.hpp"

namespace example {

/// A run of matrices, which decay, or of vectors, which do not, in a flat array.
struct decay_group {
  std::size_t begin, end;
  double decay;
};

/// Neighbours of one kind together.
inline std::vector<decay_group> decay_groups(const std::vector<weight_tensor>& tensors) {
  std::vector<decay_group> out;
  for (const weight_tensor& t : tensors) {
    const double decay = t.is_matrix ? 1 : 0;
    if (out.empty() || out.back().decay != decay) out.push_back({t.offset, t.offset, decay});
    out.back().end = t.offset + t.size();
  }
  return out;
}

/// f32 masters of what is trained, with the moments of AdamW.
struct trained_parameters {
  std::vector<float> values, gradient, first_moment, second_moment;
  std::vector<decay_group> groups;

  trained_parameters() = default;
  trained_parameters(std::vector<float> begin, std::vector<decay_group> of)
      : values(std::move(begin)),
        gradient(values.size()),
        first_moment(values.size()),
        second_moment(values.size()),
        groups(std::move(of)) {}
};

}  // namespace example
#endif

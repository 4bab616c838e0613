#ifndef EXAMPLE_TRAIN_LLAMA_CHECKPOINT_HPP
#define EXAMPLE_TRAIN_LLAMA_CHECKPOINT_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/safetensors.hpp"
#include "adamw.hpp"
#include "parameters.hpp"
#include "rng.hpp"

namespace example {

/// Everything that a step reads and changes.
struct training_state {
  std::vector<float>& weights;
  adamw& optimizer;
  rng& batches;
  std::size_t& step;
};

/// What has to be the same before a state may go on; kept as the file's metadata.
using checkpoint_identity = std::map<std::string, std::string>;

inline void save_checkpoint(const std::filesystem::path& path, const parameter_layout& layout, training_state state,
                            checkpoint_identity identity) {
  std::map<std::string, tensor_view> tensors;
  const auto add = [&](const std::string& prefix, std::span<const float> flat) {
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      const auto& t = layout.tensors[i];
      std::vector<std::size_t> shape{t.cols};
      if (t.rows != 1) shape.insert(shape.begin(), t.rows);
      tensors[prefix + t.name] = {dtype::f32, std::move(shape), std::as_bytes(layout.of(flat, i))};
    }
  };
  add("weights.", state.weights);
  add("adam.first.", state.optimizer.first_moment());
  add("adam.second.", state.optimizer.second_moment());
  const rng::state_type draws = state.batches.state();
  tensors["rng"] = {dtype::i64, {draws.size()}, std::as_bytes(std::span(draws))};
  const std::array<std::int64_t, 1> step{static_cast<std::int64_t>(state.step)};
  tensors["step"] = {dtype::i64, {}, std::as_bytes(std::span(step))};
  identity["format"] = "tigon train_llama 1";
  save_safetensors(path, tensors, identity);
}

/// Nothing of `state` changes unless the whole file fits.
inline void load_checkpoint(const std::filesystem::path& path, const parameter_layout& layout, training_state state,
                            const checkpoint_identity& identity) {
  const auto file = safetensors_file::load(path);
  if (const auto format = file.metadata().find("format");
      format == file.metadata().end() || format->second != "tigon train_llama 1")
    file.fail("is not a checkpoint of this program");
  for (const auto& [key, wanted] : identity)
    if (const std::string& found = file.meta(key); found != wanted)
      file.fail("was trained with " + key + " " + found + ", not " + wanted);

  const auto checked = [&](const std::string& name, dtype type, std::size_t size) -> const tensor_view& {
    const tensor_view& tensor = file.at(name);
    if (tensor.type != type || tensor.numel() != size)
      file.fail("holds a tensor \"" + name + "\" of another size or type");
    return tensor;
  };
  const auto read = [&](const std::string& prefix) {
    std::vector<float> flat(layout.total);
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      const auto to = layout.of(std::span(flat), i);
      std::memcpy(to.data(), checked(prefix + layout.tensors[i].name, dtype::f32, to.size()).bytes.data(),
                  to.size_bytes());
    }
    return flat;
  };
  std::vector<float> weights = read("weights."), first = read("adam.first."), second = read("adam.second.");
  rng::state_type draws;
  std::memcpy(draws.data(), checked("rng", dtype::i64, draws.size()).bytes.data(), sizeof draws);
  const std::int64_t step = checked("step", dtype::i64, 1).values<std::int64_t>()[0];
  if (step < 0) file.fail("holds a negative step");

  state.weights = std::move(weights);
  state.optimizer.first_moment() = std::move(first);
  state.optimizer.second_moment() = std::move(second);
  state.optimizer.set_steps(static_cast<std::size_t>(step));
  state.batches = rng(draws);
  state.step = static_cast<std::size_t>(step);
}

}  // namespace example
#endif

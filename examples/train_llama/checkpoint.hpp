#ifndef EXAMPLE_TRAIN_LLAMA_CHECKPOINT_HPP
#define EXAMPLE_TRAIN_LLAMA_CHECKPOINT_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../support/safetensors.hpp"
#include "optimizer.hpp"
#include "parameters.hpp"
#include "rng.hpp"

namespace example {

/// Everything that a step reads and changes.
template <tigon::element S>
struct training_state_in {
  kernel_vector<S>& weights;
  optimizer_in<S>& optimizer;
  rng& batches;
  std::size_t& step;
};

using training_state = training_state_in<float>;

/// What has to be the same before a state may go on; kept as the file's metadata.
using checkpoint_identity = std::map<std::string, std::string>;

/// A vector has one extent.
inline std::vector<std::size_t> shape_of(const parameter_tensor& t) {
  return t.rows == 1 ? std::vector{t.cols} : std::vector{t.rows, t.cols};
}

/// Bytes of the tensors of a checkpoint: the weights and two moments of each, the generator and the step.
inline std::uintmax_t checkpoint_bytes(const parameter_layout& layout) {
  std::uintmax_t numbers = 0;
  for (const parameter_tensor& t : layout.tensors) numbers += 3 * t.size();
  return numbers * sizeof(float) + sizeof(rng::state_type) + sizeof(std::int64_t);
}

/// Numbers are f32 in the file, whatever S is.
template <tigon::element S>
void save_checkpoint(const std::filesystem::path& path, const parameter_layout& layout, training_state_in<S> state,
                     checkpoint_identity identity) {
  std::map<std::string, tensor_view> tensors;
  std::vector<float> copies[3];
  const auto add = [&](const std::string& prefix, std::span<const float> flat) {
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      const auto& t = layout.tensors[i];
      tensors[prefix + t.name] = {dtype::f32, shape_of(t), std::as_bytes(layout.of(flat, i))};
    }
  };
  add("weights.", floats_for_host(state.weights, copies[0]));
  add("adam.first.", floats_for_host(state.optimizer.first_moment(), copies[1]));
  add("adam.second.", floats_for_host(state.optimizer.second_moment(), copies[2]));
  const rng::state_type draws = state.batches.state();
  tensors["rng"] = {dtype::i64, {draws.size()}, std::as_bytes(std::span(draws))};
  const std::array<std::int64_t, 1> step{static_cast<std::int64_t>(state.step)};
  tensors["step"] = {dtype::i64, {}, std::as_bytes(std::span(step))};
  identity["format"] = "tigon train_llama 1";
  save_safetensors(path, tensors, identity);
}

/// Nothing of `state` changes unless the whole file fits. What `training` says is compared with files that say it, too:
/// those of other programs do not.
template <tigon::element S>
void load_checkpoint(const std::filesystem::path& path, const parameter_layout& layout, training_state_in<S> state,
                     const checkpoint_identity& identity, const checkpoint_identity& training = {}) {
  const auto file = safetensors_file::load(path);
  if (const auto format = file.metadata().find("format");
      format == file.metadata().end() || format->second != "tigon train_llama 1")
    file.fail("is not a checkpoint of this program");
  for (const auto* const part : {&identity, &training})
    for (const auto& [key, wanted] : *part) {
      if (part == &training && !file.metadata().contains(key)) continue;
      if (const std::string& found = file.meta(key); found != wanted)
        file.fail("was trained with " + key + " " + printable(found) + ", not " + printable(wanted));
    }

  const auto checked = [&](const std::string& name, dtype type,
                           const std::vector<std::size_t>& shape) -> const tensor_view& {
    const tensor_view& tensor = file.at(name);
    if (tensor.type != type || tensor.shape != shape)
      file.fail("holds a tensor \"" + name + "\" of another shape or type");
    return tensor;
  };
  const auto read = [&](const std::string& prefix, float lowest) {
    std::vector<float> flat(layout.total);
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      const std::string name = prefix + layout.tensors[i].name;
      const auto to = layout.of(std::span(flat), i);
      std::memcpy(to.data(), checked(name, dtype::f32, shape_of(layout.tensors[i])).bytes.data(), to.size_bytes());
      if (!std::ranges::all_of(to, [&](float v) { return v >= lowest && v <= std::numeric_limits<float>::max(); }))
        file.fail("holds a tensor \"" + name + "\" with numbers that no training leaves");
    }
    return flat;
  };
  constexpr float lowest = std::numeric_limits<float>::lowest();
  std::vector<float> weights = read("weights.", lowest), first = read("adam.first.", lowest),
                     second = read("adam.second.", 0);
  rng::state_type draws;
  std::memcpy(draws.data(), checked("rng", dtype::i64, {draws.size()}).bytes.data(), sizeof draws);
  if (draws == rng::state_type{}) file.fail("holds a generator that draws zeros alone");
  const std::int64_t step = checked("step", dtype::i64, {}).template values<std::int64_t>()[0];
  if (step < 0) file.fail("holds a negative step");

  state.weights = floats_for_kernels<S>(std::move(weights));
  state.optimizer.first_moment() = floats_for_kernels<S>(std::move(first));
  state.optimizer.second_moment() = floats_for_kernels<S>(std::move(second));
  state.optimizer.set_steps(static_cast<std::size_t>(step));
  state.batches = rng(draws);
  state.step = static_cast<std::size_t>(step);
}

}  // namespace example
#endif

// What a run leaves in its folder: a model for transformers, adapters for PEFT, and the state to go on from.
#ifndef EXAMPLE_FINETUNE_CHECKPOINT_HPP
#define EXAMPLE_FINETUNE_CHECKPOINT_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../../support/output_file.hpp"
#include "../../support/safetensors.hpp"
#include "adapters.hpp"
#include "model_lora.hpp"
#include "trained.hpp"

namespace example {

/// What has to be the same before a run may go on; kept as the state's metadata.
using run_identity = std::map<std::string, std::string>;

inline constexpr const char* state_name = "training_state.safetensors";

/// FNV-1a of bytes, eight at a time.
inline std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t hash = 0xcbf29ce484222325u) {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    hash = (hash ^ word) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
  return hash;
}

/// Files of a model's folder: what lies beside the weights, and these. Shards have names of their own.
inline constexpr const char* companion_names[] = {
    "config.json",     "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",      "chat_template.jinja",     "chat_template.json"};
inline constexpr const char* weight_names[] = {"model.safetensors", "model.safetensors.index.json",
                                               "adapter_config.json", "adapter_model.safetensors", state_name};

/// Files that lie beside the weights, those of them that the folder has.
inline std::vector<std::string> companions_of(const std::filesystem::path& folder, bool config) {
  std::error_code code;
  std::vector<std::string> out;
  for (const char* const name : companion_names)
    if ((config || std::string(name) != "config.json") && std::filesystem::is_regular_file(folder / name, code))
      out.emplace_back(name);
  return out;
}

/// What lies beside the weights and does not depend on them.
inline void copy_companions(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const std::string& name : companions_of(from, false)) replace_file(to / name, finetune::read_file(from / name));
}

/// Refuses a folder to save in where files of another save would change what its readers load: a model beside adapters,
/// which transformers adds to it, or beside the index of a model in several files; adapters beside a model.
inline void expect_no_other_save(const std::filesystem::path& out, bool of_model) {
  const auto refuse = [&](const char* name, const char* why) {
    std::error_code code;
    if (std::filesystem::exists(out / name, code))
      throw std::runtime_error("--out " + out.string() + " holds " + name + why + "; expected another folder");
  };
  if (of_model) {
    refuse("adapter_config.json", ", which transformers would add to the saved model");
    refuse("model.safetensors.index.json", " of a model in several files");
  } else {
    refuse("model.safetensors", ", a model, and adapters are saved");
  }
}

namespace detail {

/// What `type`, f32, bf16 or f16, makes of a number.
inline float as_saved(float v, const std::string& type) {
  if (type == "bf16") return static_cast<float>(static_cast<tigon::bfloat16>(v));
  if (type == "f16") return static_cast<float>(static_cast<tigon::float16>(v));
  return v;
}

/// The folder's config.json with what is so of the weights that are saved beside it: their type, and whether the head
/// is the embedding.
inline std::string saved_config(const std::filesystem::path& from, bool tied, const std::string& type) {
  const std::string text = finetune::read_file(from / "config.json");
  auto config = nlohmann::ordered_json::parse(text);
  bool changed = false;
  const auto set = [&](const char* key, const nlohmann::ordered_json& value) {
    if (config.contains(key) && config[key] == value) return;
    config[key] = value, changed = true;
  };
  const char* const name = type == "bf16" ? "bfloat16" : type == "f16" ? "float16" : "float32";
  set("dtype", name);
  if (config.contains("torch_dtype")) set("torch_dtype", name);  // as releases before 5 call it
  if (read_architecture(config_reader::of_folder(from)).tied != tied) set("tie_word_embeddings", tied);
  return changed ? config.dump(2) + "\n" : text;
}

template <class To>
std::vector<To> rounded(std::span<const float> from) {
  std::vector<To> out(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) out[i] = static_cast<To>(from[i]);
  return out;
}

/// The tensors of a flat array. They point into it.
template <class U>
std::map<std::string, tensor_view> views_of(const std::vector<weight_tensor>& tensors, std::span<const U> flat,
                                            dtype type) {
  std::map<std::string, tensor_view> out;
  for (const weight_tensor& t : tensors) out[t.name] = {type, t.shape(), std::as_bytes(weight_layout::of(flat, t))};
  return out;
}

inline void save_tensors(const std::filesystem::path& path, const std::vector<weight_tensor>& tensors,
                         std::span<const float> flat, const std::string& type) {
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (type == "f32") return save_safetensors(path, views_of(tensors, flat, dtype::f32), metadata);
  if (type == "bf16") {
    const auto narrow = rounded<tigon::bfloat16>(flat);
    return save_safetensors(path, views_of(tensors, std::span(narrow), dtype::bf16), metadata);
  }
  const auto narrow = rounded<tigon::float16>(flat);
  save_safetensors(path, views_of(tensors, std::span(narrow), dtype::f16), metadata);
}

}  // namespace detail

/// Refuses weights of which one is no number in `type`. Throws std::runtime_error, a sentence that names the tensor.
inline void expect_saveable(const weight_tensor& t, std::span<const float> values, const std::string& type) {
  for (const float v : values) {
    if (std::isfinite(detail::as_saved(v, type))) continue;
    char number[32];
    std::snprintf(number, sizeof number, "%g", static_cast<double>(v));
    throw std::runtime_error("the model cannot be saved in " + type + ": the tensor \"" + t.name + "\" has the value " +
                             number +
                             (!std::isfinite(v) ? ", which is no number"
                              : type == "f16"   ? ", and the largest is 65504; expected --save-dtype bf16 or f32"
                                                : "; expected --save-dtype f32"));
  }
}

/// A folder that transformers loads: what `from` has beside its weights, and these weights. The old are there until
/// the new ones are on the disk.
inline void save_model(const std::filesystem::path& from, const std::filesystem::path& to, const weight_layout& layout,
                       std::span<const float> weights, const std::string& type) {
  for (const weight_tensor& t : layout.tensors) expect_saveable(t, weight_layout::of(weights, t), type);
  copy_companions(from, to);
  replace_file(to / "config.json", detail::saved_config(from, layout.head == layout.embedding, type));
  detail::save_tensors(to / "model.safetensors", layout.tensors, weights, type);
}

/// A folder that PEFT loads beside the model; the adapters are f32.
inline void save_adapters(const std::filesystem::path& from, const std::filesystem::path& to, const lora_layout& lora,
                          std::span<const float> values) {
  copy_companions(from, to);
  finetune::adapter out{.rank = lora.options.rank,
                        .alpha = lora.options.alpha,
                        .targets = lora.options.targets,
                        .base_model = from.string()};
  for (std::size_t i = 0; i < lora.modules.size(); ++i) out.modules[lora.modules[i]] = lora.low_rank_of(i, values);
  finetune::save_adapter(to, out);
}

/// Where a run stands, beside its parameters.
struct run_position {
  std::int64_t step = 0, epoch = 0, taken = 0, evaluations_since_best = 0;
  double best = std::numeric_limits<double>::infinity();
};

/// Bytes of the state of so many parameters.
inline std::uintmax_t state_bytes(std::size_t trained, const run_identity& identity) {
  const tensor_view flat{dtype::f32, {trained}, {}};
  return safetensors_bytes({{"parameters", flat},
                            {"adam.first", flat},
                            {"adam.second", flat},
                            {"counts", {dtype::i64, {4}, {}}},
                            {"best", {dtype::f64, {1}, {}}}},
                           identity);
}

/// Bytes of a file of these tensors, saved in a type.
inline std::uintmax_t model_bytes(const std::vector<weight_tensor>& tensors, const std::string& type) {
  std::map<std::string, tensor_view> out;
  for (const weight_tensor& t : tensors)
    out[t.name] = {type == "f32" ? dtype::f32 : type == "bf16" ? dtype::bf16 : dtype::f16, t.shape(), {}};
  return safetensors_bytes(out, {{"format", "pt"}});
}

inline void save_state(const std::filesystem::path& path, const trained_parameters& trained, const run_position& at,
                       run_identity identity) {
  const std::array<std::int64_t, 4> counts{at.step, at.epoch, at.taken, at.evaluations_since_best};
  const std::array<double, 1> best{at.best};
  std::map<std::string, tensor_view> tensors;
  tensors["parameters"] = view_of(dtype::f32, {trained.values.size()}, trained.values);
  tensors["adam.first"] = view_of(dtype::f32, {trained.values.size()}, trained.first_moment);
  tensors["adam.second"] = view_of(dtype::f32, {trained.values.size()}, trained.second_moment);
  tensors["counts"] = {dtype::i64, {counts.size()}, std::as_bytes(std::span(counts))};
  tensors["best"] = {dtype::f64, {1}, std::as_bytes(std::span(best))};
  identity["format"] = "tigon finetune 1";
  save_safetensors(path, tensors, identity);
}

/// Whether load_state() would take it.
inline bool is_finite(const trained_parameters& trained) {
  const auto finite = [](const std::vector<float>& all, bool negative) {
    return std::ranges::all_of(all, [=](float v) { return std::isfinite(v) && (negative || v >= 0); });
  };
  return finite(trained.values, true) && finite(trained.first_moment, true) && finite(trained.second_moment, false);
}

/// Nothing of `trained` changes unless the whole file fits.
inline run_position load_state(const std::filesystem::path& path, trained_parameters& trained,
                               const run_identity& identity) {
  const auto file = safetensors_file::map(path);
  if (const auto format = file.metadata().find("format");
      format == file.metadata().end() || format->second != "tigon finetune 1")
    file.fail("is not a state of this program");
  for (const auto& [key, wanted] : identity)
    if (const std::string& found = file.meta(key); found != wanted)
      file.fail("is of a run with another " + key + ": " + printable(found) + ", not " + printable(wanted));
  for (const auto& [key, found] : file.metadata())
    if (key != "format" && !identity.contains(key))
      file.fail("is of a run with another " + printable(key) + ": " + printable(found) + ", not none");
  const auto checked = [&](const char* name, dtype type, std::size_t size) -> const tensor_view& {
    const tensor_view& tensor = file.at(name);
    if (tensor.type != type || tensor.shape != std::vector<std::size_t>{size})
      file.fail(std::string("holds a tensor \"") + name + "\" of another shape or type");
    return tensor;
  };
  const std::size_t size = trained.values.size();
  const auto read = [&](const char* name, bool negative) {
    std::vector<float> out = checked(name, dtype::f32, size).values<float>();
    for (const float v : out)
      if (!std::isfinite(v) || (!negative && v < 0))
        file.fail(std::string("holds a tensor \"") + name + "\" with numbers that no training leaves");
    return out;
  };
  std::vector<float> values = read("parameters", true), first = read("adam.first", true),
                     second = read("adam.second", false);
  const std::vector<std::int64_t> counts = checked("counts", dtype::i64, 4).values<std::int64_t>();
  run_position at{counts[0], counts[1], counts[2], counts[3], checked("best", dtype::f64, 1).values<double>()[0]};
  if (*std::min_element(counts.begin(), counts.end()) < 0 || std::isnan(at.best))
    file.fail("holds counts that no training leaves");
  trained.values = std::move(values), trained.first_moment = std::move(first),
  trained.second_moment = std::move(second);
  return at;
}

}  // namespace example
#endif

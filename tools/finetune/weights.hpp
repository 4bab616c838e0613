// The parameters of a model: where each tensor of the file lies in one flat array, and the file's values in it.
#ifndef EXAMPLE_FINETUNE_WEIGHTS_HPP
#define EXAMPLE_FINETUNE_WEIGHTS_HPP

#include <tigon/core/element.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../../support/safetensors.hpp"
#include "config.hpp"
#include "f32_values.hpp"

namespace example {

inline constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

/// A tensor under the name that the file has for it. A vector has one row.
struct weight_tensor {
  std::string name;
  std::size_t offset, rows, cols;
  bool is_matrix;

  std::size_t size() const { return rows * cols; }
  std::vector<std::size_t> shape() const { return is_matrix ? std::vector{rows, cols} : std::vector{cols}; }
};

/// y = x w^T + b, with the matrices of one or several tensors of the file under one another as w: q, k and v are one
/// product, and so are gate and up.
struct projection {
  struct part {
    std::string module;  ///< the tensor's name without ".weight"
    std::size_t first, rows;
  };
  std::size_t offset = nowhere, rows = 0, cols = 0;
  std::size_t bias = nowhere;
  std::vector<part> parts;
};

/// All tensors of a model in one flat array, so that the optimizer and the conversion to 16 bits see a single stretch.
struct weight_layout {
  struct layer {
    std::size_t attention_norm, mlp_norm;
    std::size_t attention_post_norm = nowhere, mlp_post_norm = nowhere, q_norm = nowhere, k_norm = nowhere;
    projection qkv, out, gate_up, down;  ///< of the experts one under another, an expert's gate above its up
    std::size_t router = nowhere;
  };
  std::vector<weight_tensor> tensors;
  std::vector<layer> layers;
  std::size_t embedding = 0, head = 0, final_norm = 0;  ///< head is embedding where they are tied
  std::size_t total = 0;
  std::map<std::size_t, std::size_t> norm_places;  ///< from a norm's offset to that in an array of norms alone
  std::size_t norms_total = 0;

  explicit weight_layout(const architecture& a) {
    embedding = begin("model.embed_tokens.weight", a.vocab, a.hidden);
    for (std::size_t l = 0; l < a.layers; ++l) add_layer(a, l, "model.layers." + std::to_string(l) + ".");
    final_norm = vector("model.norm", a.hidden);
    head = a.tied ? embedding : begin("lm_head.weight", a.vocab, a.hidden);
  }

  std::size_t norm_at(std::size_t offset) const { return norm_places.at(offset); }

  template <class T>
  static std::span<T> of(std::span<T> flat, const weight_tensor& t) {
    return flat.subspan(t.offset, t.size());
  }

 private:
  void add_layer(const architecture& a, std::size_t l, const std::string& at) {
    layer out{};
    const std::string attention = at + "self_attn.";
    out.attention_norm = vector(at + "input_layernorm", a.hidden);
    out.qkv = join({{attention + "q_proj", 0, a.q_width()},
                    {attention + "k_proj", 0, a.kv_width()},
                    {attention + "v_proj", 0, a.kv_width()}},
                   a.hidden, a.qkv_bias);
    if (a.head_norms) {
      out.q_norm = vector(attention + "q_norm", a.head_dim);
      out.k_norm = vector(attention + "k_norm", a.head_dim);
    }
    out.out = join({{attention + "o_proj", 0, a.hidden}}, a.q_width(), a.out_bias);
    if (a.post_norms) {
      out.attention_post_norm = vector(at + "post_attention_layernorm", a.hidden);
      out.mlp_norm = vector(at + "pre_feedforward_layernorm", a.hidden);
      out.mlp_post_norm = vector(at + "post_feedforward_layernorm", a.hidden);
    } else {
      out.mlp_norm = vector(at + "post_attention_layernorm", a.hidden);
    }
    if (a.of_layer[l].sparse) {
      add_experts(a, out, at + (a.model_type == "mixtral" ? "block_sparse_moe." : "mlp."));
    } else {
      out.gate_up = join({{at + "mlp.gate_proj", 0, a.intermediate}, {at + "mlp.up_proj", 0, a.intermediate}}, a.hidden,
                         a.mlp_bias);
      out.down = join({{at + "mlp.down_proj", 0, a.hidden}}, a.intermediate, a.mlp_bias);
    }
    layers.push_back(std::move(out));
  }

  void add_experts(const architecture& a, layer& out, const std::string& at) {
    const bool mixtral = a.model_type == "mixtral";
    out.router = begin(at + "gate.weight", a.experts, a.hidden);
    std::vector<projection::part> gate_up, down;
    for (std::size_t e = 0; e < a.experts; ++e) {
      const std::string expert = at + "experts." + std::to_string(e) + ".";
      gate_up.push_back({expert + (mixtral ? "w1" : "gate_proj"), 0, a.expert_intermediate});
      gate_up.push_back({expert + (mixtral ? "w3" : "up_proj"), 0, a.expert_intermediate});
      down.push_back({expert + (mixtral ? "w2" : "down_proj"), 0, a.hidden});
    }
    out.gate_up = join(std::move(gate_up), a.hidden, false);
    out.down = join(std::move(down), a.expert_intermediate, false);
  }

  /// Each begins on a cache line, in f32 and in 16 bits.
  void align() { total = (total + 31) / 32 * 32; }
  std::size_t begin(std::string name, std::size_t rows, std::size_t cols, bool is_matrix = true) {
    align();
    return put(std::move(name), rows, cols, is_matrix);
  }
  std::size_t vector(const std::string& module, std::size_t cols) {
    const std::size_t offset = begin(module + ".weight", 1, cols, false);
    norm_places[offset] = norms_total;
    norms_total += (cols + 15) / 16 * 16;
    return offset;
  }
  std::size_t put(std::string name, std::size_t rows, std::size_t cols, bool is_matrix) {
    if (static_cast<double>(total) + static_cast<double>(rows) * static_cast<double>(cols) > 1e15)
      throw std::bad_alloc();  // before a product of extents overflows
    tensors.push_back({std::move(name), total, rows, cols, is_matrix});
    total += rows * cols;
    return tensors.back().offset;
  }
  projection join(std::vector<projection::part> parts, std::size_t cols, bool biased) {
    align();
    projection out;
    out.offset = total, out.cols = cols;
    for (auto& part : parts) {
      part.first = out.rows, out.rows += part.rows;
      put(part.module + ".weight", part.rows, cols, true);
    }
    align();
    if (biased) out.bias = total;
    for (auto& part : parts)
      if (biased) put(part.module + ".bias", 1, part.rows, false);
    out.parts = std::move(parts);
    return out;
  }
};

/// Bytes of weights, gradients and two moments in f32: what training holds at the least.
inline double training_bytes(const weight_layout& layout) { return 16 * static_cast<double>(layout.total); }

namespace detail {

/// The files of a folder: model.safetensors, or those that the index names.
inline std::vector<safetensors_file> checkpoint_files(const std::filesystem::path& folder,
                                                      std::map<std::string, std::size_t>& file_of) {
  std::error_code code;
  std::vector<safetensors_file> files;
  const std::filesystem::path single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single, code) || !std::filesystem::exists(index, code)) {
    if (!std::filesystem::exists(single, code))
      throw std::runtime_error(folder.string() + " holds neither model.safetensors nor model.safetensors.index.json");
    files.push_back(safetensors_file::map(single));
    for (const auto& [name, tensor] : files[0].tensors()) file_of[name] = 0;
    return files;
  }
  const std::string name = index.string();
  std::ifstream in(index, std::ios::binary);
  const auto json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object())
    throw std::runtime_error(name + " has no weight_map");
  std::map<std::string, std::size_t> known;
  for (const auto& [tensor, file] : map->items()) {
    const std::string path = file.is_string() ? file.get<std::string>() : std::string();
    if (path.empty() || path.find('/') != std::string::npos || path.find('\0') != std::string::npos || path == "..")
      throw std::runtime_error(name + " gives tensor \"" + printable(tensor) +
                               "\" a file that is not one of its folder");
    const auto [at, fresh] = known.emplace(path, files.size());
    if (fresh) files.push_back(safetensors_file::map(folder / path));
    if (!files[at->second].contains(tensor))
      throw std::runtime_error(name + " says that " + printable(path) + " holds a tensor \"" + printable(tensor) +
                               "\", which it does not");
    file_of[tensor] = at->second;
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const auto& [tensor, view] : files[i].tensors())
      if (const auto at = file_of.find(tensor); at == file_of.end() || at->second != i)
        files[i].fail("holds a tensor \"" + printable(tensor) + "\" that " + name + " does not name as one of it");
  return files;
}

/// Tensors that transformers ignores by their names, too: buffers of older releases that the model makes itself, and a
/// head that is the embedding once more.
inline bool is_made_anyway(const std::string& name, const architecture& a) {
  return name.find("rotary_emb.inv_freq") != std::string::npos || (a.tied && name == "lm_head.weight");
}

/// Whether the folder has a head with other values than the embedding.
inline bool has_own_head(const std::filesystem::path& folder) {
  std::map<std::string, std::size_t> file_of;
  const std::vector<safetensors_file> files = checkpoint_files(folder, file_of);
  const auto head = file_of.find("lm_head.weight"), embedding = file_of.find("model.embed_tokens.weight");
  if (head == file_of.end() || embedding == file_of.end()) return false;
  const safetensors_file &of_head = files[head->second], &of_embedding = files[embedding->second];
  const tensor_view &a = of_head.at(head->first), &b = of_embedding.at(embedding->first);
  if (a.shape != b.shape) return true;
  std::vector<float> x(a.numel()), y(b.numel());
  const bool readable = read_f32(a, x) && read_f32(b, y);
  of_head.release(a), of_embedding.release(b);
  return !readable || x != y;
}

}  // namespace detail

/// The architecture that config.json states. Where it says that the head is the embedding, and the files have a head of
/// other values, the model has that head, as transformers has it. Throws a sentence also where the folder holds
/// adapters for a model: transformers adds them to it.
inline architecture architecture_of_folder(const std::filesystem::path& folder) {
  architecture a = read_architecture(config_reader::of_folder(folder));
  std::error_code code;
  if (std::filesystem::exists(folder / "adapter_config.json", code))
    throw std::runtime_error(folder.string() +
                             " holds adapters, adapter_config.json, which are not added to a model here; expected a "
                             "folder without them (PEFT's merge_and_unload makes one)");
  if (a.tied && detail::has_own_head(folder)) a.tied = false;
  return a;
}

/// Calls each(tensor, values) with the folder's weights in f32, one tensor at a time. Every tensor of the model has to
/// be there, in its shape, and no other. `memory(tensor)` is where its values may lie.
template <class Memory, class Each>
void read_weights(const std::filesystem::path& folder, const architecture& a, const weight_layout& layout,
                  const Memory& memory, const Each& each) {
  std::map<std::string, std::size_t> file_of;
  const std::vector<safetensors_file> files = detail::checkpoint_files(folder, file_of);
  std::set<std::string> wanted;
  for (const weight_tensor& t : layout.tensors) {
    wanted.insert(t.name);
    const auto found = file_of.find(t.name);
    if (found == file_of.end())
      throw std::runtime_error(folder.string() + " holds no tensor \"" + t.name + "\", which its config.json requires");
    const safetensors_file& file = files[found->second];
    const tensor_view& tensor = file.at(t.name);
    if (tensor.shape != t.shape()) {
      std::string shape;
      for (const std::size_t extent : t.shape()) shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
      file.fail("holds a tensor \"" + t.name + "\" of another shape than [" + shape + "], which config.json requires");
    }
    const std::span<float> to = memory(t);
    if (!read_f32(tensor, to))
      file.fail("holds a tensor \"" + t.name + "\" of type " + std::string(info(tensor.type).name) +
                ", where f32, bf16 or f16 is read");
    for (const float v : to)
      if (!std::isfinite(v)) file.fail("holds a tensor \"" + t.name + "\" with a number that is not finite");
    each(t, to);
    file.release(tensor);
  }
  for (const auto& [name, file] : file_of)
    if (!wanted.contains(name) && !detail::is_made_anyway(name, a))
      files[file].fail("holds a tensor \"" + printable(name) + "\", which the model of its config.json does not have");
}

/// All of them in one array.
inline void read_weights(const std::filesystem::path& folder, const architecture& a, const weight_layout& layout,
                         std::span<float> out) {
  read_weights(
      folder, a, layout, [&](const weight_tensor& t) { return weight_layout::of(out, t); },
      [](const weight_tensor&, std::span<const float>) {});
}

}  // namespace example
#endif

// The tokenizer of a folder as Hugging Face lays it out.
#ifndef EXAMPLE_FINETUNE_TEXT_LOAD_TOKENIZER_HPP
#define EXAMPLE_FINETUNE_TEXT_LOAD_TOKENIZER_HPP

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "../json_file.hpp"
#include "sentencepiece_model.hpp"
#include "tokenizer.hpp"
#include "tokenizer_json.hpp"

namespace example::finetune {
namespace detail {

inline bool is_file(const std::filesystem::path& path) {
  std::error_code code;
  return std::filesystem::is_regular_file(path, code);
}

/// An object of a JSON file, empty if there is no such file.
inline nlohmann::json optional_object(const std::filesystem::path& path) {
  if (!is_file(path)) return nlohmann::json::object();
  return json_source("the file " + path.string()).parse_object(read_file(path));
}

/// The id of the token that tokenizer_config.json names, as a string or with its options.
inline std::optional<std::int32_t> named_token(const std::filesystem::path& path, const nlohmann::json& config,
                                               const char* key, const tokenizer_model& model) {
  const json_source source("the file " + path.string());
  const nlohmann::json* value = json_source::find(config, key);
  if (value == nullptr) return std::nullopt;
  const std::string token = value->is_string() ? value->get<std::string>() : source.text(*value, "content");
  const auto id = model.id_of(token);
  if (!id) source.fail("names " + json_source::quoted(token) + " as its " + key + ", which the tokenizer lacks");
  return id;
}

/// The id that config.json gives; of several, the first.
inline std::optional<std::int32_t> numbered_token(const std::filesystem::path& path, const nlohmann::json& config,
                                                  const char* key, const tokenizer_model& model) {
  const nlohmann::json* value = json_source::find(config, key);
  if (value != nullptr && value->is_array() && !value->empty()) value = &value->front();
  if (value == nullptr) return std::nullopt;
  const json_source source("the file " + path.string());
  const std::size_t id = source.whole(*value, key, tokenizer_json_reader::most_ids);
  // Models have more rows than their tokenizers have tokens; an id up there stands for nothing.
  return id < model.vocab_size() ? std::optional(static_cast<std::int32_t>(id)) : std::nullopt;
}

}  // namespace detail

/// tokenizer.json, or else tokenizer.model; what bos, eos and pad are, tokenizer_config.json says, or
/// special_tokens_map.json, or else config.json. Throws std::runtime_error.
inline tokenizer load_tokenizer(const std::filesystem::path& folder) {
  const auto json_path = folder / "tokenizer.json", model_path = folder / "tokenizer.model";
  const auto named_path = folder / "tokenizer_config.json", map_path = folder / "special_tokens_map.json";
  const auto numbered_path = folder / "config.json";
  const auto named = detail::optional_object(named_path), map = detail::optional_object(map_path);
  const auto numbered = detail::optional_object(numbered_path);

  std::shared_ptr<const tokenizer_model> model;
  special_ids ids;
  std::shared_ptr<const sentencepiece_tokenizer> pieces;
  if (detail::is_file(json_path)) {
    tokenizer_json read = read_tokenizer_json(json_path);
    model = std::move(read.model);
    ids.prefix = std::move(read.prefix);
    ids.suffix = std::move(read.suffix);
  } else if (detail::is_file(model_path)) {
    pieces = std::make_shared<sentencepiece_tokenizer>(model_path, read_file(model_path));
    model = pieces;
  } else {
    throw std::runtime_error("the folder " + folder.string() + " holds neither tokenizer.json nor tokenizer.model");
  }

  const auto find = [&](const char* token, const char* number) {
    auto id = detail::named_token(named_path, named, token, *model);
    if (!id) id = detail::named_token(map_path, map, token, *model);
    return id ? id : detail::numbered_token(numbered_path, numbered, number, *model);
  };
  ids.bos = find("bos_token", "bos_token_id");
  ids.eos = find("eos_token", "eos_token_id");
  ids.pad = find("pad_token", "pad_token_id");
  if (pieces) {
    if (!ids.bos) ids.bos = pieces->bos();
    if (!ids.eos) ids.eos = pieces->eos();
    if (!ids.pad) ids.pad = pieces->pad();
    const json_source source("the file " + named_path.string());
    if (source.flag(named, "add_bos_token", true) && ids.bos) ids.prefix = {*ids.bos};
    if (source.flag(named, "add_eos_token", false) && ids.eos) ids.suffix = {*ids.eos};
  }
  return tokenizer(std::move(model), std::move(ids));
}

}  // namespace example::finetune
#endif

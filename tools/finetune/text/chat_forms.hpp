// Chat templates that are known as a whole, and the texts that they make of conversations.
#ifndef EXAMPLE_FINETUNE_TEXT_CHAT_FORMS_HPP
#define EXAMPLE_FINETUNE_TEXT_CHAT_FORMS_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace example::finetune {

/// What stands around the content of a turn: `before`, content, `end`, `behind`. Of an answer content and `end` are
/// learned. In all of these texts {bos} and {eos} stand for the tokenizer's tokens.
struct chat_turn {
  std::string_view before = {}, end = {}, behind = {};
};

/// All that a template does to messages whose contents are strings, without tools.
struct chat_form {
  chat_turn system = {}, user = {}, assistant = {};
  std::string_view begin = {};                          ///< of the text
  std::string_view close = {};                          ///< of the text
  std::optional<std::string_view> default_system = {};  ///< content of a first turn, where a conversation has none
  std::string_view before_first_system = {};            ///< in the turn of a first system message
  std::string_view begins_answer = {};                  ///< is learned with it
  bool has_system = true;                               ///< without: a system message is refused
  std::optional<std::string_view> joins_user = {};      ///< a first system message and this begin the first user's turn
  bool alternates = false;                              ///< user, assistant, user, ...
  bool trims = false;                                   ///< contents, as Python's strip() does
  bool reasons = false;                                 ///< an answer's <think> part, as Qwen3's template has it
};

namespace chat_forms {

inline constexpr chat_form chatml{
    .system = {"<|im_start|>system\n", "<|im_end|>", "\n"},
    .user = {"<|im_start|>user\n", "<|im_end|>", "\n"},
    .assistant = {"<|im_start|>assistant\n", "<|im_end|>", "\n"},
};
constexpr chat_form chatml_with_default(std::string_view system) {
  chat_form out = chatml;
  out.default_system = system;
  return out;
}
inline constexpr chat_form smollm2 =
    chatml_with_default("You are a helpful AI assistant named SmolLM, trained by Hugging Face");
inline constexpr chat_form qwen2_5 =
    chatml_with_default("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
inline constexpr chat_form qwen3 = [] {
  chat_form out = chatml;
  out.reasons = true;
  return out;
}();

inline constexpr chat_form llama3{
    .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
    .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
    .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
    .begin = "{bos}",
    .trims = true,
};
/// Its first release has the header of an answer at the end of every text.
inline constexpr chat_form llama3_open = [] {
  chat_form out = llama3;
  out.close = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  return out;
}();
/// Of 3.1 and 3.2; the date is that of a template which is not told one.
inline constexpr chat_form llama3_dated = [] {
  chat_form out = llama3;
  out.default_system = "";
  out.before_first_system = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  return out;
}();

inline constexpr chat_form gemma{
    .user = {"<start_of_turn>user\n", "<end_of_turn>", "\n"},
    .assistant = {"<start_of_turn>model\n", "<end_of_turn>", "\n"},
    .begin = "{bos}",
    .has_system = false,
    .alternates = true,
    .trims = true,
};
inline constexpr chat_form gemma_without_bos = [] {
  chat_form out = gemma;
  out.begin = {};
  return out;
}();
inline constexpr chat_form gemma3 = [] {
  chat_form out = gemma;
  out.joins_user = "\n\n";
  return out;
}();

constexpr chat_form mistral(std::string_view before_answer, std::string_view behind_answer) {
  return {.user = {"[INST] ", " [/INST]"},
          .assistant = {"", "{eos}", behind_answer},
          .begin = "{bos}",
          .begins_answer = before_answer,
          .has_system = false,
          .alternates = true};
}
inline constexpr chat_form mistral_v01 = mistral("", " "), mistral_v02 = mistral("", ""),
                           mistral_space = mistral(" ", "");

inline constexpr chat_form zephyr{
    .system = {"<|system|>\n", "{eos}", "\n"},
    .user = {"<|user|>\n", "{eos}", "\n"},
    .assistant = {"<|assistant|>\n", "{eos}", "\n"},
};
inline constexpr chat_form phi3{
    .system = {"<|system|>\n", "<|end|>", "\n"},
    .user = {"<|user|>\n", "<|end|>", "\n"},
    .assistant = {"<|assistant|>\n", "<|end|>", "\n"},
    .close = "{eos}",
};

}  // namespace chat_forms

/// A template by the length and the hash of its text.
struct known_chat_template {
  std::string_view name;
  std::size_t size;
  std::uint64_t hash;
  const chat_form* form;
};

/// Written by tests/tools/fixtures/finetune_text/make_chats.py, which compares each form with Jinja.
inline constexpr known_chat_template known_chat_templates[] = {
    // BEGIN
    {"chatml", 196, 0x88bf4138d5c826f0u, &chat_forms::chatml},
    {"chatml_unset", 291, 0x773d13e188afc917u, &chat_forms::chatml},
    {"chatml_last", 210, 0xdaec948531d70f8fu, &chat_forms::chatml},
    {"smollm2", 368, 0x45ec583d4d25bc3au, &chat_forms::smollm2},
    {"llama3_open", 348, 0x74891e390e614ae2u, &chat_forms::llama3_open},
    {"gemma_without_bos", 576, 0xe588cc2356832fabu, &chat_forms::gemma_without_bos},
    {"zephyr", 410, 0xcd8b49000db02c2cu, &chat_forms::zephyr},
    {"chatml_escaped", 199, 0xa41d6bae9b9141bcu, &chat_forms::chatml},
    {"chatml_unset_escaped", 294, 0x17fde6ecda9c7c01u, &chat_forms::chatml},
    {"chatml_last_escaped", 213, 0xecbaac743d516075u, &chat_forms::chatml},
    {"smollm2_escaped", 373, 0x09b5156a5cf6abfcu, &chat_forms::smollm2},
    {"llama3_open_escaped", 352, 0x60b6f54caafc7e66u, &chat_forms::llama3_open},
    {"gemma_without_bos_escaped", 579, 0x690954969ec87269u, &chat_forms::gemma_without_bos},
    {"zephyr_escaped", 413, 0x0af6ea9cf9896e56u, &chat_forms::zephyr},
    {"gemma_escaped", 594, 0x70f3cded3fb90051u, &chat_forms::gemma},
    {"llama3_escaped", 393, 0x32844fd43eab01d2u, &chat_forms::llama3},
    {"mistral_v01", 477, 0xc730acc029ce6ee0u, &chat_forms::mistral_v01},
    {"mistral_v02", 470, 0x8c734b90b4f8d84du, &chat_forms::mistral_v02},
    {"mistral_space", 476, 0x8b1639a35c930f42u, &chat_forms::mistral_space},
    {"qwen2_5", 2506, 0xe642ce246d7f2e3du, &chat_forms::qwen2_5},
    {"qwen2_5_training", 2964, 0xdedd22c04194d239u, &chat_forms::qwen2_5},
    {"qwen3", 4168, 0x959a4551391a6549u, &chat_forms::qwen3},
    {"qwen3_instruct_2507", 2630, 0x3751fe8ea48448abu, &chat_forms::chatml},
    {"qwen3_instruct_2507_training", 3165, 0xe8faca59b0472e66u, &chat_forms::chatml},
    {"llama3", 389, 0x0e60067a5537498eu, &chat_forms::llama3},
    {"llama3_training", 862, 0xf2a9dd138dc335eeu, &chat_forms::llama3},
    {"llama3_1", 4613, 0xcc0368e1ffb6b958u, &chat_forms::llama3_dated},
    {"llama3_2", 3826, 0x368f4c34b8554414u, &chat_forms::llama3_dated},
    {"gemma", 591, 0x5c10ee65212d93b3u, &chat_forms::gemma},
    {"gemma_training", 1362, 0xca32624169bacac9u, &chat_forms::gemma},
    {"gemma3", 1531, 0xd19b6ff3a49deea5u, &chat_forms::gemma3},
    {"gemma3_training", 2721, 0xef9e42aa2c564290u, &chat_forms::gemma3},
    {"phi3", 407, 0xecebdb26677c663du, &chat_forms::phi3},
    {"phi3_training", 946, 0x6d97d9f07f6ef96bu, &chat_forms::phi3},
    // END
};

/// As Jinja reads a template: its ends of lines are \n, and one at its end is left out.
inline std::string jinja_source(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool returns = text[i] == '\r';
    if (returns && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += returns ? '\n' : text[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

/// FNV-1a.
inline std::uint64_t chat_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// Null where the text is not that of a known template, to the byte.
inline const known_chat_template* find_chat_template(std::string_view text) {
  const std::string source = jinja_source(text);
  const std::uint64_t hash = chat_hash(source);
  for (const known_chat_template& one : known_chat_templates)
    if (one.size == source.size() && one.hash == hash) return &one;
  return nullptr;
}

}  // namespace example::finetune
#endif

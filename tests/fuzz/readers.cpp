// Fuzzing of the programs' readers: safetensors files, checkpoints of train_llama, its tokenizers, configurations of
// finetune. Readers of other programs get a target here each.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "../../examples/train_llama/checkpoint.hpp"
#include "../../examples/train_llama/tokenizer.hpp"
#include "../../support/safetensors.hpp"
#include "../../tools/finetune/config.hpp"
#include "source.hpp"

namespace {

using namespace tigon::fuzz;
using example::dtype, example::safetensors_file;

/// A file without a folder.
class memory_file {
 public:
  memory_file() : file_(::memfd_create("case", 0)) {
    if (file_ < 0) throw finding("no memory for a file");
  }
  ~memory_file() { ::close(file_); }
  memory_file(const memory_file&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }
  void put(const std::string& all) const {
    if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, all.data(), all.size(), 0) != static_cast<ssize_t>(all.size()))
      throw finding("a file cannot be written");
  }

 private:
  int file_;
};

/// Some damage to a file: bytes or digits changed, bytes taken out, put in, repeated, or cut off.
void damage(std::string& all, source& in) {
  static constexpr std::string_view pieces[] = {
      "{",         "}",     "[",    "]",    ",",    ":",       "\"",
      "0",         "-1",    "1e99", "true", "null", "\\u0000", "F32",
      "BF16",      "shape", " ",    "\n",   "\xff", "[[[[[[",  "18446744073709551615",
      "4294967296"};
  const std::size_t times = in.below(5);
  for (std::size_t n = 0; n < times && !all.empty(); ++n) {
    const std::size_t at = in.below(std::min<std::size_t>(all.size(), 60000));
    switch (in.below(8)) {
      case 0: all[at] = static_cast<char>(in.byte()); break;
      case 1: all[at] = static_cast<char>(all[at] ^ 1 << in.below(8)); break;
      case 2: all.erase(at, in.between(1, 8)); break;
      case 3: all.insert(at, pieces[in.below(std::size(pieces))]); break;
      case 4: all.insert(at, all.substr(in.below(all.size()), in.between(1, 40))); break;
      case 5: all.resize(at); break;
      case 6: {  // a file of another number, and otherwise as good as before
        const std::size_t digit = all.find_first_of("0123456789", at);
        if (digit != all.npos) all[digit] = static_cast<char>('0' + in.below(10));
        break;
      }
      default: all[at % 8] = static_cast<char>(in.byte()); break;  // the length of the header
    }
  }
}

/// A refusal is one line that names the file; anything else that is thrown is a finding.
template <class Read>
bool reads(const std::string& path, Read read) {
  try {
    read();
    return true;
  } catch (const finding&) {
    throw;
  } catch (const std::runtime_error& e) {
    const std::string sentence = e.what();
    if (sentence.find(path) == sentence.npos) throw finding("a refusal does not name the file: " + sentence);
    if (sentence.find('\n') != sentence.npos) throw finding("a refusal is of more than one line: " + sentence);
    return false;
  }
}

void safetensors(source& in) {
  static constexpr std::string_view names[] = {"F64", "F32", "BF16", "F16", "I64", "I32", "U8", "BOOL"};
  static constexpr std::size_t sizes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  std::string header = "{", data;
  if (in.one_in(3)) header += R"("__metadata__":{"format":"pt","other":"\"\n"},)";
  const std::size_t count = in.below(4);
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t type = in.below(8), rows = in.below(5), cols = in.below(5), first = data.size();
    data.append(rows * cols * sizes[type], static_cast<char>(in.byte()));
    header += "\"t" + std::to_string(k) + "\":{\"dtype\":\"" + std::string(names[type]) + "\",\"shape\":[" +
              std::to_string(rows) + "," + std::to_string(cols) + "],\"data_offsets\":[" + std::to_string(first) + "," +
              std::to_string(data.size()) + "]},";
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  const std::uint64_t claim = header.size();
  std::string all(reinterpret_cast<const char*>(&claim), sizeof claim);
  all += header + data;
  const std::string whole = all;
  damage(all, in);
  memory_file file;
  file.put(all);
  const bool accepted = reads(file.path(), [&] {
    const auto loaded = safetensors_file::load(file.path());
    std::size_t bytes = 0;
    for (const auto& [name, tensor] : loaded.tensors()) {
      std::size_t elements = 1;
      for (const std::size_t extent : tensor.shape) elements *= extent;
      if (elements != tensor.numel() || tensor.bytes.size() != elements * example::info(tensor.type).size)
        throw finding("a tensor's bytes are not those of its shape");
      bytes += tensor.bytes.size();
      unsigned sum = 0;  // reads every byte
      for (const std::byte b : tensor.bytes) sum += static_cast<unsigned>(b);
      if (sum == 12345678) throw finding("impossible");
    }
    if (bytes > all.size()) throw finding("tensors have more bytes than the file");
    memory_file again;
    std::map<std::string, example::tensor_view> tensors(loaded.tensors().begin(), loaded.tensors().end());
    if (tensors.contains("__metadata__")) throw finding("metadata became a tensor");
  });
  if (!accepted && all == whole) throw finding("a good file is refused");
}

void checkpoint(source& in) {
  using namespace example;
  static const parameter_layout layout(
      {.vocab = 3, .layers = 1, .hidden = 4, .intermediate = 2, .heads = 2, .kv_heads = 1});
  static const std::string good = [] {
    std::vector<float> weights(layout.total, 0.25f);
    optimizer moments(layout.total, {{0, layout.total, 1}}, {});
    rng draws(7);
    std::size_t step = 3;
    const auto path = std::filesystem::temp_directory_path() / ("tigon-fuzz-" + std::to_string(getpid()));
    save_checkpoint(path, layout, training_state{weights, moments, draws, step}, {{"model", "small"}});
    std::ifstream file(path, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    std::filesystem::remove(path);
    return all;
  }();
  std::string all = good;
  damage(all, in);
  memory_file file;
  file.put(all);
  std::vector<float> weights(layout.total, 9.0f);
  optimizer moments(layout.total, {{0, layout.total, 1}}, {});
  rng draws(1);
  std::size_t step = 77;
  const auto state_before = draws.state();
  const bool accepted = reads(file.path(), [&] {
    load_checkpoint(file.path(), layout, training_state{weights, moments, draws, step}, {{"model", "small"}});
  });
  if (!accepted && all == good) throw finding("a good checkpoint is refused");
  if (weights.size() != layout.total || moments.first_moment().size() != layout.total)
    throw finding("a state of another size");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || !(moments.second_moment()[i] >= 0))
      throw finding("numbers that no training leaves");
    if (!accepted && weights[i] != 9.0f) throw finding("a refused checkpoint changed the weights");
  }
  if (!accepted && (step != 77 || draws.state() != state_before || moments.steps() != 0))
    throw finding("a refused checkpoint changed the state");
}

/// A folder that is taken away at the end.
struct temporary_folder {
  std::filesystem::path path;
  explicit temporary_folder(const std::string& name)
      : path(std::filesystem::temp_directory_path() / ("tigon-fuzz-" + name + "-" + std::to_string(getpid()))) {}
  temporary_folder(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code code;
    std::filesystem::remove_all(path, code);
  }
};

/// config.json of a folder of a model.
void config(source& in) {
  static const temporary_folder folder("model");
  static constexpr std::string_view families[] = {"llama",  "mistral",     "qwen2",   "qwen3",     "gemma",
                                                  "gemma2", "gemma3_text", "mixtral", "qwen3_moe", "gpt2"};
  static constexpr std::string_view more[] = {
      R"("rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32})",
      R"("rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4})",
      R"("rope_parameters":{"full_attention":{"rope_theta":1e6},"sliding_attention":{"rope_theta":1e4}})",
      R"("rope_scaling":{"type":"longrope","short_factor":[1,1],"long_factor":[2,2]})",
      R"("layer_types":["sliding_attention","full_attention"])",
      R"("sliding_window":16)",
      R"("use_sliding_window":true)",
      R"("pad_token_id":0)",
      R"("num_local_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":8)",
      R"("mlp_only_layers":[0])",
      R"("decoder_sparse_step":2)",
      R"("tie_word_embeddings":true)",
      R"("head_dim":8)",
      R"("attn_logit_softcapping":50.0,"query_pre_attn_scalar":256)"};
  const std::string_view family = families[in.below(std::size(families))];
  std::string all = R"({"model_type":")" + std::string(family) +
                    R"(","vocab_size":11,"hidden_size":16,"intermediate_size":24,"num_hidden_layers":2,)"
                    R"("num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":64)";
  const std::size_t count = in.below(4);
  for (std::size_t k = 0; k < count; ++k) all += "," + std::string(more[in.below(std::size(more))]);
  all += '}';
  const bool good = count == 0 && family != "gpt2" && family != "mixtral" && family != "qwen3_moe";
  const std::string whole = all;
  damage(all, in);
  std::filesystem::create_directories(folder.path);
  std::ofstream(folder.path / "config.json", std::ios::binary) << all;
  const bool accepted = reads((folder.path / "config.json").string(), [&] {
    const auto a = example::read_architecture(example::config_reader::of_folder(folder.path));
    if (a.of_layer.size() != a.layers || a.kv_heads == 0 || a.heads % a.kv_heads != 0 || a.vocab == 0)
      throw finding("an architecture that does not fit together");
    if (a.head_dim == 0 || a.head_dim % 2 != 0 || (a.experts != 0 && (a.top_k == 0 || a.top_k > a.experts)))
      throw finding("heads or experts that do not fit together");
    for (const double number : {a.norm_eps, a.attention_scale, a.attention_softcap, a.logit_softcap, a.rotary.theta,
                                a.rotary.factor, a.embedding_scale})
      if (!std::isfinite(number)) throw finding("a number that is not finite");
  });
  if (!accepted && good && all == whole) throw finding("a good configuration is refused");
}

void tokenizer(source& in) {
  static const std::string text = [] {
    std::string t;
    for (int i = 0; i < 60; ++i)
      t += "the " + std::to_string(i * i) + " quick foxes,\tna\xc3\xafve  dogs\n\nand a line\n";
    return t;
  }();
  static const temporary_folder folder("cache");
  static const auto bpe = example::tokenizer::bpe(text, 300, folder.path);
  if (in.one_in(256)) {  // a damaged cache is as none
    const auto cached = folder.path / (bpe.name() + ".model");
    std::ifstream file(cached, std::ios::binary);
    std::string all{std::istreambuf_iterator<char>(file), {}};
    file.close();
    damage(all, in);
    std::ofstream(cached, std::ios::binary) << all;
    const auto again = example::tokenizer::bpe(text, 300, folder.path);
    if (again.name() != bpe.name() || again.encode(text) != bpe.encode(text)) throw finding("a damaged cache is used");
  }
  std::string some;
  static constexpr std::string_view pieces[] = {
      "the ", "quick", "\n", "  ", "\t", "na\xc3\xafve", "\xe2\x80\x9c", "\xf0\x9f\x98\x80", "a", "0"};
  const bool valid = in.one_in(2);
  const std::size_t length = in.below(40);
  for (std::size_t k = 0; k < length; ++k) {
    if (valid)
      some += pieces[in.below(std::size(pieces))];
    else
      some += static_cast<char>(in.byte());
  }
  const auto ids = bpe.encode(some);
  for (const std::int32_t id : ids)
    if (id < 0 || id >= bpe.vocab()) throw finding("an id outside the vocabulary");
  if (valid && bpe.decode(ids) != some) throw finding("text does not come back");
  const auto plain = example::tokenizer::bytes();
  if (plain.decode(plain.encode(some)) != some) throw finding("bytes do not come back");
}

constexpr target all[] = {
    {"safetensors", safetensors}, {"checkpoint", checkpoint}, {"tokenizer", tokenizer}, {"config", config}};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }

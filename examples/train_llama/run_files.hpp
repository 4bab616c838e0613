// What the training examples do alike about their files: outputs checked before the run, checkpoints' identity.
#ifndef EXAMPLE_TRAIN_LLAMA_RUN_FILES_HPP
#define EXAMPLE_TRAIN_LLAMA_RUN_FILES_HPP

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "../support/memory.hpp"
#include "../support/output_file.hpp"
#include "checkpoint.hpp"
#include "options.hpp"
#include "parameters.hpp"
#include "tokenizer.hpp"

namespace example {

/// The model that the options ask for; SentencePiece has the vocabulary that it was asked for.
inline model_config config_of(const run_options& o) {
  model_config c{o.bytes ? 256 : o.vocab, o.layers, o.hidden, o.intermediate, o.heads, o.kv_heads};
  if (o.experts != 0) c.experts = o.experts, c.top_k = o.top_k, c.balance = static_cast<float>(o.balance);
  return c;
}

/// Bytes that a run holds at the least: weights, gradient and two moments in f32, and of each layer what backward reads
/// of `windows` windows. In double, where no product of sizes overflows.
inline double least_bytes(const run_options& o, std::size_t windows) {
  const model_config c = config_of(o);
  const double parameters = static_cast<double>(parameter_layout(c).total),
               tokens = static_cast<double>(windows) * static_cast<double>(o.seq_len),
               kept = static_cast<double>(2 * c.hidden + c.qkv() + c.mlps_of_token() * 2 * c.intermediate);
  return 16 * parameters + tokens * static_cast<double>(c.layers) * kept * (o.dtype == "bf16" ? 2 : 4);
}

/// Files that cannot be written, or that would replace one another or a file that is read, are told before the run. A
/// run may go on in the checkpoint that it resumes; `inputs` are what else is read.
inline void check_outputs(const run_options& o, const std::vector<named_file>& inputs = {}) {
  const std::vector<named_file> outputs{
      {"--csv", o.csv}, {"--svg", o.svg}, {"--trace", o.trace}, {"--checkpoint", o.checkpoint}};
  std::vector<named_file> files = outputs;
  files.push_back({"--text", o.text});
  files.insert(files.end(), inputs.begin(), inputs.end());
  if (!o.bytes)  // folders that the tokenizer's cache will make
    for (const auto& folder : folders_to_make(o.cache_dir)) files.push_back({"--cache-dir", folder});
  keep_apart(files);
  keep_apart({outputs[0], outputs[1], outputs[2], {"--resume", o.resume}});
  for (const named_file& file : outputs)
    check_writable(file, &file == &outputs.back() ? checkpoint_bytes(parameter_layout(config_of(o))) : 4096);
}

/// What a checkpoint has to be of. Masters are f32 whatever the type that they were trained in.
inline checkpoint_identity identity_of(const model_config& c, const tokenizer& pieces) {
  const auto number = [](std::size_t n) { return std::to_string(n); };
  checkpoint_identity out{{"vocab", number(c.vocab)},   {"layers", number(c.layers)},
                          {"hidden", number(c.hidden)}, {"intermediate", number(c.intermediate)},
                          {"heads", number(c.heads)},   {"kv_heads", number(c.kv_heads)},
                          {"tokenizer", pieces.name()}};
  if (c.experts != 0) out["experts"] = number(c.experts), out["top_k"] = number(c.top_k);
  return out;
}

}  // namespace example
#endif

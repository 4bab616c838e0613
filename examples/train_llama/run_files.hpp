// What the training examples do alike about their files: outputs checked before the run, checkpoints' identity.
#ifndef EXAMPLE_TRAIN_LLAMA_RUN_FILES_HPP
#define EXAMPLE_TRAIN_LLAMA_RUN_FILES_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "../../support/inventory.hpp"
#include "../../support/memory.hpp"
#include "../../support/output_file.hpp"
#include "checkpoint.hpp"
#include "options.hpp"
#include "parameters.hpp"
#include "tokenizer.hpp"

namespace example {

/// The model that the options ask for; SentencePiece has the vocabulary that it was asked for.
inline model_config config_of(const run_options& o) {
  model_config c{o.bytes ? 256 : o.vocab, o.layers, o.hidden, o.intermediate, o.heads, o.kv_heads};
  if (o.experts != 0) c.experts = o.experts, c.top_k = o.top_k, c.balance = static_cast<float>(o.balance);
  c.tied = o.tied;
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

/// What a run of train_llama, distill or preference reads and writes; `inputs` are the files of other options. A run
/// may go on in the checkpoint that it resumes.
inline inventory inventory_of(const run_options& o, const std::vector<named_file>& inputs = {}) {
  inventory all;
  writes_curves(all, o, !o.resume.empty() ? 1 : o.stop_at != 0 ? o.stop_at : o.steps);
  all.writes({"--checkpoint", o.checkpoint}, checkpoint_bytes(parameter_layout(config_of(o))), o.save_every != 0);
  if (!o.random) all.reads({"--text", o.text});
  for (const named_file& file : inputs) all.reads(file);
  all.reads({"--resume", o.resume}, "--checkpoint");
  if (o.bytes || o.random) return all;
  // Tokenizers that are there, and folders that their cache will make.
  std::error_code code;
  for (std::filesystem::directory_iterator at(o.cache_dir, code), end; !code && at != end; at.increment(code))
    if (tokenizer::is_cached_in(at->path())) all.reads({"--cache-dir", at->path()});
  all.makes_folder({"--cache-dir", o.cache_dir});
  return all;
}

/// What a checkpoint has to be of. Masters are f32 whatever the type that they were trained in.
inline checkpoint_identity identity_of(const model_config& c, const tokenizer& pieces) {
  const auto number = [](std::size_t n) { return std::to_string(n); };
  checkpoint_identity out{{"vocab", number(c.vocab)},   {"layers", number(c.layers)},
                          {"hidden", number(c.hidden)}, {"intermediate", number(c.intermediate)},
                          {"heads", number(c.heads)},   {"kv_heads", number(c.kv_heads)},
                          {"tokenizer", pieces.name()}};
  if (c.tied) out["tied"] = "true";
  if (c.experts != 0) out["experts"] = number(c.experts), out["top_k"] = number(c.top_k);
  return out;
}

/// What else decides the steps of train_llama on so many ranks. The rates of a cosine depend on the number of steps.
inline checkpoint_identity training_of(const run_options& o, std::size_t ranks, std::uint64_t text) {
  checkpoint_identity out = numbers_of(o.given);
  out["micro_batch"] = exact_text(o.windows_of_pass(ranks));
  out["text"] = exact_text(text);
  if (o.min_lr != o.lr) out["steps"] = exact_text(o.steps);
  return out;
}

}  // namespace example
#endif

// What the training examples do alike about their files: outputs checked before the run, tables, checkpoints' identity.
#ifndef EXAMPLE_TRAIN_LLAMA_RUN_FILES_HPP
#define EXAMPLE_TRAIN_LLAMA_RUN_FILES_HPP

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "checkpoint.hpp"
#include "options.hpp"
#include "parameters.hpp"
#include "tokenizer.hpp"

namespace example {

/// Files that cannot be written are told before the run, not after it.
inline void check_outputs(const run_options& o) {
  for (const std::string& path : {o.csv, o.svg, o.checkpoint}) {
    if (path.empty()) continue;
    const auto folder = std::filesystem::absolute(path).parent_path();
    if (!std::filesystem::is_directory(folder))
      throw std::runtime_error("the folder " + folder.string() + " for " + path + " does not exist");
  }
}

/// What a checkpoint has to be of. Masters are f32 whatever the type that they were trained in.
inline checkpoint_identity identity_of(const model_config& c, const tokenizer& pieces) {
  const auto number = [](std::size_t n) { return std::to_string(n); };
  return {{"vocab", number(c.vocab)},   {"layers", number(c.layers)},
          {"hidden", number(c.hidden)}, {"intermediate", number(c.intermediate)},
          {"heads", number(c.heads)},   {"kv_heads", number(c.kv_heads)},
          {"tokenizer", pieces.name()}};
}

/// A number of a CSV table; nothing for NaN.
inline std::string csv_number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", v);
  return std::isnan(v) ? std::string() : std::string(text);
}

/// Closes a table and says so if it could not be written.
inline void finish_csv(std::ofstream& out, const std::string& path) {
  out.close();
  if (!out) throw std::runtime_error("the table " + path + " cannot be written");
}

}  // namespace example
#endif

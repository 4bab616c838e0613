// The files of a run.
#ifndef EXAMPLE_FINETUNE_RUN_FILES_HPP
#define EXAMPLE_FINETUNE_RUN_FILES_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "../../support/inventory.hpp"
#include "checkpoint.hpp"
#include "model_lora.hpp"
#include "options.hpp"
#include "weights.hpp"

namespace example {

/// What a run leaves in --out, in the order in which it writes it.
inline std::vector<file_in_folder> saved_files(const finetune_options& o, const weight_layout& layout,
                                               const lora_layout& lora) {
  const std::filesystem::path from = o.folder;
  const bool model = lora.empty() || o.merge, again = o.save_every != 0;
  const bool model_again = again && lora.empty();
  const std::size_t trained = lora.empty() ? layout.total : lora.total;
  std::vector<file_in_folder> out{{state_name, state_bytes(trained, numbers_of(o.given)), again}};
  for (const std::string& name : companions_of(from, model)) {
    std::error_code code;
    const std::uintmax_t bytes = std::filesystem::file_size(from / name, code);
    out.push_back({name, code ? 1 : bytes, model ? model_again : again});
  }
  if (model) {
    out.push_back({"model.safetensors", model_bytes(layout.tensors, o.save_dtype), model_again});
  } else {
    out.push_back({"adapter_model.safetensors", model_bytes(lora.tensors, "f32"), again});
    out.push_back({"adapter_config.json", 1, again});
  }
  return out;
}

/// All files that the run reads and writes.
inline inventory inventory_of(const finetune_options& o, const weight_layout& layout, const lora_layout& lora) {
  std::vector<const char*> names(std::begin(companion_names), std::end(companion_names));
  names.insert(names.end(), std::begin(weight_names), std::end(weight_names));
  const bool open_end = o.patience != 0 || o.resume;
  inventory all;
  writes_curves(all, o, open_end ? 1 : o.stop_at != 0 ? o.stop_at : o.steps);
  if (!o.out.empty()) all.writes_folder({"--out", o.out}, saved_files(o, layout, lora), names);
  all.reads_folder({"the model's folder", o.folder}, names);
  all.reads_folder({"--teacher", o.distillation.teacher}, names);
  all.reads_folder({"--reference", o.reference}, names);
  all.reads({"--data", o.data});
  all.reads({"--eval-data", o.eval_data});
  return all;
}

}  // namespace example
#endif

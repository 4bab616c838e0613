// Fine-tunes a model of Hugging Face by tigon alone. --help lists the options; docs/finetune.md tells more.
#include <tigon/core/error.hpp>
#include <tigon/core/executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../support/memory.hpp"
#include "../support/output_file.hpp"
#include "config.hpp"
#include "input.hpp"
#include "options.hpp"
#include "runs.hpp"
#include "weights.hpp"

namespace {

using namespace example;

/// Refuses what cannot be written, and a folder that the run reads.
void check_outputs(const finetune_options& o) {
  const std::filesystem::path out = o.out;
  keep_apart({{"the model's folder", o.folder}, {"--out", o.out}});
  keep_apart({{"--eval-data", o.eval_data}, {"--csv", o.csv}, {"--svg", o.svg}, {"--trace", o.trace}});
  keep_apart({{"--data", o.data}, {"--csv", o.csv}, {"--svg", o.svg}, {"--trace", o.trace}});
  for (const named_file& file : {named_file{"--csv", o.csv}, {"--svg", o.svg}, {"--trace", o.trace}})
    check_writable(file);
  if (o.out.empty()) return;
  std::error_code code;
  std::filesystem::create_directories(out, code);
  if (code || !std::filesystem::is_directory(out))
    throw std::runtime_error("--out " + o.out + " cannot be made: " + code.message());
  check_writable({"--out", out / "model.safetensors"});
}

int fine_tune(const finetune_options& o) {
  const architecture a = read_architecture(config_reader::of_folder(o.folder));
  const weight_layout layout(a);
  const double parameters = static_cast<double>(layout.total);
  check_memory((o.lora.rank == 0 ? 16 * parameters : 4 * parameters) + (o.dtype == "bf16" ? 2 * parameters : 0));
  check_outputs(o);
  run_data data = read_run_data(o, a.vocab);
  const std::size_t threads = o.threads != 0 ? o.threads : std::max(1u, std::thread::hardware_concurrency());
  tigon::thread_pool pool(threads);
  if (o.dtype == "bf16")
    fine_tune_bf16(o, a, std::move(data.train), data.held_out, pool);
  else
    fine_tune_f32(o, a, std::move(data.train), data.held_out, pool);
  return 0;
}

int refused(const char* sentence, int code) {
  std::fprintf(stderr, "finetune: %s\n", sentence);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const parsed_finetune_options parsed = parse_finetune_options(argc, argv);
    return parsed.options ? fine_tune(*parsed.options) : parsed.exit_code;
  } catch (const std::domain_error& error) {  // the loss
    return refused(error.what(), 1);
  } catch (const std::bad_alloc&) {
    return refused("a run of these sizes does not fit into memory", 2);
  } catch (const tigon::error& error) {
    // Scratch memory, or a frequency that config.json asks for and nobody can compute.
    const bool memory = error.code() == tigon::error_code::workspace;
    return memory ? refused("a run of these sizes does not fit into memory", 2) : refused(error.what(), 2);
  } catch (const std::runtime_error& error) {  // options, configuration, weights, data, files
    return refused(error.what(), 2);
  } catch (const std::exception& error) {
    return refused(error.what(), 1);
  }
}

// Fine-tunes a model of Hugging Face by tigon alone. --help lists the options; docs/finetune.md tells more.
#include <tigon/core/error.hpp>
#include <tigon/core/executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "../../support/memory.hpp"
#include "../../support/output_file.hpp"
#include "../../support/ranks.hpp"
#include "checkpoint.hpp"
#include "config.hpp"
#include "input.hpp"
#include "options.hpp"
#include "run_files.hpp"
#include "runs.hpp"
#include "weights.hpp"

namespace {

using namespace example;

/// The folder's, with what the options say otherwise.
architecture architecture_of(const finetune_options& o) {
  architecture a = architecture_of_folder(o.folder);
  if (o.balance && a.experts == 0) throw std::runtime_error("--balance needs a model with experts");
  if (o.balance) a.balance = *o.balance;
  const weight_layout layout(a);
  const double parameters = static_cast<double>(layout.total), element = o.dtype == "bf16" ? 2 : 4;
  check_memory(o.lora.rank != 0 ? element * parameters : 16 * parameters + (element == 2 ? 2 * parameters : 0));
  return a;
}

int fine_tune(const finetune_options& o, const ranks& here) {
  const tigon::communicator_ref comm = here.comm();
  same_options_on_all_ranks(comm, o.given);
  same_kernels_on_all_ranks(comm);
  if (o.accumulate % comm.size() != 0)
    throw shared_fault("--accumulate " + std::to_string(o.accumulate) + " cannot be divided among " +
                       std::to_string(comm.size()) + " ranks");
  architecture a;
  run_data data;
  on_all_ranks(comm, [&] {
    a = architecture_of(o);
    const weight_layout layout(a);
    if (here.first()) {
      inventory_of(o, layout, lora_layout(layout, o.lora)).check();
      if (!o.out.empty()) expect_no_other_save(o.out, o.lora.rank == 0 || o.merge);
    }
    data = read_run_data(o, a.vocab);
  });
  const std::size_t threads = o.threads != 0 ? o.threads : std::max(1u, std::thread::hardware_concurrency());
  tigon::thread_pool pool(threads);
  if (o.dtype == "bf16")
    fine_tune_bf16(o, a, std::move(data), pool, comm);
  else
    fine_tune_f32(o, a, std::move(data), pool, comm);
  return 0;
}

int refused(const char* sentence, int code) {
  std::fprintf(stderr, "finetune: %s\n", sentence);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const ranks here(argc, argv);
  fail_at_limits();
  try {
    const parsed_finetune_options parsed = parse_finetune_options(argc, argv);
    on_all_ranks(here.comm(), [&] {
      if (!parsed.refusal.empty()) throw std::runtime_error(parsed.refusal);
    });
    same_on_all_ranks(here.comm(), parsed.options.has_value(), "one rank alone was given --help");
    return parsed.options ? fine_tune(*parsed.options, here) : 0;
  } catch (const shared_fault& error) {  // on all ranks
    return here.first() ? refused(error.what(), 2) : 2;
  } catch (const std::domain_error& error) {  // the loss, which all ranks have
    return here.first() ? refused(error.what(), 1) : 1;
  } catch (const std::bad_alloc&) {
    return here.leave(refused("a run of these sizes does not fit into memory", 2));
  } catch (const tigon::error& error) {
    // Scratch memory, or a frequency that config.json asks for and nobody can compute.
    const bool memory = error.code() == tigon::error_code::workspace;
    return here.leave(refused(memory ? "a run of these sizes does not fit into memory" : error.what(), 2));
  } catch (const std::runtime_error& error) {  // options, configuration, weights, data, files
    return here.leave(refused(error.what(), 2));
  } catch (const std::exception& error) {
    return here.leave(refused(error.what(), 1));
  }
}

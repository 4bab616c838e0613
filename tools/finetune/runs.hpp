#ifndef EXAMPLE_FINETUNE_RUNS_HPP
#define EXAMPLE_FINETUNE_RUNS_HPP

#include <tigon/comm/communicator.hpp>
#include <tigon/core/executor.hpp>

#include "config.hpp"
#include "options.hpp"
#include "packing.hpp"

namespace example {

/// Train to the last step, or to where held-out loss no longer falls, and save. Activations in f32, or in bf16.
void fine_tune_f32(const finetune_options& o, const architecture& a, run_data data, tigon::thread_pool& pool,
                   tigon::communicator_ref comm);
void fine_tune_bf16(const finetune_options& o, const architecture& a, run_data data, tigon::thread_pool& pool,
                    tigon::communicator_ref comm);

}  // namespace example
#endif

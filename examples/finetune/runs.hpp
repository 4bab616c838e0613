#ifndef EXAMPLE_FINETUNE_RUNS_HPP
#define EXAMPLE_FINETUNE_RUNS_HPP

#include <tigon/core/executor.hpp>

#include <vector>

#include "config.hpp"
#include "options.hpp"
#include "packing.hpp"

namespace example {

/// Train to the last step, or to where held-out loss no longer falls, and save. Activations in f32, or in bf16.
void fine_tune_f32(const finetune_options& o, const architecture& a, std::vector<finetune::sample> train,
                   const std::vector<finetune::sample>& held_out, tigon::thread_pool& pool);
void fine_tune_bf16(const finetune_options& o, const architecture& a, std::vector<finetune::sample> train,
                    const std::vector<finetune::sample>& held_out, tigon::thread_pool& pool);

}  // namespace example
#endif

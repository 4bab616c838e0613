#include "run.hpp"
#include "runs.hpp"

void example::fine_tune_f32(const finetune_options& o, const architecture& a, std::vector<finetune::sample> train,
                            const std::vector<finetune::sample>& held_out, tigon::thread_pool& pool) {
  fine_tuning<float>(o, a, std::move(train), held_out, pool).run(a, pool.workers());
}

#include "run.hpp"
#include "runs.hpp"

void example::fine_tune_f32(const finetune_options& o, const architecture& a, run_data data, tigon::thread_pool& pool,
                            tigon::communicator_ref comm) {
  fine_tuning<float>(o, a, std::move(data), pool, comm).run(pool.workers());
}

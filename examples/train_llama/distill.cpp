// A small Llama, the student, learns from a larger one, the teacher, what train_llama teaches from text alone. --help
// lists the options.
#include <tigon/core/executor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../support/progress.hpp"
#include "../../support/svg.hpp"
#include "checkpoint.hpp"
#include "distill_options.hpp"
#include "distilled_model.hpp"
#include "exit_code.hpp"
#include "fused_model.hpp"
#include "parameters.hpp"
#include "run_files.hpp"
#include "text.hpp"
#include "tokenizer.hpp"
#include "trainer.hpp"

namespace {

using namespace example;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

struct taught {
  std::vector<float> weights;
  double held_out = none;
};

/// The teacher from its file, or trained here.
taught find_teacher(const distill_options& d, const model_config& config, const parameter_layout& layout,
                    const tokenizer& pieces, corpus text, tigon::executor_ref executor) {
  trainer<fused_model<float>, float> teacher(d.teacher, config, layout, text, executor);
  if (!d.teacher_file.empty()) {
    teacher.resume(d.teacher_file, identity_of(config, pieces));
  } else {
    progress bar("teacher", d.teacher.steps, d.teacher.batch * d.teacher.seq_len);
    for (std::size_t step = 1; step <= d.teacher.steps; ++step) {
      const double loss = teacher.step();
      if (!std::isfinite(loss))
        throw std::domain_error("the teacher's loss is no longer finite at step " + std::to_string(step) +
                                "; lower --teacher-lr");
      bar.update(step, loss);
    }
  }
  return {teacher.state().weights, teacher.held_out_loss()};
}

/// One entry for each step.
struct record {
  std::vector<double> rate, divergence, held_out;  ///< held_out is NaN where it was not asked for
};

/// The student, with train_llama's batches, optimizer and evaluation.
class student {
 public:
  student(const distill_options& d, const model_config& config, const parameter_layout& layout, corpus text,
          tigon::executor_ref executor)
      : d_(d),
        o_(d.student),
        text_(text),
        ctx_(executor, workspace_),
        weights_(initial_weights(layout, o_.seed)),
        optimizer_(layout.total, layout.groups(), optimizer_options(o_)),
        batches_(o_.seed + 1),
        model_(config, layout, o_.seq_len, o_.batch, ctx_) {}

  training_state state() { return {weights_, optimizer_, batches_, step_}; }
  float rate() const {
    return cosine_rate(step_, o_.steps, o_.warmup, static_cast<float>(o_.lr), static_cast<float>(o_.min_lr));
  }

  /// Draws a batch, takes one step, returns the divergence before it. The labels are not looked at.
  double step(distilled_model& teacher, const taught& by) {
    ids_.clear();
    for (std::size_t i = 0; i < o_.batch; ++i) {
      const auto window = text_.train.subspan(batches_.below(text_.train.size() - o_.seq_len), o_.seq_len);
      ids_.insert(ids_.end(), window.begin(), window.end());
    }
    const double divergence = model_.learn({weights_, weights_}, ids_, teacher.teach({by.weights, by.weights}, ids_),
                                           {.beta = d_.beta, .temperature = d_.softmax_temperature});
    optimizer_.step(weights_, model_.gradient(), rate(), ctx_);
    ++step_;
    return divergence;
  }

  /// Mean loss of the same held-out windows as train_llama's.
  double held_out_loss() {
    const std::size_t window = o_.seq_len + 1, there = text_.held_out.size() / window;
    const std::size_t wanted = std::min(there, 4 * o_.batch);
    double sum = 0;
    std::vector<std::int32_t> targets;
    for (std::size_t done = 0; done < wanted;) {
      const std::size_t count = std::min(o_.batch, wanted - done);
      ids_.clear();
      targets.clear();
      for (std::size_t i = 0; i < count; ++i) {
        const auto one = text_.held_out.subspan((done + i) * there / wanted * window, window);
        ids_.insert(ids_.end(), one.begin(), one.end() - 1);
        targets.insert(targets.end(), one.begin() + 1, one.end());
      }
      sum += model_.loss({weights_, weights_}, ids_, targets) * static_cast<double>(count);
      done += count;
    }
    return sum / static_cast<double>(wanted);
  }

 private:
  const distill_options& d_;
  const run_options& o_;
  corpus text_;
  tigon::workspace workspace_;
  tigon::context ctx_;
  std::vector<float> weights_;
  optimizer optimizer_;
  rng batches_;
  distilled_model model_;
  std::size_t step_ = 0;
  std::vector<std::int32_t> ids_;
};

void write_csv(const std::string& path, const record& r, double teacher) {
  std::ostringstream out;
  out << "step,learning_rate,divergence,student_held_out_loss,teacher_held_out_loss\n";
  for (std::size_t i = 0; i < r.rate.size(); ++i)
    out << i + 1 << ',' << csv_number(r.rate[i]) << ',' << csv_number(r.divergence[i]) << ','
        << csv_number(r.held_out[i]) << ',' << csv_number(std::isnan(r.held_out[i]) ? none : teacher) << '\n';
  replace_file(path, out.view());
}

void write_svg(const std::string& path, const record& r, double teacher) {
  line_chart chart{"Distillation", "step", "nats per token", {}};
  chart_series divergence{"divergence", {}}, held_out{"student, held out", {}}, of_teacher{"teacher, held out", {}};
  for (std::size_t i = 0; i < r.rate.size(); ++i) {
    const auto step = static_cast<double>(i + 1);
    divergence.points.emplace_back(step, r.divergence[i]);
    if (!std::isnan(r.held_out[i])) held_out.points.emplace_back(step, r.held_out[i]);
    if (i == 0 || i + 1 == r.rate.size()) of_teacher.points.emplace_back(step, teacher);
  }
  chart.series = {divergence, held_out, of_teacher};
  save_svg(path, chart);
}

int distill(const distill_options& d) {
  const run_options& o = d.student;
  check_memory(least_bytes(o, o.batch) + least_bytes(d.teacher, o.batch));
  inventory_of(o, {{"--teacher", d.teacher_file}}).check();
  const std::string text = load_text(o.text);
  const auto pieces = o.bytes ? tokenizer::bytes() : tokenizer::bpe(text, static_cast<int>(o.vocab), o.cache_dir);
  const std::vector<std::int32_t> ids = pieces.encode(text);
  const corpus parts = split(ids, o.seq_len);
  const model_config teacher_config = config_of(d.teacher), config = config_of(o);
  const parameter_layout teacher_layout(teacher_config), layout(config);
  const std::size_t threads = o.threads != 0 ? o.threads : std::max(1u, std::thread::hardware_concurrency());
  tigon::thread_pool pool(threads);
  std::printf("%s: %zu tokens of a vocabulary of %d, the last %zu held out\n", o.text.c_str(), ids.size(),
              pieces.vocab(), parts.held_out.size());
  std::printf("teacher of %.2f, student of %.2f million parameters; %s, %zu %s\n",
              static_cast<double>(teacher_layout.total) / 1e6, static_cast<double>(layout.total) / 1e6,
              std::string(tigon::default_backend::info.name).c_str(), threads, threads == 1 ? "thread" : "threads");
  std::fflush(stdout);

  const taught by = find_teacher(d, teacher_config, teacher_layout, pieces, parts, pool);
  tigon::workspace scratch;
  tigon::context ctx(pool, scratch);
  distilled_model teacher(teacher_config, teacher_layout, o.seq_len, o.batch, ctx);
  student learner(d, config, layout, parts, pool);
  record r;
  const double before = learner.held_out_loss();
  progress bar("student", o.steps, o.batch * o.seq_len);
  for (std::size_t step = 1; step <= o.steps; ++step) {
    r.rate.push_back(static_cast<double>(learner.rate()));
    r.divergence.push_back(learner.step(teacher, by));
    if (!std::isfinite(r.divergence.back()))
      throw std::domain_error("the divergence is no longer finite at step " + std::to_string(step) + "; lower --lr");
    const bool evaluates = step == o.steps || (o.eval_every != 0 && step % o.eval_every == 0);
    r.held_out.push_back(evaluates ? learner.held_out_loss() : none);
    bar.update(step, r.divergence.back());
  }
  std::printf("\n%-24s %10s %10s\n", "", "first", "last");
  std::printf("%-24s %10.4f %10.4f\n", "divergence", r.divergence.front(), r.divergence.back());
  std::printf("%-24s %10.4f %10.4f\n", "student, held-out loss", before, r.held_out.back());
  std::printf("%-24s %10s %10.4f\n", "teacher, held-out loss", "", by.held_out);
  if (!o.checkpoint.empty()) {
    auto identity = identity_of(config, pieces);
    identity["dtype"] = "f32";
    save_checkpoint(o.checkpoint, layout, learner.state(), identity);
  }
  if (!o.csv.empty()) write_csv(o.csv, r, by.held_out);
  if (!o.svg.empty()) write_svg(o.svg, r, by.held_out);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = parse_distill_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  return exit_code_of("distill", [&] { return distill(*parsed.options); });
}

// A small Llama learns to prefer what a text goes on with to what it does not: DPO, ORPO, SimPO or KTO on pairs made
// from the text of train_llama. --help lists the options.
#include <tigon/core/executor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../support/progress.hpp"
#include "../../support/svg.hpp"
#include "checkpoint.hpp"
#include "exit_code.hpp"
#include "fused_model.hpp"
#include "pairs.hpp"
#include "parameters.hpp"
#include "preference_model.hpp"
#include "preference_options.hpp"
#include "run_files.hpp"
#include "text.hpp"
#include "tokenizer.hpp"
#include "trainer.hpp"

namespace {

using namespace example;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// The policy to start from: its file, or trained here.
void find_policy(const preference_run& p, trainer<fused_model<float>, float>& start,
                 const checkpoint_identity& identity) {
  if (!p.policy_file.empty()) return start.resume(p.policy_file, identity);
  progress bar("warm-up", p.start.steps, p.start.batch * p.start.seq_len);
  for (std::size_t step = 1; step <= p.start.steps; ++step) {
    const double loss = start.step();
    if (!std::isfinite(loss))
      throw std::domain_error("the loss is no longer finite at step " + std::to_string(step) +
                              " of the warm-up; lower --warmup-lr");
    bar.update(step, loss);
  }
}

/// Means over some pairs.
struct pair_scores {
  double chosen = 0, rejected = 0;  ///< rewards
  double accuracy = 0;              ///< share of pairs with a margin above 0; a margin of 0 counts half
  double by_policy = 0;             ///< the same of log-probabilities, without a reference
  double margin() const { return chosen - rejected; }
};

/// One entry for each step.
struct record {
  std::vector<double> loss;
  std::vector<pair_scores> batch, held_out;  ///< held_out is NaN where it was not asked for
};

/// The policy, with train_llama's optimizer.
class learner {
 public:
  learner(const preference_run& p, const model_config& config, const parameter_layout& layout, corpus text,
          std::vector<float> weights, tigon::executor_ref executor)
      : p_(p),
        o_(p.run),
        ctx_(executor, workspace_),
        weights_(std::move(weights)),
        optimizer_(layout.total, layout.groups(), optimizer_options(o_)),
        // Other streams than train_llama's.
        batches_(o_.seed + 3),
        model_(config, layout, o_.seq_len, o_.batch, ctx_, p.objective),
        train_{{text.train, p.pairs, o_.seq_len, p.prompt_len, p.rejected, o_.seed + 4}, {}},
        held_out_{{text.held_out, p.held_out_pairs, o_.seq_len, p.prompt_len, p.rejected, o_.seed + 5}, {}} {
    if (!has_reference(p.objective.loss)) return;
    for (data* d : {&train_, &held_out_}) d->reference = logps_of(d->pairs);
  }

  training_state state() { return {weights_, optimizer_, batches_, step_}; }

  /// Draws a batch and takes one step; returns the loss before it, and the batch's scores.
  double step(pair_scores& scores) {
    std::vector<std::size_t> which(o_.batch);
    for (std::size_t& i : which) i = batches_.below(p_.pairs);
    const std::vector<float> reference = reference_of(train_, which);
    std::vector<float> logps(2 * which.size());
    const double loss = model_.learn({weights_, weights_}, train_.pairs.batch(which), reference, logps);
    scores = scores_of(logps, reference);
    const float rate =
        cosine_rate(step_, o_.steps, o_.warmup, static_cast<float>(o_.lr), static_cast<float>(o_.min_lr));
    optimizer_.step(weights_, model_.gradient(), rate, ctx_);
    ++step_;
    return loss;
  }

  pair_scores held_out() { return scores_of(logps_of(held_out_.pairs), held_out_.reference); }

 private:
  struct data {
    preference_pairs pairs;
    std::vector<float> reference;  ///< the starting policy's log-probabilities, chosen ones first, or empty
  };

  std::vector<float> logps_of(const preference_pairs& pairs) {
    std::vector<float> out(2 * pairs.size());
    for (std::size_t done = 0; done < pairs.size();) {
      std::vector<std::size_t> which(std::min(o_.batch, pairs.size() - done));
      std::iota(which.begin(), which.end(), done);
      const std::vector<float> part = model_.logps({weights_, weights_}, pairs.batch(which));
      for (std::size_t i = 0; i < which.size(); ++i)
        out[done + i] = part[i], out[pairs.size() + done + i] = part[which.size() + i];
      done += which.size();
    }
    return out;
  }

  static std::vector<float> reference_of(const data& from, const std::vector<std::size_t>& which) {
    std::vector<float> out;
    if (from.reference.empty()) return out;
    for (const std::size_t end : {std::size_t{0}, from.pairs.size()})
      for (const std::size_t i : which) out.push_back(from.reference[end + i]);
    return out;
  }

  pair_scores scores_of(const std::vector<float>& logps, const std::vector<float>& reference) const {
    const std::size_t pairs = logps.size() / 2;
    const auto reward = [&](std::size_t i) {
      const double before = reference.empty() ? 0 : static_cast<double>(reference[i]);
      return p_.objective.beta * (static_cast<double>(logps[i]) - before);
    };
    pair_scores out;
    const double share = 1 / static_cast<double>(pairs);
    const auto above = [](double a, double b) { return a > b ? 1 : a == b ? 0.5 : 0; };
    for (std::size_t i = 0; i < pairs; ++i) {
      out.chosen += share * reward(i);
      out.rejected += share * reward(pairs + i);
      out.accuracy += share * above(reward(i), reward(pairs + i));
      out.by_policy += share * above(static_cast<double>(logps[i]), static_cast<double>(logps[pairs + i]));
    }
    return out;
  }

  const preference_run& p_;
  const run_options& o_;
  tigon::workspace workspace_;
  tigon::context ctx_;
  std::vector<float> weights_;
  optimizer optimizer_;
  rng batches_;
  preference_model model_;
  data train_, held_out_;
  std::size_t step_ = 0;
};

void write_csv(const std::string& path, const record& r) {
  std::ostringstream out;
  out << "step,loss,chosen_reward,rejected_reward,margin,accuracy,held_out_margin,held_out_accuracy\n";
  for (std::size_t i = 0; i < r.loss.size(); ++i) {
    const pair_scores &b = r.batch[i], &h = r.held_out[i];
    out << i + 1 << ',' << csv_number(r.loss[i]) << ',' << csv_number(b.chosen) << ',' << csv_number(b.rejected) << ','
        << csv_number(b.margin()) << ',' << csv_number(b.accuracy) << ',' << csv_number(h.margin()) << ','
        << csv_number(h.accuracy) << '\n';
  }
  replace_file(path, out.view());
}

void write_svg(const std::string& path, const record& r, const pair_scores& before) {
  line_chart chart{"Preference training", "step", "reward margin", {}};
  chart_series batch{"batch", {}}, held_out{"held out", {{0, before.margin()}}};
  for (std::size_t i = 0; i < r.loss.size(); ++i) {
    const auto step = static_cast<double>(i + 1);
    batch.points.emplace_back(step, r.batch[i].margin());
    if (!std::isnan(r.held_out[i].margin())) held_out.points.emplace_back(step, r.held_out[i].margin());
  }
  chart.series = {batch, held_out};
  save_svg(path, chart);
}

int prefer(const preference_run& p) {
  const run_options& o = p.run;
  const double tokens_of_pairs = 2.0 * static_cast<double>(p.pairs + p.held_out_pairs) * static_cast<double>(o.seq_len);
  check_memory(least_bytes(o, 2 * o.batch) + tokens_of_pairs * sizeof(std::int32_t));
  inventory_of(o, {{"--policy", p.policy_file}}).check();
  const std::string text = load_text(o.text);
  const auto pieces = o.bytes ? tokenizer::bytes() : tokenizer::bpe(text, static_cast<int>(o.vocab), o.cache_dir);
  const std::vector<std::int32_t> ids = pieces.encode(text);
  const corpus parts = split_for_pairs(ids, o.seq_len);
  const model_config config = config_of(o);
  const parameter_layout layout(config);
  const std::size_t threads = o.threads != 0 ? o.threads : std::max(1u, std::thread::hardware_concurrency());
  tigon::thread_pool pool(threads);
  std::printf("%s: %zu tokens of a vocabulary of %d, the last %zu held out\n", o.text.c_str(), ids.size(),
              pieces.vocab(), parts.held_out.size());
  std::printf("%zu pairs to train on, %zu held out: the text after %zu tokens against %s\n", p.pairs, p.held_out_pairs,
              p.prompt_len, p.rejected == rejected_kind::shuffled ? "the same shuffled" : "text from elsewhere");
  std::printf("policy of %.2f million parameters; %s, %zu %s\n", static_cast<double>(layout.total) / 1e6,
              std::string(tigon::default_backend::info.name).c_str(), threads, threads == 1 ? "thread" : "threads");
  std::fflush(stdout);

  auto identity = identity_of(config, pieces);
  trainer<fused_model<float>, float> start(p.start, config, layout, parts, pool);
  find_policy(p, start, identity);
  const double text_loss = start.held_out_loss();
  learner policy(p, config, layout, parts, start.state().weights, pool);
  record r;
  const pair_scores before = policy.held_out();
  progress bar("preference", o.steps, 2 * o.batch * o.seq_len);
  for (std::size_t step = 1; step <= o.steps; ++step) {
    pair_scores scores;
    r.loss.push_back(policy.step(scores));
    if (!std::isfinite(r.loss.back()))
      throw std::domain_error("the loss is no longer finite at step " + std::to_string(step) + "; lower --lr");
    r.batch.push_back(scores);
    const bool evaluates = step == o.steps || (o.eval_every != 0 && step % o.eval_every == 0);
    r.held_out.push_back(evaluates ? policy.held_out() : pair_scores{none, none, none, none});
    char margin[64];
    std::snprintf(margin, sizeof margin, "  margin %.4f", scores.margin());
    bar.update(step, r.loss.back(), margin);
  }

  const pair_scores& after = r.held_out.back();
  start.state().weights = policy.state().weights;  // what the policy has become, for one look at the text
  std::printf("\n%-46s %10s %10s\n", "held out", "before", "after");
  std::printf("%-46s %10.4f %10.4f\n", "reward of the chosen", before.chosen, after.chosen);
  std::printf("%-46s %10.4f %10.4f\n", "reward of the rejected", before.rejected, after.rejected);
  std::printf("%-46s %10.4f %10.4f\n", "reward margin", before.margin(), after.margin());
  std::printf("%-46s %10.3f %10.3f\n", "accuracy: margins above 0, half of those at 0", before.accuracy,
              after.accuracy);
  std::printf("%-46s %10.3f %10.3f\n", "chosen has the higher log-probability", before.by_policy, after.by_policy);
  std::printf("%-46s %10.4f %10.4f\n", "loss per token of the text", text_loss, start.held_out_loss());
  if (has_reference(p.objective.loss))
    std::printf("Before the first step every margin is 0, because the policy is the reference.\n");
  const char* way = after.accuracy > before.accuracy   ? "rose"
                    : after.accuracy < before.accuracy ? "fell"
                                                       : "did not change:";
  std::printf("The held-out accuracy %s from %.3f to %.3f.\n", way, before.accuracy, after.accuracy);
  if (!o.checkpoint.empty()) {
    identity["dtype"] = "f32";
    save_checkpoint(o.checkpoint, layout, policy.state(), identity);
  }
  if (!o.csv.empty()) write_csv(o.csv, r);
  if (!o.svg.empty()) write_svg(o.svg, r, before);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = parse_preference_run(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  return exit_code_of("preference", [&] { return prefer(*parsed.options); });
}

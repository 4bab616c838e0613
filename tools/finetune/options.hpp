#ifndef EXAMPLE_FINETUNE_OPTIONS_HPP
#define EXAMPLE_FINETUNE_OPTIONS_HPP

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../support/options.hpp"
#include "model_lora.hpp"
#include "objective_options.hpp"
#include "schedule.hpp"

namespace example {

struct finetune_options {
  std::string folder, out;
  std::string data, eval_data;
  std::size_t seq_len = 512;
  std::size_t batch = 1;       ///< windows of a pass
  std::size_t accumulate = 1;  ///< passes of a step
  std::size_t steps = 100, stop_at = 0, eval_every = 0, save_every = 0, patience = 0;
  double eval_share = 0;  ///< of the data, kept for evaluation
  double lr = 2e-5, min_lr = 0, weight_decay = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, clip = 1;
  std::size_t warmup = 0;
  std::string schedule = "cosine";
  std::string dtype = "f32", save_dtype = "f32";
  bool recompute = false, merge = false, profile = false, resume = false;
  lora_options lora;
  preference_options preference;
  std::string reference;  ///< folder; empty: the model as the run begins
  distillation_options distillation;
  std::optional<double> balance;  ///< without: as config.json says
  std::uint64_t seed = 0;
  std::size_t threads = 0;
  std::string csv, svg, trace;
  std::vector<option_value> given;  ///< all of them, as text
};

/// The learning rates of a run.
inline finetune::schedule schedule_of(const finetune_options& o) {
  using kind = finetune::schedule::kind;
  const kind shape = o.schedule == "constant" ? kind::constant : o.schedule == "linear" ? kind::linear : kind::cosine;
  return {shape, o.lr, o.steps, o.warmup, o.min_lr / o.lr};
}

/// Without options there is a sentence that refuses them; or none, after --help.
struct parsed_finetune_options {
  std::optional<finetune_options> options;
  std::string refusal;
};

namespace detail {

inline CLI::Validator word_of(const std::string& words) {
  return {[=](std::string& text) -> std::string {
            const bool word = !text.empty() && text.find(' ') == std::string::npos;
            return word && (" " + words + " ").find(" " + text + " ") != std::string::npos
                       ? ""
                       : text + " is not one of " + words;
          },
          ""};
}

inline void add_options(option_table& all, finetune_options& o) {
  using enum decides;
  constexpr std::uint64_t many = 1u << 20;
  all.add(own, "folder", o.folder, "of a model as transformers saves it")->required();
  all.add(own, "--out", o.out, "folder for the model that was trained")->group("Output");
  all.add(
         own, "--data", o.data,
         "what to learn from: .jsonl with text, prompt and completion, or messages; .txt; or .ids, a document of ids a "
         "line")
      ->required()
      ->group("Data");
  all.add(own, "--eval-data", o.eval_data, "what to evaluate")->group("Data");
  all.add(numbers, "--eval-share", o.eval_share, "of the data to evaluate instead; of one document its end")
      ->check(real(bound::below_one))
      ->group("Data");
  all.add(numbers, "--seq-len", o.seq_len, "tokens of a window")->check(whole(2, many))->group("Data");
  all.add(numbers, "--batch", o.batch, "windows of a pass")->check(whole(1, 1u << 16))->group("Data");
  all.add(numbers, "--accumulate", o.accumulate, "passes of a step")->check(whole(1, 1u << 16))->group("Data");

  all.add(course, "--steps", o.steps)->check(whole(1, most_steps))->group("Run");
  all.add(course, "--stop-at", o.stop_at, "end after this step, as if interrupted; 0: at the last one")
      ->check(whole(0, most_steps))
      ->group("Run");
  all.add(course, "--eval-every", o.eval_every, "steps between evaluations; 0: at the end only")
      ->check(whole(0, most_steps))
      ->group("Run");
  all.add(course, "--patience", o.patience, "evaluations without a better one before the run ends; 0: no such end")
      ->check(whole(0, most_steps))
      ->group("Run");
  all.add(course, "--save-every", o.save_every, "steps between checkpoints; 0: at the end only")
      ->check(whole(0, most_steps))
      ->group("Run");
  all.add(course, "--resume", o.resume, "go on from the state in --out")->group("Run");
  all.add(numbers, "--dtype", o.dtype, "of activations and products: f32 or bf16")
      ->check(word_of("f32 bf16"))
      ->group("Run");
  all.add(own, "--recompute", o.recompute, "keep the inputs of layers alone, and make the rest again in backward")
      ->group("Run");
  all.add(numbers, "--seed", o.seed, "of the order of the data and of adapters")->check(whole(0, ~0ull))->group("Run");
  all.add(own, "--threads", o.threads, "0: one per core; the results do not depend on it")
      ->check(whole(0, 1024))
      ->group("Run");

  all.add(numbers, "--lora-rank", o.lora.rank, "0: all weights are trained")->check(whole(0, 4096))->group("Adapters");
  all.add(numbers, "--lora-alpha", o.lora.alpha)->check(real(bound::positive))->group("Adapters");
  all.add(numbers, "--lora-targets", o.lora.targets, "names of projections, separated by commas")->group("Adapters");
  all.add(own, "--merge", o.merge, "save the model with its adapters added in, not the adapters alone")
      ->group("Adapters");

  add_optimizer_options(all, o, "--clip");
  all.add(numbers, "--schedule", o.schedule, "cosine, linear or constant")
      ->check(word_of("cosine linear constant"))
      ->group("Optimizer");

  all.add(own, "--save-dtype", o.save_dtype, "of the saved weights: f32, bf16 or f16")
      ->check(word_of("f32 bf16 f16"))
      ->group("Output");
  all.add(own, "--csv", o.csv, "file for loss and rate of every step")->group("Output");
  all.add(own, "--svg", o.svg, "file for a picture of the loss")->group("Output");
  all.add(own, "--profile", o.profile, "print where the time goes")->group("Output");
  all.add(own, "--trace", o.trace, "file for a trace of all operators (chrome://tracing)")->group("Output");
}

inline void add_objective_options(option_table& all, finetune_options& o, std::string& preference,
                                  std::string& divergence) {
  using enum decides;
  std::string names;
  for (const auto& [name, loss] : preference_names) names += (names.empty() ? "" : " ") + std::string(name);
  CLI::Option* const pairs =
      all.add(numbers, "--preference", preference,
              "loss on JSON lines with prompt, chosen and rejected, or for kto prompt, completion and label: " + names)
          ->check(word_of(names))
          ->group("Preferences");
  const auto of_pairs = [&](CLI::Option* option) { return option->needs(pairs)->group("Preferences"); };
  of_pairs(all.add(numbers, "--beta", o.preference.beta, "of rewards")->check(real(bound::positive)));
  of_pairs(all.add(numbers, "--gamma", o.preference.gamma, "margin of simpo")->check(real(bound::from_zero)));
  of_pairs(
      all.add(numbers, "--label-smoothing", o.preference.label_smoothing, "of dpo, robust, exo_pair, simpo and cpo")
          ->check(real(bound::below_one)));
  of_pairs(all.add(numbers, "--nll", o.preference.nll, "weight of the chosen answers' cross entropy; cpo and orpo: 1")
               ->check(real(bound::from_zero)));
  of_pairs(all.add(numbers, "--desirable-weight", o.preference.desirable_weight, "of answers that kto is to like")
               ->check(real(bound::positive)));
  of_pairs(all.add(numbers, "--undesirable-weight", o.preference.undesirable_weight, "of the others")
               ->check(real(bound::positive)));
  of_pairs(all.add(own, "--reference", o.reference, "folder of the reference; without: the model as the run begins"));

  CLI::Option* const teacher =
      all.add(own, "--teacher", o.distillation.teacher, "folder of a model with the same tokenizer to learn from")
          ->group("Distillation");
  const auto of_teacher = [&](CLI::Option* option) { return option->needs(teacher)->group("Distillation"); };
  of_teacher(all.add(numbers, "--divergence", divergence, "from the teacher: kl, reverse_kl or jsd")
                 ->check(word_of("kl reverse_kl jsd")));
  of_teacher(all.add(numbers, "--temperature", o.distillation.temperature, "of both models' probabilities")
                 ->check(between(1e-3, 1e3)));
  of_teacher(all.add(numbers, "--hard", o.distillation.hard, "share of cross entropy in the loss")
                 ->check(real(bound::from_zero_to_one)));

  all.add(numbers, "--balance", o.balance, "weight of the routers' balance loss; without: that of config.json")
      ->check(real(bound::from_zero))
      ->group("Optimizer")
      ->always_capture_default(false);
}

inline void check_together(const finetune_options& o) {
  if (o.stop_at > o.steps) throw std::runtime_error("--stop-at is above --steps");
  if (o.min_lr > o.lr) throw std::runtime_error("--min-lr is larger than --lr");
  if (o.batch > (std::size_t{1} << 30) / o.seq_len) throw std::runtime_error("--batch times --seq-len is above 2^30");
  if (o.lora.rank == 0 && o.merge) throw std::runtime_error("--merge needs adapters: --lora-rank");
  if (o.out.empty() && (o.resume || o.save_every != 0))
    throw std::runtime_error(std::string(o.resume ? "--resume" : "--save-every") + " needs --out");
  if (!o.eval_data.empty() && o.eval_share > 0)
    throw std::runtime_error("--eval-data and --eval-share exclude one another");
  if (o.eval_data.empty() && o.eval_share == 0 && (o.eval_every != 0 || o.patience != 0))
    throw std::runtime_error(std::string(o.patience != 0 ? "--patience" : "--eval-every") +
                             " needs --eval-data or --eval-share");
  if (o.patience != 0 && o.eval_every == 0) throw std::runtime_error("--patience needs --eval-every");
  const preference_options& p = o.preference;
  if (p.loss == preference_loss::none) return;
  if (!o.distillation.teacher.empty()) throw std::runtime_error("--preference and --teacher exclude one another");
  if (!o.reference.empty() && !p.has_reference())
    throw std::runtime_error("--preference of this kind has no --reference");
  using enum preference_loss;
  const bool smoothed = p.loss == sigmoid || p.loss == robust || p.loss == exo_pair || p.loss == simpo || p.loss == cpo;
  const bool half = p.label_smoothing < 0.5 || p.loss == simpo || p.loss == cpo;
  if ((p.label_smoothing != 0 && !smoothed) || !half)
    throw std::runtime_error("--label-smoothing is below 1/2 and of dpo, robust, exo_pair, simpo and cpo");
  if (p.loss == exo_pair && p.label_smoothing == 0)
    throw std::runtime_error("--preference exo_pair needs --label-smoothing");
  if (p.loss == kto && o.batch < 2)
    throw std::runtime_error(
        "--preference kto needs --batch of at least 2: its baseline is of prompts with others' answers");
  if (p.loss == kto && p.nll) throw std::runtime_error("--preference kto has no --nll");
  if (p.loss != kto && (p.desirable_weight != 1 || p.undesirable_weight != 1))
    throw std::runtime_error("--desirable-weight and --undesirable-weight are of kto");
}

}  // namespace detail

/// What the program reads its options with.
struct finetune_command_line {
  finetune_options options;
  std::string preference, divergence = "kl";
  CLI::App app{"Fine-tunes a model of Hugging Face's: all of its weights, or adapters beside them."};
  option_table table{app};

  finetune_command_line() {
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    detail::add_options(table, options);
    detail::add_objective_options(table, options, preference, divergence);
  }
  finetune_command_line(const finetune_command_line&) = delete;
  finetune_command_line& operator=(const finetune_command_line&) = delete;
};

inline parsed_finetune_options parse_finetune_options(int argc, const char* const* argv) {
  finetune_command_line line;
  finetune_options& o = line.options;
  try {
    line.app.parse(argc, argv);
    o.given = line.table.values();
    for (const auto& [name, loss] : preference_names)
      if (line.preference == name) o.preference.loss = loss;
    o.distillation.beta = line.divergence == "kl" ? 0 : line.divergence == "jsd" ? 0.5 : 1;
    detail::check_together(o);
  } catch (const CLI::Success& help) {
    line.app.exit(help);
    return {};
  } catch (const std::runtime_error& error) {  // CLI::ParseError is one
    return {std::nullopt, error.what()};
  }
  return {o, {}};
}

}  // namespace example
#endif

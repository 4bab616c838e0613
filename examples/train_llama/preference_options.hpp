#ifndef EXAMPLE_TRAIN_LLAMA_PREFERENCE_OPTIONS_HPP
#define EXAMPLE_TRAIN_LLAMA_PREFERENCE_OPTIONS_HPP

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>

#include "../../support/options.hpp"
#include "options.hpp"
#include "pairs.hpp"
#include "preference_model.hpp"

namespace example {

/// The policy's training on text, and then on pairs, as train_llama describes a run; text, model and seed are the same
/// for both. The defaults take about two minutes on two cores.
struct preference_run {
  run_options start, run;
  std::string policy_file;  ///< a checkpoint of train_llama; empty: the policy is trained first
  preference_objective objective;
  rejected_kind rejected = rejected_kind::elsewhere;
  std::size_t prompt_len = 0;
  std::size_t pairs = 512, held_out_pairs = 64;
};

/// One sentence on stderr and exit code 2 for anything that makes no sense; 0 for --help.
struct parsed_preference_run {
  std::optional<preference_run> options;
  int exit_code = 0;
};

inline parsed_preference_run parse_preference_run(int argc, const char* const* argv) {
  preference_run p;
  run_options &s = p.start, &o = p.run;
  std::string loss = "dpo", rejected = "elsewhere";
  p.objective.beta = 0;
  o.seq_len = 128, o.batch = 8;
  o.steps = 60;
  o.eval_every = 10;
  o.lr = 1e-4, o.min_lr = 1e-5, o.warmup = 5;
  o.weight_decay = 0;
  CLI::App app{"A small Llama learns to prefer: tigon's fused DPO, ORPO, SimPO and KTO on pairs from a text."};
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  constexpr std::uint64_t many = 1u << 16;
  const auto one_of = [](const std::string& words, const std::string& sentence) {
    return CLI::Validator(
        [=](std::string& text) -> std::string {
          const bool word = !text.empty() && text.find(' ') == std::string::npos;
          return word && (" " + words + " ").find(" " + text + " ") != std::string::npos ? "" : text + sentence;
        },
        "");
  };

  app.add_option("--text", o.text, "text to learn from, plain or gzip")->group("Text");
  auto* vocab = app.add_option("--vocab", o.vocab, "BPE pieces")->check(whole(2, 1u << 20))->group("Text");
  app.add_flag("--bytes", o.bytes, "plain bytes instead of BPE: a vocabulary of 256")->group("Text");
  app.add_option("--cache-dir", o.cache_dir, "keeps trained tokenizers")->group("Text");

  app.add_option("--layers", o.layers)->check(whole(1, 1024))->group("Policy");
  app.add_option("--hidden", o.hidden, "width of the residual stream")->check(whole(1, many))->group("Policy");
  app.add_option("--intermediate", o.intermediate, "width of the MLP")->check(whole(1, many))->group("Policy");
  app.add_option("--heads", o.heads, "query heads")->check(whole(1, 1024))->group("Policy");
  app.add_option("--kv-heads", o.kv_heads, "key and value heads")->check(whole(1, 1024))->group("Policy");
  auto* file = app.add_option("--policy", p.policy_file,
                              "checkpoint of train_llama with the same text and vocabulary to start from")
                   ->group("Policy");
  auto* own_steps = app.add_option("--warmup-steps", s.steps, "steps of a policy that is trained on the text first")
                        ->check(whole(0, most_steps))
                        ->group("Policy");
  auto* own_rate =
      app.add_option("--warmup-lr", s.lr, "its peak learning rate")->check(real(bound::positive))->group("Policy");

  app.add_option("--pairs", p.pairs, "to train on")->check(whole(1, 1u << 20))->group("Pairs");
  app.add_option("--held-out-pairs", p.held_out_pairs, "to evaluate, from the end of the text")
      ->check(whole(1, 1u << 20))
      ->group("Pairs");
  app.add_option("--seq-len", o.seq_len, "tokens of a sequence")->check(whole(1, many))->group("Pairs");
  app.add_option("--prompt-len", p.prompt_len, "tokens that both sequences of a pair begin with; 0: half of them")
      ->check(whole(0, many))
      ->group("Pairs");
  app.add_option("--rejected", rejected,
                 "continuation of the rejected sequence: elsewhere (from another place in the text) or shuffled (the "
                 "true one's tokens)")
      ->check(one_of("elsewhere shuffled", " is neither elsewhere nor shuffled"))
      ->group("Pairs");

  app.add_option("--loss", loss, "dpo, orpo, simpo or kto")
      ->check(one_of("dpo orpo simpo kto", " is not one of dpo, orpo, simpo and kto"))
      ->group("Run");
  app.add_option("--beta", p.objective.beta, "of the rewards; 0: 2 for simpo, 0.1 for the others")
      ->check(real(bound::from_zero))
      ->group("Run");
  auto* gamma =
      app.add_option("--gamma", p.objective.gamma, "margin of simpo")->check(real(bound::from_zero))->group("Run");
  app.add_option("--batch", o.batch, "pairs of a step")->check(whole(1, many / 2))->group("Run");
  app.add_option("--steps", o.steps, "on pairs")->check(whole(1, most_steps))->group("Run");
  app.add_option("--eval-every", o.eval_every, "steps between looks at the held-out pairs; 0: at the end only")
      ->check(whole(0, most_steps))
      ->group("Run");
  app.add_option("--seed", o.seed, "of weights, batches and pairs")->check(whole(0, ~0ull))->group("Run");
  app.add_option("--threads", o.threads, "0: one per core; the results do not depend on it")
      ->check(whole(0, 1024))
      ->group("Run");
  app.add_option("--lr", o.lr, "peak learning rate on pairs")->check(real(bound::positive))->group("Run");
  app.add_option("--min-lr", o.min_lr, "at the end of the cosine")->check(real(bound::from_zero))->group("Run");
  app.add_option("--warmup", o.warmup, "steps in which the learning rate rises")
      ->check(whole(0, most_steps))
      ->group("Run");

  app.add_option("--csv", o.csv, "file for loss, rewards, margin and accuracy of every step")->group("Output");
  app.add_option("--svg", o.svg, "file for a picture of the reward margins")->group("Output");
  app.add_option("--checkpoint", o.checkpoint, "file for the policy, as train_llama writes and reads them")
      ->group("Output");

  const auto refused = [](const std::string& sentence) {
    std::cerr << "preference: " << sentence << '\n';
    return parsed_preference_run{std::nullopt, 2};
  };
  try {
    app.parse(argc, argv);
    using enum preference_loss;
    p.objective.loss = loss == "dpo" ? dpo : loss == "orpo" ? orpo : loss == "simpo" ? simpo : kto;
    if (std::max(p.objective.beta, p.objective.gamma) > 1e30)
      throw std::runtime_error("--beta and --gamma above 1e30 leave no room in f32 for a reward");
    if (p.objective.beta == 0) p.objective.beta = p.objective.loss == simpo ? 2 : 0.1;
    p.rejected = rejected == "shuffled" ? rejected_kind::shuffled : rejected_kind::elsewhere;
    if (file->count() > 0 && own_steps->count() + own_rate->count() > 0)
      throw std::runtime_error("--policy is trained already and takes no --warmup-steps or --warmup-lr");
    if (gamma->count() > 0 && p.objective.loss != simpo)
      throw std::runtime_error("--loss " + loss + " takes no --gamma; only simpo has one");
    if (p.prompt_len == 0) p.prompt_len = (o.seq_len + 1) / 2;
    // A shuffled continuation of one token would be the true one.
    const std::size_t rest = p.rejected == rejected_kind::shuffled ? 2 : 1;
    if (p.prompt_len + rest > o.seq_len + 1)
      throw std::runtime_error("--prompt-len " + std::to_string(p.prompt_len) + " leaves too little of --seq-len " +
                               std::to_string(o.seq_len) + " for a continuation");
    detail::check_together(o, {vocab->count() > 0}, 1);
    for (const auto member : {&run_options::text, &run_options::cache_dir}) s.*member = o.*member;
    for (const auto member :
         {&run_options::vocab, &run_options::layers, &run_options::hidden, &run_options::intermediate,
          &run_options::heads, &run_options::kv_heads, &run_options::seq_len, &run_options::threads})
      s.*member = o.*member;
    s.bytes = o.bytes, s.seed = o.seed;
    s.min_lr = std::min(s.min_lr, s.lr);
    s.batch = 2 * o.batch;  // as many tokens a step
  } catch (const CLI::Success& help) {
    return {std::nullopt, app.exit(help)};
  } catch (const std::runtime_error& error) {  // CLI::ParseError is one
    return refused(error.what());
  }
  return {p, 0};
}

}  // namespace example
#endif

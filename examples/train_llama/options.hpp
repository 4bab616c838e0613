#ifndef EXAMPLE_TRAIN_LLAMA_OPTIONS_HPP
#define EXAMPLE_TRAIN_LLAMA_OPTIONS_HPP

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../support/kernel_memory.hpp"
#include "../../support/options.hpp"
#include "text.hpp"
#include "tokenizer.hpp"

namespace example {

/// Everything a run depends on. The defaults train both ways of --compare in under three minutes on two cores.
struct run_options {
  std::string text = default_text.string();
  std::size_t vocab = 8192;
  bool bytes = false;
  bool random = false;
  std::string cache_dir = default_cache_dir().string();

  std::size_t layers = 4;
  std::size_t hidden = 256;
  std::size_t intermediate = 704;
  std::size_t heads = 4;
  std::size_t kv_heads = 2;
  std::size_t experts = 0;
  std::size_t top_k = 2;
  double balance = 0.01;
  std::string dtype = "f32";
  std::string state = "f32";
  bool tied = false;

  std::size_t seq_len = 1024;
  std::size_t batch = 2;
  std::size_t micro_batch = 0;
  std::size_t steps = 120;
  std::size_t stop_at = 0;
  std::size_t eval_every = 0;
  std::uint64_t seed = 1;
  std::size_t threads = 0;
  bool plain = false;
  bool compare = false;

  double lr = 1e-3;
  double min_lr = 1e-4;
  std::size_t warmup = 20;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip = 1.0;

  std::string csv, svg;
  bool profile = false;
  std::string trace;
  std::string checkpoint, resume;
  std::size_t save_every = 0;

  std::size_t sample_tokens = 100;
  std::string prompt = "   :hacker: n.\n\n   ";
  double temperature = 0.8;

  std::vector<option_value> given;  ///< all of them, as text

  std::size_t head_dim() const { return hidden / heads; }
  /// Windows of one pass forward and backward.
  std::size_t windows_of_pass(std::size_t ranks) const { return micro_batch != 0 ? micro_batch : batch / ranks; }
};

/// The options; or the sentence with which they are refused; or neither, after --help.
struct parsed_options {
  std::optional<run_options> options;
  std::string refusal;
};

namespace detail {

/// Sizes are bounded so that no product of theirs overflows.
constexpr std::uint64_t many = 1u << 16;

inline void add_model_options(option_table& all, run_options& o) {
  using enum decides;
  all.add(numbers, "--layers", o.layers)->check(whole(1, 1024))->group("Model");
  all.add(numbers, "--hidden", o.hidden, "width of the residual stream")->check(whole(1, many))->group("Model");
  all.add(numbers, "--intermediate", o.intermediate, "width of the MLP")->check(whole(1, many))->group("Model");
  all.add(numbers, "--heads", o.heads, "query heads")->check(whole(1, 1024))->group("Model");
  all.add(numbers, "--kv-heads", o.kv_heads, "key and value heads")->check(whole(1, 1024))->group("Model");
  all.add(numbers, "--experts", o.experts, "MLPs of a layer, of --intermediate each; 0: one, for all tokens")
      ->check(whole(0, 1024))
      ->group("Model");
  all.add(numbers, "--top-k", o.top_k, "experts of a token")->check(whole(1, 1024))->group("Model");
  all.add(numbers, "--balance", o.balance, "weight of the loss that gives experts equal numbers of tokens")
      ->check(real(bound::from_zero))
      ->group("Model");
  all.add(numbers, "--dtype", o.dtype, "weights and activations; masters stay f32")
      ->check(CLI::Validator(
          [](std::string& t) { return t == "f32" || t == "bf16" ? "" : t + " is neither f32 nor bf16"; }, ""))
      ->group("Model");
}

/// Of train_llama alone.
inline void add_own_model_options(option_table& all, run_options& o) {
  using enum decides;
  all.add(numbers, "--state", o.state,
          "masters, gradients and moments: f32, or on a GPU bf16, without a copy of the weights")
      ->check(CLI::Validator(
          [](std::string& t) { return t == "f32" || t == "bf16" ? "" : t + " is neither f32 nor bf16"; }, ""))
      ->group("Model");
  all.add(numbers, "--tied", o.tied, "the head is the embedding")->group("Model");
}

inline void add_text_options(option_table& all, run_options& o) {
  using enum decides;
  all.add(own, "--text", o.text, "text to learn from, plain or gzip")->group("Text");
  all.add(numbers, "--vocab", o.vocab, "BPE pieces")->check(whole(2, 1u << 20))->group("Text");
  all.add(numbers, "--bytes", o.bytes, "plain bytes instead of BPE: a vocabulary of 256")->group("Text");
  all.add(numbers, "--random", o.random, "random tokens instead of a text, to measure the speed; no sample")
      ->group("Text");
  all.add(own, "--cache-dir", o.cache_dir, "keeps trained tokenizers")->group("Text");
}

inline void add_run_options(option_table& all, run_options& o) {
  using enum decides;
  all.add(numbers, "--seq-len", o.seq_len, "tokens of a window")->check(whole(1, many))->group("Run");
  all.add(numbers, "--batch", o.batch, "windows of a step")->check(whole(1, many))->group("Run");
  all.add(numbers, "--micro-batch", o.micro_batch, "windows of one pass; 0: all that a rank has of a step")
      ->check(whole(0, many))
      ->group("Run");
  all.add(course, "--steps", o.steps)->check(whole(1, most_steps))->group("Run");
  all.add(course, "--stop-at", o.stop_at, "end early after this step, as an interruption would; 0: do not")
      ->check(whole(0, most_steps))
      ->group("Run");
  all.add(course, "--eval-every", o.eval_every, "steps between held-out losses; 0: at the end only")
      ->check(whole(0, most_steps))
      ->group("Run");
  all.add(numbers, "--seed", o.seed, "of weights, batches and sample")->check(whole(0, ~0ull))->group("Run");
  all.add(own, "--threads", o.threads, "0: one per core; the losses do not depend on it")
      ->check(whole(0, 1024))
      ->group("Run");
  all.add(numbers, "--plain", o.plain, "without fusion: every elementary step is a pass of its own")->group("Run");
  all.add(course, "--compare", o.compare, "both ways from the same seed, and a table")->group("Run");
}

inline void add_output_options(option_table& all, run_options& o) {
  using enum decides;
  all.add(own, "--csv", o.csv, "file for the losses of every step")->group("Output");
  all.add(own, "--svg", o.svg, "file for a picture of the loss curves")->group("Output");
  all.add(own, "--profile", o.profile, "where the time goes, by operator, at one thread and at all in turns")
      ->group("Output");
  all.add(own, "--trace", o.trace, "file for a trace of it, for chrome://tracing or Perfetto")->group("Output");
  all.add(own, "--checkpoint", o.checkpoint, "file to save the whole state to, at the end")->group("Output");
  all.add(course, "--save-every", o.save_every, "also save after so many steps; 0: do not")
      ->check(whole(0, most_steps))
      ->group("Output");
  all.add(own, "--resume", o.resume, "checkpoint to go on from, with the same options")->group("Output");
  all.add(own, "--sample-tokens", o.sample_tokens, "length of the generated sample; 0: none")
      ->check(whole(0, many))
      ->group("Output");
  all.add(own, "--prompt", o.prompt, "the sample's beginning")->group("Output")->always_capture_default(false);
  all.add(own, "--temperature", o.temperature, "of the sample; 0: always the likeliest token")
      ->check(real(bound::from_zero))
      ->group("Output");
}

/// Options whose being given counts.
struct given_options {
  bool vocab = false, of_experts = false;
};

/// What no single option can see.
inline void check_together(const run_options& o, given_options given, std::size_t ranks) {
  const auto refuse = [](const std::string& sentence) { throw std::runtime_error(sentence); };
  const auto text = [](std::size_t n) { return std::to_string(n); };
  if (o.bytes && given.vocab) refuse("--bytes has 256 tokens by itself and takes no --vocab");
  if (o.bytes && o.random) refuse("--random has no text whose bytes --bytes could take");
  if (o.hidden % o.heads != 0)
    refuse("--hidden " + text(o.hidden) + " cannot be divided among --heads " + text(o.heads));
  if (o.heads % o.kv_heads != 0)
    refuse("--heads " + text(o.heads) + " is not a multiple of --kv-heads " + text(o.kv_heads));
  if (o.head_dim() % 2 != 0)
    refuse("--hidden " + text(o.hidden) + " over --heads " + text(o.heads) + " gives heads of " + text(o.head_dim()) +
           ", but rotary positions turn pairs and need an even number");
  if (o.experts == 0 && given.of_experts) refuse("--top-k and --balance need --experts N");
  if (o.experts == 1) refuse("--experts 1 is no choice: leave it out, or give at least 2");
  if (o.experts != 0 && o.top_k > o.experts)
    refuse("--top-k " + text(o.top_k) + " is more than --experts " + text(o.experts));
  if (o.batch % ranks != 0) refuse("--batch " + text(o.batch) + " cannot be divided among " + text(ranks) + " ranks");
  if (o.batch % o.windows_of_pass(ranks) != 0)
    refuse("--batch " + text(o.batch) + " is not a multiple of --micro-batch " + text(o.micro_batch));
  if (o.batch / o.windows_of_pass(ranks) % ranks != 0)
    refuse("--batch " + text(o.batch) + " in micro-batches of " + text(o.micro_batch) + " gives " +
           text(o.batch / o.micro_batch) + " of them, which " + text(ranks) + " ranks cannot share evenly");
  if (o.min_lr > o.lr) refuse("--min-lr is larger than --lr");
  if (o.stop_at > o.steps) refuse("--stop-at " + text(o.stop_at) + " lies behind the last of --steps " + text(o.steps));
  if (o.save_every != 0 && o.checkpoint.empty()) refuse("--save-every needs --checkpoint FILE");
  if (o.tied && (o.plain || o.compare)) refuse("--tied is of the fused operators and takes no --plain or --compare");
  if (o.state == "bf16" && o.dtype != "bf16") refuse("--state bf16 needs --dtype bf16");
  if (o.state == "bf16" && on_host) refuse("--state bf16 needs a program that is built for a GPU");
  if (!on_host && (o.plain || o.compare || o.experts != 0 || o.profile || !o.trace.empty()))
    refuse("a program that is built for a GPU has no --plain, --compare, --experts, --profile and --trace");
  if (!on_host && o.windows_of_pass(ranks) != o.batch)
    refuse("a program that is built for a GPU has no --micro-batch: a step is one pass");
  if (o.compare && o.plain) refuse("--compare runs both ways and takes no --plain");
  if ((o.profile || !o.trace.empty()) && (o.plain || o.compare))
    refuse("--profile and --trace are of the fused operators and take no --plain or --compare");
  if (o.compare && !(o.resume.empty() && o.checkpoint.empty()))
    refuse("--compare starts both runs from the seed and takes no --resume or --checkpoint");
}

}  // namespace detail

/// What the program reads its options with.
struct train_llama_command_line {
  run_options options;
  CLI::App app{"Trains a small Llama on real text with tigon's fused operators, or with --plain without fusion."};
  option_table table{app};

  train_llama_command_line() {
    // An option that is given twice takes its last value, as in most programs.
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    detail::add_text_options(table, options);
    detail::add_model_options(table, options);
    detail::add_own_model_options(table, options);
    detail::add_run_options(table, options);
    add_optimizer_options(table, options, "--grad-clip");
    detail::add_output_options(table, options);
  }
  train_llama_command_line(const train_llama_command_line&) = delete;
  train_llama_command_line& operator=(const train_llama_command_line&) = delete;
};

/// The batch is shared by `ranks` processes.
inline parsed_options parse_options(int argc, const char* const* argv, std::size_t ranks = 1) {
  train_llama_command_line line;
  run_options& o = line.options;
  CLI::App& app = line.app;
  try {
    app.parse(argc, argv);
    o.given = line.table.values();
    if (o.random) o.sample_tokens = 0;
    detail::check_together(o, {app.count("--vocab") > 0, app.count("--top-k") + app.count("--balance") > 0}, ranks);
  } catch (const CLI::Success& help) {
    app.exit(help);
    return {};
  } catch (const std::runtime_error& error) {  // CLI::ParseError is one
    return {std::nullopt, error.what()};
  }
  return {o, {}};
}

}  // namespace example
#endif

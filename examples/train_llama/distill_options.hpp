#ifndef EXAMPLE_TRAIN_LLAMA_DISTILL_OPTIONS_HPP
#define EXAMPLE_TRAIN_LLAMA_DISTILL_OPTIONS_HPP

#include <CLI/CLI.hpp>

#include <cstddef>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>

#include "../../support/options.hpp"
#include "options.hpp"

namespace example {

/// Teacher and student as train_llama describes a run; text, windows and seed are the same for both. The defaults take
/// about a minute on two cores.
struct distill_options {
  run_options teacher, student;
  std::string teacher_file;          ///< a checkpoint of train_llama; empty: the teacher is trained first
  double beta = 0.5;                 ///< of the divergence
  double softmax_temperature = 1.0;  ///< of teacher and student
};

/// One sentence on stderr and exit code 2 for anything that makes no sense; 0 for --help.
struct parsed_distill_options {
  std::optional<distill_options> options;
  int exit_code = 0;
};

inline parsed_distill_options parse_distill_options(int argc, const char* const* argv) {
  distill_options d;
  run_options &t = d.teacher, &s = d.student;
  t.seq_len = s.seq_len = 256;
  s.layers = 2, s.hidden = 128, s.intermediate = 352, s.heads = 4, s.kv_heads = 2;
  s.steps = 100;
  s.eval_every = 10;
  s.lr = 2e-3, s.warmup = 10;
  CLI::App app{"A small Llama learns from a larger one: tigon's fused_linear_jsd on the text of train_llama."};
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  constexpr std::uint64_t many = 1u << 16;

  app.add_option("--text", s.text, "text to learn from, plain or gzip")->group("Text");
  auto* vocab = app.add_option("--vocab", s.vocab, "BPE pieces")->check(whole(2, 1u << 20))->group("Text");
  app.add_flag("--bytes", s.bytes, "plain bytes instead of BPE: a vocabulary of 256")->group("Text");
  app.add_option("--cache-dir", s.cache_dir, "keeps trained tokenizers")->group("Text");

  const auto model = [&](const std::string& prefix, run_options& o, const char* group) {
    app.add_option("--" + prefix + "layers", o.layers)->check(whole(1, 1024))->group(group);
    app.add_option("--" + prefix + "hidden", o.hidden, "width of the residual stream")
        ->check(whole(1, many))
        ->group(group);
    app.add_option("--" + prefix + "intermediate", o.intermediate, "width of the MLP")
        ->check(whole(1, many))
        ->group(group);
    app.add_option("--" + prefix + "heads", o.heads, "query heads")->check(whole(1, 1024))->group(group);
    app.add_option("--" + prefix + "kv-heads", o.kv_heads, "key and value heads")->check(whole(1, 1024))->group(group);
  };
  auto* file =
      app.add_option("--teacher", d.teacher_file, "checkpoint of train_llama with the same text and vocabulary")
          ->group("Teacher");
  auto* own_steps = app.add_option("--teacher-steps", t.steps, "steps of a teacher that is trained first")
                        ->check(whole(1, most_steps))
                        ->group("Teacher");
  app.add_option("--teacher-lr", t.lr, "its peak learning rate")->check(real(bound::positive))->group("Teacher");
  model("teacher-", t, "Teacher");
  model("", s, "Student");

  app.add_option("--beta", d.beta, "0: KL(teacher, student), 1: KL(student, teacher), between: Jensen-Shannon")
      ->check(real(bound::from_zero_to_one))
      ->group("Run");
  app.add_option("--softmax-temperature", d.softmax_temperature, "of both models' probabilities")
      ->check(real(bound::positive))
      ->group("Run");
  app.add_option("--seq-len", s.seq_len, "tokens of a window")->check(whole(1, many))->group("Run");
  app.add_option("--batch", s.batch, "windows of a step")->check(whole(1, many))->group("Run");
  app.add_option("--steps", s.steps, "of the student")->check(whole(1, most_steps))->group("Run");
  app.add_option("--eval-every", s.eval_every, "steps between held-out losses; 0: at the end only")
      ->check(whole(0, most_steps))
      ->group("Run");
  app.add_option("--seed", s.seed, "of weights and batches")->check(whole(0, ~0ull))->group("Run");
  app.add_option("--threads", s.threads, "0: one per core; the results do not depend on it")
      ->check(whole(0, 1024))
      ->group("Run");
  app.add_option("--lr", s.lr, "peak learning rate of the student")->check(real(bound::positive))->group("Run");
  app.add_option("--min-lr", s.min_lr, "of both at the end of the cosine")->check(real(bound::from_zero))->group("Run");
  app.add_option("--warmup", s.warmup, "steps of linear warm-up of both")->check(whole(0, most_steps))->group("Run");

  app.add_option("--csv", s.csv, "file for the divergence of every step")->group("Output");
  app.add_option("--svg", s.svg, "file for a picture of the curves")->group("Output");
  app.add_option("--checkpoint", s.checkpoint, "file for the student, as train_llama writes and reads them")
      ->group("Output");

  const auto refused = [](const std::string& sentence) {
    std::cerr << "distill: " << sentence << '\n';
    return parsed_distill_options{std::nullopt, 2};
  };
  try {
    app.parse(argc, argv);
    if (file->count() > 0 && own_steps->count() > 0)
      throw std::runtime_error("--teacher is trained already and takes no --teacher-steps");
    if (d.softmax_temperature < 1e-30 || d.softmax_temperature > 1e30)
      throw std::runtime_error("--softmax-temperature is not between 1e-30 and 1e30");
    for (const auto member : {&run_options::text, &run_options::cache_dir}) t.*member = s.*member;
    for (const auto member :
         {&run_options::vocab, &run_options::seq_len, &run_options::batch, &run_options::threads, &run_options::warmup})
      t.*member = s.*member;
    t.bytes = s.bytes, t.seed = s.seed, t.min_lr = s.min_lr;
    detail::check_together(s, {vocab->count() > 0}, 1);
    try {
      detail::check_together(t, {vocab->count() > 0}, 1);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(std::string("of the teacher, ") + error.what());
    }
  } catch (const CLI::Success& help) {
    return {std::nullopt, app.exit(help)};
  } catch (const std::runtime_error& error) {  // CLI::ParseError is one
    return refused(error.what());
  }
  return {d, 0};
}

}  // namespace example
#endif

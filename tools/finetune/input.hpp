// The data of a run: texts by the folder's tokenizer, or ids as they are.
#ifndef EXAMPLE_FINETUNE_INPUT_HPP
#define EXAMPLE_FINETUNE_INPUT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "data.hpp"
#include "options.hpp"
#include "text/load_tokenizer.hpp"
#include "text/same_tokenizer.hpp"

namespace example {

/// Parts of at most so many tokens, each of which has something to learn.
inline std::vector<finetune::sample> cut(const std::vector<finetune::sample>& samples, std::size_t seq_len) {
  std::vector<finetune::sample> out;
  for (const finetune::sample& s : samples)
    for (std::size_t begin = 0; begin < s.ids.size(); begin += seq_len) {
      const auto first = static_cast<std::ptrdiff_t>(begin),
                 last = static_cast<std::ptrdiff_t>(std::min(s.ids.size(), begin + seq_len));
      finetune::sample part{{s.ids.begin() + first, s.ids.begin() + last},
                            {s.targets.begin() + first, s.targets.begin() + last}};
      if (finetune::counted(part) != 0) out.push_back(std::move(part));
    }
  return out;
}

/// Samples of a file whose name ends in .jsonl (objects with "text", or with "prompt" and "completion"), .txt (one
/// document) or .ids (a document a line, for which no tokenizer is needed).
inline std::vector<finetune::sample> read_data(const std::filesystem::path& folder, const std::filesystem::path& path,
                                               std::size_t vocab) {
  if (finetune::kind_of(path) == finetune::data_kind::ids) return finetune::read_ids(path, vocab);
  finetune::data_options options;
  options.vocab = vocab, options.chat = finetune::chat_template::of_folder(folder);
  return finetune::read_samples(path, finetune::load_tokenizer(folder), options);
}

namespace detail {

/// read(path, tokenizer, options) for training and evaluation, of answers with their prompts of --seq-len tokens.
template <class Read>
auto read_answers(const finetune_options& o, std::size_t vocab, const Read& read) {
  finetune::data_options options;
  options.vocab = vocab, options.most_tokens = o.seq_len + 1;
  const auto of_file = [&](const std::filesystem::path& path) {
    if (finetune::kind_of(path) != finetune::data_kind::json_lines)
      throw std::runtime_error("the file " + path.string() +
                               " cannot hold preferences: they are JSON lines, in a .jsonl");
    return read(path, finetune::load_tokenizer(o.folder), options);
  };
  using one = typename std::invoke_result_t<decltype(of_file), std::filesystem::path>::value_type;
  finetune::data_parts<one> out{of_file(o.data), {}};
  if (!o.eval_data.empty()) out.evaluation = of_file(o.eval_data);
  if (o.eval_share > 0) out = finetune::keep_for_evaluation(std::move(out.training), o.eval_share, o.seed);
  return out;
}

inline std::vector<finetune::sample> one_by_one(std::vector<finetune::preference> pairs) {
  std::vector<finetune::sample> out;
  for (finetune::preference& pair : pairs) {
    out.push_back(std::move(pair.chosen));
    out.push_back(std::move(pair.rejected));
  }
  return out;
}

inline run_data read_paired_data(const finetune_options& o, std::size_t vocab) {
  auto parts = read_answers(o, vocab, finetune::read_preferences);
  return {one_by_one(std::move(parts.training)), one_by_one(std::move(parts.evaluation)), true};
}

inline run_data read_labelled_data(const finetune_options& o, std::size_t vocab) {
  const auto parts = read_answers(o, vocab, finetune::read_labelled_answers);
  const auto samples = [&](const std::vector<finetune::labelled_answer>& of) {
    return finetune::with_others_answers(of, o.batch, o.seq_len + 1);
  };
  const auto labels = [](const std::vector<finetune::labelled_answer>& of) {
    std::vector<std::uint8_t> out;
    for (const finetune::labelled_answer& one : of) out.push_back(one.desirable);
    return out;
  };
  return {samples(parts.training), samples(parts.evaluation), true, labels(parts.training), labels(parts.evaluation)};
}

}  // namespace detail

/// What to learn from, and what to evaluate: of `eval_data`, or a share of the data that the seed draws, or nothing. Of
/// a single document the share is its end. A teacher or a reference with another tokenizer is refused.
inline run_data read_run_data(const finetune_options& o, std::size_t vocab) {
  if (!o.distillation.teacher.empty()) finetune::expect_same_tokenizer("--teacher", o.distillation.teacher, o.folder);
  if (!o.reference.empty()) finetune::expect_same_tokenizer("--reference", o.reference, o.folder);
  if (o.preference.loss == preference_loss::kto) return detail::read_labelled_data(o, vocab);
  if (o.preference.loss != preference_loss::none) return detail::read_paired_data(o, vocab);
  run_data out{read_data(o.folder, o.data, vocab), {}};
  if (!o.eval_data.empty()) out.held_out = read_data(o.folder, o.eval_data, vocab);
  if (o.eval_share > 0) {
    finetune::data_parts<finetune::sample> parts =
        out.train.size() == 1 ? finetune::keep_end_for_evaluation(out.train.front(), o.eval_share)
                              : finetune::keep_for_evaluation(std::move(out.train), o.eval_share, o.seed);
    out = {std::move(parts.training), std::move(parts.evaluation)};
  }
  out = {cut(out.train, o.seq_len), cut(out.held_out, o.seq_len)};
  if (out.train.empty()) throw std::runtime_error(o.data + " holds nothing to learn");
  if (out.held_out.empty() && (!o.eval_data.empty() || o.eval_share > 0))
    throw std::runtime_error((o.eval_data.empty() ? o.data : o.eval_data) + " holds nothing to evaluate");
  return out;
}

}  // namespace example
#endif

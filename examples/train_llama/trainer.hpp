#ifndef EXAMPLE_TRAIN_LLAMA_TRAINER_HPP
#define EXAMPLE_TRAIN_LLAMA_TRAINER_HPP

#include <tigon/comm/communicator.hpp>
#include <tigon/rows/reduce_map.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "../../support/kernel_memory.hpp"
#include "../../support/profile.hpp"
#include "checkpoint.hpp"
#include "operators.hpp"
#include "optimizer.hpp"
#include "options.hpp"
#include "parameters.hpp"
#include "rng.hpp"
#include "text.hpp"
#include "tokenizer.hpp"

namespace example {

/// One training run of a Model of T: weights in S, and a copy of them in T where that is another type.
///
/// A step's batch is cut into micro-batches, of which rank r has numbers r, r + ranks, ... Losses and gradients are
/// added up in the order of micro-batches, by every rank alike: the bits depend on the size of a micro-batch, not on
/// the ranks. All ranks have all weights and take the same step.
template <class Model, tigon::element T, tigon::element S = float>
class trainer {
 public:
  trainer(const run_options& options, const model_config& config, const parameter_layout& layout, corpus text,
          tigon::executor_ref executor, tigon::communicator_ref comm = alone, profile* timed = nullptr)
      : o_(options),
        config_(config),
        layout_(layout),
        text_(text),
        comm_(comm),
        windows_(options.windows_of_pass(comm.size())),
        workspace_(kernel_workspace()),
        ctx_(executor, workspace_, kernel_queue()),
        master_(floats_for_kernels<S>(initial_weights(layout, options.seed))),
        optimizer_(layout.total, layout.groups(), optimizer_options(options)),
        // Another stream than the weights'.
        batches_(options.seed + 1),
        profile_(timed),
        model_(config, layout, options.seq_len, windows_, ctx_, timed) {
    if (windows_ != options.batch) {
      gathered_.resize(comm.size() * gathered_block);
      sum_ = kernel_vector<S>(layout.total);
    }
    if constexpr (!std::same_as<T, S>) rounded_ = kernel_vector<T>(layout.total);
    round_weights();
  }

  std::size_t steps_done() const { return step_; }
  training_state_in<S> state() { return {master_, optimizer_, batches_, step_}; }

  /// Of everything that the steps to come depend on: equal in ranks that train together.
  std::uint64_t state_hash() {
    std::uint64_t hash = step_;
    const auto add = [&](const auto& values) {
      const auto bytes = std::as_bytes(std::span(values));
      hash = hash * 31 + text_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    };
    std::vector<S> copy;
    add(for_host(master_, copy)), add(for_host(optimizer_.first_moment(), copy));
    add(for_host(optimizer_.second_moment(), copy)), add(batches_.state());
    return hash;
  }

  void resume(const std::string& path, const checkpoint_identity& identity, const checkpoint_identity& training = {}) {
    load_checkpoint(path, layout_, state(), identity, training);
    round_weights();
  }

  float rate() const {
    return cosine_rate(step_, o_.steps, o_.warmup, static_cast<float>(o_.lr), static_cast<float>(o_.min_lr));
  }

  /// Draws a batch, takes one step, returns the batch's loss before it.
  double step() {
    const auto start = std::chrono::steady_clock::now();
    const auto timed = profile::step(profile_);
    std::vector<std::size_t> begins(o_.batch);
    for (std::size_t& begin : begins) begin = batches_.below(text_.train.size() - o_.seq_len);
    const auto windows = [&](std::size_t first) {
      ids_.clear();
      targets_.clear();
      for (std::size_t i = first; i < first + windows_; ++i) add_window(text_.train.subspan(begins[i], o_.seq_len + 1));
    };
    double loss = 0;
    if (windows_ == o_.batch) {
      windows(0);
      loss = model_.step(weights(), ids_, targets_);
    } else if constexpr (on_host) {
      std::ranges::fill(sum_, 0.0f);
      for (std::size_t first = 0; first < o_.batch; first += windows_ * comm_.size()) {
        windows(first + windows_ * comm_.rank());
        loss = add_of_ranks(loss, model_.step(weights(), ids_, targets_));
        tigon::comm::reduce_in_rank_order<float>(comm_, model_.gradient(), std::span(sum_), gathered_, std::plus<>());
      }
      const std::size_t passes = o_.batch / windows_;
      loss /= static_cast<double>(passes);
      for (float& g : sum_) g /= static_cast<float>(passes);
    }
    {
      const auto of_optimizer = profile::part(profile_, "optimizer");
      const auto of_adamw = profile::call(profile_, "adamw", adamw_work());
      optimizer_.step(master_, windows_ == o_.batch ? model_.gradient() : std::span(sum_), rate(), ctx_,
                      std::span(rounded_));
    }
    ctx_.wait();
    ++step_;
    seconds_.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return loss;
  }

  /// Mean loss of held-out windows spread over their part of the text: at most four batches of them.
  double held_out_loss() {
    const std::size_t window = o_.seq_len + 1, there = text_.held_out.size() / window;
    const std::size_t wanted = std::min(there, 4 * o_.batch);
    double sum = 0;
    for (std::size_t done = 0; done < wanted; done += windows_ * comm_.size()) {
      const std::size_t first = done + windows_ * comm_.rank(), end = std::min(first + windows_, wanted);
      double mine = 0;  // a rank for which nothing is left adds nothing
      if (first < end) {
        ids_.clear();
        targets_.clear();
        for (std::size_t i = first; i < end; ++i)
          add_window(text_.held_out.subspan(i * there / wanted * window, window));
        mine = model_.loss(weights(), ids_, targets_) * static_cast<double>(end - first);
      }
      sum = add_of_ranks(sum, mine);
    }
    return sum / static_cast<double>(wanted);
  }

  /// The prompt and what the model goes on with.
  std::string sample(const tokenizer& pieces) {
    std::vector<std::int32_t> ids = pieces.encode(o_.prompt);
    if (ids.empty()) ids = pieces.encode("\n");
    rng draw(o_.seed + 2);
    std::vector<float> logits(config_.vocab);
    std::vector<std::int32_t> window(o_.seq_len);
    for (std::size_t i = 0; i < o_.sample_tokens; ++i) {
      const std::size_t seen = std::min(ids.size(), o_.seq_len);
      // What follows the last token cannot be seen by it, so the rest of the window may hold anything.
      std::ranges::fill(window, 0);
      std::copy(ids.end() - static_cast<std::ptrdiff_t>(seen), ids.end(), window.begin());
      model_.next_logits(weights(), window, seen - 1, logits);
      ids.push_back(choose(logits, draw));
    }
    return pieces.decode(ids);
  }

  /// Tokens of a step over the median of the steps' times, which a neighbour's burst of work does not move.
  double tokens_per_second() const {
    std::vector<double> sorted = seconds_;
    if (sorted.empty()) return 0;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return static_cast<double>(o_.batch * o_.seq_len) / *middle;
  }
  std::size_t peak_bytes() const { return model_.peak_bytes(); }

 private:
  void add_window(std::span<const std::int32_t> window) {
    ids_.insert(ids_.end(), window.begin(), window.end() - 1);
    targets_.insert(targets_.end(), window.begin() + 1, window.end());
  }

  double add_of_ranks(double sum, double mine) const {
    std::vector<double> scratch(comm_.size());
    tigon::comm::reduce_in_rank_order<double>(comm_, {&mine, 1}, std::span(&sum, 1), scratch, std::plus<>());
    return sum;
  }

  /// The gradient twice, both moments and the weights in both directions, and a copy of these.
  work adamw_work() const {
    return {0, 8.0 * sizeof(S) * static_cast<double>(master_.size()) + 2.0 * static_cast<double>(rounded_.size())};
  }

  weight_views<T, S> weights() const {
    if constexpr (std::same_as<T, S>)
      return {master_, master_};
    else
      return {rounded_, master_};
  }

  void round_weights() {
    if constexpr (!std::same_as<T, S>) {
      // The layout pads every tensor to 32 elements.
      const tigon::matrix_view<T> to(rounded_.data(), layout_.total / 32, 32);
      const tigon::matrix_view<const S> from(master_.data(), layout_.total / 32, 32);
      tigon::map_rows<tigon::default_backend>(ctx_, same(), tigon::reads(from), tigon::writes(to));
    }
  }

  std::int32_t choose(std::span<const float> logits, rng& draw) const {
    const auto likeliest = std::ranges::max_element(logits);
    if (o_.temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
    std::vector<double> up_to(logits.size());
    double sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i)
      up_to[i] = sum += std::exp((static_cast<double>(logits[i]) - static_cast<double>(*likeliest)) / o_.temperature);
    const auto chosen = std::ranges::upper_bound(up_to, draw.uniform() * sum);
    return static_cast<std::int32_t>(std::min<std::ptrdiff_t>(chosen - up_to.begin(), std::ssize(up_to) - 1));
  }

  static constexpr tigon::comm::serial alone{};
  /// Elements of a rank's gradient that are sent at a time.
  static constexpr std::size_t gathered_block = std::size_t{1} << 16;

  const run_options& o_;
  model_config config_;
  const parameter_layout& layout_;
  corpus text_;
  tigon::communicator_ref comm_;
  std::size_t windows_;  ///< of a micro-batch
  tigon::workspace workspace_;
  tigon::context ctx_;
  kernel_vector<S> master_;
  kernel_vector<S> sum_;  ///< of the gradients of micro-batches, where there are several
  std::vector<float> gathered_;
  kernel_vector<T> rounded_;
  optimizer_in<S> optimizer_;
  rng batches_;
  profile* profile_;
  Model model_;
  std::size_t step_ = 0;
  std::vector<std::int32_t> ids_, targets_;
  std::vector<double> seconds_;
};

}  // namespace example
#endif

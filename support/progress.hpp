#ifndef EXAMPLE_SUPPORT_PROGRESS_HPP
#define EXAMPLE_SUPPORT_PROGRESS_HPP

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <ostream>
#include <string>
#include <utility>

namespace example {

/// One line that is drawn over itself on a terminal; elsewhere a plain line every tenth of the way.
class progress {
 public:
  progress(std::string label, std::size_t steps, std::size_t tokens_per_step, std::ostream& out = std::cerr,
           bool terminal = isatty(STDERR_FILENO) == 1)
      : label_(std::move(label)), steps_(steps), tokens_per_step_(tokens_per_step), out_(out), terminal_(terminal) {}

  /// After `done` of the steps; the clock counts from the construction. `more` is a number beside the loss.
  void update(std::size_t done, double loss, const std::string& more = {}) {
    const double seconds = std::chrono::duration<double>(clock::now() - start_).count();
    const bool last = done == steps_;
    const std::size_t tenth = done * 10 / std::max<std::size_t>(steps_, 1);
    if (terminal_ ? !last && seconds - drawn_ < 0.1 : tenth == tenth_) return;
    drawn_ = seconds;
    tenth_ = tenth;

    const double per_step = seconds / static_cast<double>(std::max<std::size_t>(done - first_, 1));
    const double rate = counted_ != 0 ? static_cast<double>(counted_) / std::max(seconds, 1e-9)
                                      : static_cast<double>(tokens_per_step_) / std::max(per_step, 1e-9);
    const double left = per_step * static_cast<double>(steps_ - done);
    constexpr std::size_t width = 24;
    const std::size_t filled = done * width / std::max<std::size_t>(steps_, 1);
    const auto time = static_cast<unsigned long long>(last ? seconds : left);
    char numbers[192];
    std::snprintf(numbers, sizeof numbers, " %zu/%zu  loss %.4f%s  %.0f tokens/s  %s %02llu:%02llu", done, steps_, loss,
                  more.c_str(), rate, last ? "took" : "left", time / 60, time % 60);
    if (terminal_)
      // The escape clears what a longer line left behind.
      out_ << '\r' << label_ << " [" << std::string(filled, '=') << std::string(width - filled, ' ') << ']' << numbers
           << "\x1b[K" << (last ? "\n" : "") << std::flush;
    else
      out_ << label_ << numbers << '\n' << std::flush;
  }

  /// Of steps of different sizes: so many tokens since the construction.
  void count_tokens(std::size_t tokens) { counted_ = tokens; }

  /// A resumed run counts its own steps for the speed.
  void start_at(std::size_t done) {
    first_ = done;
    tenth_ = done * 10 / std::max<std::size_t>(steps_, 1);
  }

 private:
  using clock = std::chrono::steady_clock;
  std::string label_;
  std::size_t steps_, tokens_per_step_;
  std::ostream& out_;
  bool terminal_;
  clock::time_point start_ = clock::now();
  double drawn_ = -1;
  std::size_t first_ = 0, tenth_ = 0, counted_ = 0;
};

}  // namespace example
#endif

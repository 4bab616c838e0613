#ifndef EXAMPLE_PREFERENCE_PAIR_PROGRESS_HPP
#define EXAMPLE_PREFERENCE_PAIR_PROGRESS_HPP

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include "../train_llama/progress.hpp"

namespace example {

/// train_llama's progress bar with the reward margin after the loss.
class pair_progress {
 public:
  pair_progress(const std::string& label, std::size_t steps, std::size_t tokens_per_step)
      : bar_(label, steps, tokens_per_step, line_, isatty(STDERR_FILENO) == 1) {}

  void update(std::size_t done, double loss, double margin) {
    bar_.update(done, loss);
    std::string line = line_.str();
    if (line.empty()) return;
    line_.str("");
    char text[64];
    std::snprintf(text, sizeof text, "  margin %.4f", margin);
    line.insert(line.find("  ", line.find("  loss ") + 7), text);
    std::cerr << line << std::flush;
  }

 private:
  std::ostringstream line_;
  progress bar_;
};

}  // namespace example
#endif

// The casting mode of a case of the RMS norms.
#ifndef TIGON_TESTS_GOLDEN_CASTING_HPP
#define TIGON_TESTS_GOLDEN_CASTING_HPP

#include <tigon/ops/rms_norm.hpp>

#include "tensors.hpp"

namespace golden {

inline tigon::casting casting_of(const problem& p) {
  const std::string mode = p.opt.text("casting_mode", "llama");
  if (mode == "llama") return tigon::casting::llama;
  if (mode == "gemma") return tigon::casting::gemma;
  if (mode == "none") return tigon::casting::none;
  throw cannot_run("casting mode " + mode + " is unknown");
}

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_CASTING_HPP

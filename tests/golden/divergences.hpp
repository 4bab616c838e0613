// What the adapters of the divergences have in common.
#ifndef TIGON_TESTS_GOLDEN_DIVERGENCES_HPP
#define TIGON_TESTS_GOLDEN_DIVERGENCES_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>

#include "tensors.hpp"

namespace golden {

inline tigon::divergence_reduction divergence_reduction_of(const problem& p) {
  using enum tigon::divergence_reduction;
  const std::string name = p.opt.text("reduction", "batchmean");
  if (name == "batchmean") return batchmean;
  if (name == "mean") return mean;
  if (name == "sum") return sum;
  if (name == "none") return none;
  throw cannot_run("reduction " + name + " is unknown");
}

/// Calls run(labels) with the case's labels, or with `absent`.
template <class Run>
void with_labels(const problem& p, Run run) {
  if (p.in.contains("labels"))
    run(vector_of<std::int64_t>(p.input("labels")));
  else
    run(tigon::absent);
}

/// One number, or one for every element of `rows` x `cols`.
struct divergence_loss {
  matrix<float> loss, upstream;

  divergence_loss(const problem& p, std::size_t rows, std::size_t cols)
      : loss(each(p) ? rows : 1, each(p) ? cols : 1), upstream(loss.rows, loss.cols) {
    upstream.elements = vector_of<float>(p.upstream("loss"));
  }

 private:
  static bool each(const problem& p) { return divergence_reduction_of(p) == tigon::divergence_reduction::none; }
};

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_DIVERGENCES_HPP

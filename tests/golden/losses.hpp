// What the adapters of the losses over a vocabulary have in common.
#ifndef TIGON_TESTS_GOLDEN_LOSSES_HPP
#define TIGON_TESTS_GOLDEN_LOSSES_HPP

#include <tigon/losses/cross_entropy.hpp>

#include "tensors.hpp"

namespace golden {

inline tigon::cross_entropy_options loss_options(const problem& p) {
  const std::string name = p.opt.text("reduction", "mean");
  if (name != "mean" && name != "sum" && name != "none") throw cannot_run("reduction " + name + " is unknown");
  return {.ignore_index = static_cast<std::int64_t>(p.opt.number("ignore_index", -100)),
          .reduction = name == "mean"  ? tigon::reduction::mean
                       : name == "sum" ? tigon::reduction::sum
                                       : tigon::reduction::none,
          .label_smoothing = p.opt.number("label_smoothing"),
          .lse_square_scale = p.opt.number("lse_square_scale"),
          .softcap = p.opt.number("softcap")};
}

/// Loss and metrics of `rows` rows, with memory for all of them.
struct loss_results {
  std::vector<float> loss, z_loss, accuracy, upstream;
  std::vector<std::int64_t> predicted;

  loss_results(const problem& p, std::size_t rows)
      : loss(loss_options(p).reduction == tigon::reduction::none ? rows : 1),
        z_loss(loss.size()),
        accuracy(loss.size()),
        upstream(vector_of<float>(p.upstream("loss"))),
        predicted(rows) {}

  tigon::cross_entropy_metrics<float> metrics() { return {z_loss, accuracy, predicted}; }
  results named() const {
    return {{"loss", values_of(loss)},
            {"z_loss", values_of(z_loss)},
            {"token_accuracy", values_of(accuracy)},
            {"predicted_tokens", values_of(predicted)}};
  }
};

/// Calls run(class_weight) with the case's class weights, or with `absent`.
template <class Run>
void with_class_weight(const problem& p, Run run) {
  if (p.in.contains("ce_weight"))
    run(vector_of<float>(p.input("ce_weight")));
  else
    run(tigon::absent);
}

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_LOSSES_HPP

// What the adapters of the distillation losses have in common.
#ifndef TIGON_TESTS_GOLDEN_DISTILLATION_HPP
#define TIGON_TESTS_GOLDEN_DISTILLATION_HPP

#include <tigon/losses/divergence/fused_linear_distillation_options.hpp>

#include "tensors.hpp"

namespace golden {

/// Both layers of a case, and memory for all results.
template <class T>
struct distillation {
  matrix<T> x, w, teacher_x, teacher_w, dx, dw;
  std::vector<T> bias, teacher_bias, dbias;
  std::vector<std::int64_t> labels;
  std::vector<float> loss, soft, hard;
  double upstream;

  TIGON_NOINLINE distillation(const problem& p, const std::string& name_of_labels)
      : x(p.input("student_x")),
        w(p.input("student_w")),
        teacher_x(p.input("teacher_x")),
        teacher_w(p.input("teacher_w")),
        dx(x.rows, x.cols),
        dw(w.rows, w.cols),
        bias(p.in.contains("student_b") ? vector_of<T>(p.input("student_b")) : std::vector<T>()),
        teacher_bias(p.in.contains("teacher_b") ? vector_of<T>(p.input("teacher_b")) : std::vector<T>()),
        dbias(bias.size()),
        labels(p.in.contains(name_of_labels) ? vector_of<std::int64_t>(p.input(name_of_labels))
                                             : std::vector<std::int64_t>()),
        loss(1),
        soft(1),
        hard(1),
        upstream(static_cast<double>(vector_of<float>(p.upstream("loss"))[0])) {}

  tigon::linear_layer<T> student() const { return {x, w, bias}; }
  tigon::linear_layer<T> teacher() const { return {teacher_x, teacher_w, teacher_bias}; }
  tigon::linear_gradients<T> gradients() { return {dx.view(), dw.view(), dbias}; }
  tigon::distillation_losses<float> losses() { return {loss, soft, hard}; }
  TIGON_NOINLINE results named() const {
    results out{{"loss", values_of(loss)},
                {"soft_loss", values_of(soft)},
                {"hard_loss", values_of(hard)},
                {"d_student_x", values_of(dx)},
                {"d_student_w", values_of(dw)}};
    if (!bias.empty()) out["d_student_b"] = values_of(dbias);
    return out;
  }
};

/// Liger pads the student's logits with 0, which is one of our choices, and masks the soft part of some losses only.
inline tigon::fused_linear_distillation_options distillation_options(const problem& p, bool mask_soft,
                                                                     double upstream) {
  return {.weight_hard = p.opt.number("weight_hard_loss"),
          .weight_soft = p.opt.number("weight_soft_loss"),
          .temperature = p.opt.number("temperature", 1),
          .ignore_index = static_cast<std::int64_t>(p.opt.number("ignore_index", -100)),
          .padding = tigon::teacher_padding::zero_logit,
          .mask_soft = mask_soft,
          .upstream = upstream};
}

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_DISTILLATION_HPP

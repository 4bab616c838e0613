// What the adapters of the preference losses have in common.
#ifndef TIGON_TESTS_GOLDEN_PREFERENCE_HPP
#define TIGON_TESTS_GOLDEN_PREFERENCE_HPP

#include <tigon/losses/sequence/sequence_kernel.hpp>

#include "tensors.hpp"

namespace golden {

inline float upstream_of(const problem& p) { return static_cast<float>(p.upstream("loss").data.at(0)); }

/// Inputs and gradients of a preference loss. Gradients are made for an upstream gradient of 1 and scaled by backward.
template <class T>
struct preference_problem {
  matrix<T> x, w, dx, dw, ref_x, ref_w;
  std::vector<T> bias, dbias, ref_bias;
  std::vector<std::int64_t> target, nll_target;
  std::size_t sequences, length;
  std::vector<float> loss{0};

  TIGON_NOINLINE explicit preference_problem(const problem& p)
      : x(p.input("x")),
        w(p.input("weight")),
        dx(x.rows, x.cols),
        dw(w.rows, w.cols),
        ref_x(optional_matrix(p, "ref_x")),
        ref_w(optional_matrix(p, "ref_weight")),
        bias(optional<T>(p, "bias")),
        dbias(bias.size()),
        ref_bias(optional<T>(p, "ref_bias")),
        target(vector_of<std::int64_t>(p.input("target"))),
        nll_target(optional<std::int64_t>(p, "nll_target")),
        sequences(p.input("target").rows()),
        length(p.input("target").cols()) {}

  tigon::linear_layer<T> layer() const { return {x, w, bias}; }
  tigon::linear_gradients<T> gradients() { return {dx.view(), dw.view(), dbias}; }
  /// The gradients for the upstream gradient of the case, by the kernel of Op.
  template <class Op, class B>
  void scale_gradients(const problem& p) {
    tigon::fused_linear_backward<Op, B, T>({dx, dw, dbias}, upstream_of(p), gradients());
  }

  tigon::matrix_view<const std::int64_t> targets() const { return {target.data(), sequences, length}; }
  tigon::token_ids nll_targets() const {
    if (nll_target.empty()) return {};
    return tigon::matrix_view<const std::int64_t>(nll_target.data(), nll_target.size() / length, length);
  }
  tigon::reference_model<T> reference() const {
    if (ref_w.elements.empty()) return {};
    return {.layer = {ref_x, ref_w, ref_bias}};
  }
  TIGON_NOINLINE void add_to(results& named) const {
    named["loss"] = values_of(loss);
    named["d_x"] = values_of(dx);
    named["d_weight"] = values_of(dw);
    if (!bias.empty()) named["d_bias"] = values_of(dbias);
  }

 private:
  template <class E>
  static std::vector<E> optional(const problem& p, const char* name) {
    return p.in.contains(name) ? vector_of<E>(p.input(name)) : std::vector<E>();
  }
  static matrix<T> optional_matrix(const problem& p, const char* name) {
    return p.in.contains(name) ? matrix<T>(p.input(name)) : matrix<T>(0, 0);
  }
};

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_PREFERENCE_HPP

#ifndef TIGON_TESTS_GOLDEN_ADAPTERS_MULTI_TOKEN_ATTENTION_HPP
#define TIGON_TESTS_GOLDEN_ADAPTERS_MULTI_TOKEN_ATTENTION_HPP

#include <tigon/ops/multi_token_attention.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct multi_token_attention {
  using op = tigon::op::multi_token_attention;

  template <class B, class T>
  static results run(const problem& p) {
    const auto number = [&](const char* name) { return static_cast<std::size_t>(p.opt.number(name)); };
    const tigon::multi_token_attention_options opt{.padding = number("padding"),
                                                   .dilation = number("dilation"),
                                                   .groups = number("groups"),
                                                   .sparse = p.opt.flag("sparse")};
    matrix<T> scores(p.input("scores")), w(p.input("weight")), dy(p.upstream("y"));
    matrix<T> y(dy.rows, dy.cols), probs(scores.rows, scores.cols), dscores(scores.rows, scores.cols),
        dw(w.rows, w.cols);
    const auto planes = [](matrix<T>& m, const tensor& t) {
      return tigon::heads_view<T>::of_heads(m.elements.data(), t.shape[0], t.shape[1], t.shape[2], t.shape[3]);
    };
    const tensor &in = p.input("scores"), &weight = p.input("weight"), &out = p.upstream("y");
    const auto both_ways = [&](const auto& b, std::span<T> db) {
      tigon::multi_token_attention_forward<B, T>(planes(scores, in), planes(w, weight), b, planes(y, out),
                                                 planes(probs, in), opt);
      tigon::multi_token_attention_backward<B, T>(planes(dy, out), planes(w, weight), planes(probs, in),
                                                  {planes(dscores, in), planes(dw, weight), db}, opt);
    };
    results r;
    if (p.opt.flag("bias")) {
      std::vector<T> db(weight.shape[0]);
      both_ways(vector_of<T>(p.input("bias")), db);
      r["d_bias"] = values_of(db);
    } else {
      both_ways(tigon::absent, {});
    }
    r["y"] = values_of(y), r["d_scores"] = values_of(dscores), r["d_weight"] = values_of(dw);
    return r;
  }
};

}  // namespace golden::adapters

#endif  // TIGON_TESTS_GOLDEN_ADAPTERS_MULTI_TOKEN_ATTENTION_HPP

#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct fused_linear_scaled_cross_entropy {
  using op = tigon::op::fused_linear_scaled_cross_entropy;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::fused_linear_scaled_cross_entropy_options opt{
        .temperature = p.opt.number("temperature", 1),
        .ignore_index = static_cast<std::int64_t>(p.opt.number("ignore_index", -100))};
    const matrix<T> x(p.input("x")), w(p.input("weight"));
    const auto target = vector_of<std::int64_t>(p.input("target"));
    const bool with_entropy = p.opt.flag("return_entropy");
    const auto of_nll = vector_of<float>(p.upstream("nll"));
    const auto of_entropy = with_entropy ? vector_of<float>(p.upstream("entropy")) : std::vector<float>();
    std::vector<float> nll(x.rows), entropy(with_entropy ? x.rows : 0);
    matrix<T> dx(x.rows, x.cols), dw(w.rows, w.cols);
    tigon::fused_linear_scaled_cross_entropy_forward<B, T>({x, w}, target, {nll, entropy}, {dx.view(), dw.view()}, opt,
                                                           {of_nll, of_entropy});
    results named{{"nll", values_of(nll)}, {"d_x", values_of(dx)}, {"d_weight", values_of(dw)}};
    if (with_entropy) named["entropy"] = values_of(entropy);
    return named;
  }
};

}  // namespace golden::adapters

#include <tigon/ops/mhc_coeffs.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct mhc_coeffs {
  using op = tigon::op::mhc_coeffs;
  static constexpr bool products = true;

  template <class B, class T>
  static results run(const problem& p) {
    if (p.opt.text("phi_kind") == "f32") return with_phi<B, T, float>(p);
    return with_phi<B, T, T>(p);
  }

  template <class B, class T, class P>
  static results with_phi(const problem& p) {
    const tigon::mhc_coeffs_options opt{.rms_eps = p.opt.number("rms_eps"),
                                        .pre_eps = p.opt.number("pre_eps"),
                                        .sinkhorn_eps = p.opt.number("sinkhorn_eps"),
                                        .post_mult = p.opt.number("post_mult"),
                                        .tmax = static_cast<std::size_t>(p.opt.number("tmax"))};
    const tensor& shape = p.input("x");  // [batch, seq, streams, channels]
    const std::size_t n = shape.shape[2], channels = shape.cols(), tokens = shape.rows() / n;
    matrix<T> x(shape), dx(x.rows, x.cols);
    matrix<P> phi(p.input("phi")), dphi(phi.rows, phi.cols);
    const std::vector<float> b = vector_of<float>(p.input("b"));
    std::vector<float> alpha, db(b.size()), dalpha(3), rstd(tokens);
    for (const char* name : {"alpha_pre", "alpha_post", "alpha_res"})
      alpha.push_back(static_cast<float>(p.input(name).data[0]));
    matrix<float> h_pre(tokens, n), h_post(tokens, n), h_res(tokens, n * n), mix(tokens, phi.cols),
        dh_pre(p.upstream("h_pre")), dh_post(p.upstream("h_post")), dh_res(p.upstream("h_res"));
    std::vector<float> history(tigon::mhc_coeffs_history<B, T>(tokens, n, opt.tmax));
    const auto streams = [=](matrix<T>& m) { return tigon::matrix_view<T>(m.elements.data(), tokens, n * channels); };
    const tigon::mhc_weights weights{phi.view(), b, alpha};
    const tigon::mhc_coeffs_saved<float> saved{mix.view(), rstd, history};
    tigon::mhc_coeffs_forward<B>(streams(x), weights, {h_pre.view(), h_post.view(), h_res.view()}, saved, opt);
    tigon::mhc_coeffs_backward<B>(
        {dh_pre.view(), dh_post.view(), tigon::matrix_view<float>(dh_res.elements.data(), tokens, n * n)}, streams(x),
        weights, saved, tigon::mhc_coeffs_gradients{streams(dx), dphi.view(), db, dalpha}, opt);
    return {{"h_pre", values_of(h_pre)},  {"h_post", values_of(h_post)}, {"h_res", values_of(h_res)},
            {"d_x", values_of(dx)},       {"d_phi", values_of(dphi)},    {"d_b", values_of(db)},
            {"d_alpha_pre", {dalpha[0]}}, {"d_alpha_post", {dalpha[1]}}, {"d_alpha_res", {dalpha[2]}}};
  }
};

}  // namespace golden::adapters

#include <tigon/ops/fused_add_rms_norm.hpp>

#include "../casting.hpp"

namespace golden::adapters {

struct fused_add_rms_norm {
  using op = tigon::op::fused_add_rms_norm;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::fused_add_rms_norm_options opt{
        .eps = p.opt.number("eps"), .offset = p.opt.number("offset"), .casting = casting_of(p)};
    const matrix<T> x(p.input("x")), r(p.input("r"));
    const std::vector<T> w = vector_of<T>(p.input("w"));
    matrix<T> y(x.rows, x.cols), s(x.rows, x.cols), dx(x.rows, x.cols), dr(x.rows, x.cols);
    std::vector<T> dw(x.cols);
    std::vector<float> rstd(x.rows);
    tigon::fused_add_rms_norm_forward<B>(x, r, w, y.view(), s.view(), rstd, opt);
    const auto backward = [&](tigon::in_matrix<T> dy, tigon::in_matrix<T> ds) {
      tigon::fused_add_rms_norm_backward<B>(dy, ds, s, w, rstd,
                                            tigon::fused_add_rms_norm_gradients{dx.view(), dw, dr.view()}, opt);
    };
    const auto given = [&](const char* name) { return p.up.contains(name); };
    const matrix<T> dy = given("y") ? matrix<T>(p.upstream("y")) : matrix<T>(0, x.cols);
    const matrix<T> ds = given("s") ? matrix<T>(p.upstream("s")) : matrix<T>(0, x.cols);
    backward(given("y") ? tigon::in_matrix<T>(dy) : tigon::in_matrix<T>(),
             given("s") ? tigon::in_matrix<T>(ds) : tigon::in_matrix<T>());
    return {{"y", values_of(y)},
            {"s", values_of(s)},
            {"d_x", values_of(dx)},
            {"d_r", values_of(dr)},
            {"d_w", values_of(dw)}};
  }
};

}  // namespace golden::adapters

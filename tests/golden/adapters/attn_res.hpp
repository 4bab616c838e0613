#include <tigon/ops/attn_res.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct attn_res {
  using op = tigon::op::attn_res;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::attn_res_options opt{.eps = p.opt.number("eps")};
    matrix<T> v(p.input("v")), dv(v.rows, v.cols);
    const matrix<T> dy(p.upstream("y"));
    const std::vector<T> w_query = vector_of<T>(p.input("w_query")), w_norm = vector_of<T>(p.input("w_norm"));
    matrix<T> y(dy.rows, dy.cols);
    std::vector<T> dw_query(v.cols), dw_norm(v.cols);
    std::vector<float> alpha(v.rows), rstd(v.rows);
    const auto blocks = [&](matrix<T>& m) {  // [blocks, batch, seq, dim]
      return tigon::blocks_view<T>::stacked(m.elements.data(), m.rows / y.rows, y.rows, y.cols);
    };
    tigon::attn_res_forward<B>(blocks(v), w_query, w_norm, y.view(), alpha, rstd, opt);
    tigon::attn_res_backward<B>(dy, blocks(v), w_query, w_norm, {alpha, rstd},
                                tigon::attn_res_gradients{blocks(dv), dw_query, dw_norm}, opt);
    return {{"y", values_of(y)},
            {"d_v", values_of(dv)},
            {"d_w_query", values_of(dw_query)},
            {"d_w_norm", values_of(dw_norm)}};
  }
};

}  // namespace golden::adapters

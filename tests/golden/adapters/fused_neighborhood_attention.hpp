#include <tigon/ops/neighborhood_attention.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct fused_neighborhood_attention {
  using op = tigon::op::neighborhood_attention;

  template <class B, class T>
  static results run(const problem& p) {
    const tigon::neighborhood_attention_options opt{
        .kernel_size = static_cast<std::size_t>(p.opt.number("kernel_size")),
        .dilation = static_cast<std::size_t>(p.opt.number("dilation")),
        .scale = p.opt.number("scale")};
    matrix<T> q(p.input("query")), k(p.input("key")), v(p.input("value")), dy(p.upstream("y"));
    matrix<T> y(q.rows, q.cols), dq(q.rows, q.cols), dk(q.rows, q.cols), dv(q.rows, q.cols);
    matrix<float> probs(q.rows, opt.kernel_size);
    std::vector<float> lse(q.rows);
    const auto& shape = p.input("query").shape;  // [batch, heads, seq_len, head_dim]
    const auto heads = [&](matrix<T>& m) {
      return tigon::heads_view<T>::of_heads(m.elements.data(), shape[0], shape[1], shape[2], shape[3]);
    };
    tigon::neighborhood_attention_forward<B>(heads(q), heads(k), heads(v), heads(y), {probs.view(), lse}, opt);
    tigon::neighborhood_attention_backward<B>(heads(dy), heads(q), heads(k), heads(v), {probs.view(), {}},
                                              tigon::neighborhood_attention_gradients{heads(dq), heads(dk), heads(dv)},
                                              opt);
    return {{"y", values_of(y)}, {"d_query", values_of(dq)}, {"d_key", values_of(dk)}, {"d_value", values_of(dv)}};
  }
};

}  // namespace golden::adapters

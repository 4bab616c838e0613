#include <tigon/ops/llama4_rope.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct llama4_rope {
  using op = tigon::op::llama4_rope;

  template <class B, class T>
  static results run(const problem& p) {
    const tensor& freqs = p.input("freqs");  // [positions, head_dim / 2, 2]: complex numbers as real ones
    const std::vector<float> table = vector_of<float>(freqs);
    const tigon::matrix_view by(table.data(), freqs.shape[0], freqs.shape[1] * freqs.shape[2]);
    matrix<T> q(p.input("q")), k(p.input("k")), dq_out(p.upstream("q_out")), dk_out(p.upstream("k_out"));
    matrix<T> q_out(q.rows, q.cols), k_out(k.rows, k.cols), dq(q.rows, q.cols), dk(k.rows, k.cols);
    const auto heads = [&](matrix<T>& m, const char* like) {  // [batch, seq_len, heads, head_dim]
      const auto& shape = p.input(like).shape;
      return tigon::heads_view<T>::of_tokens(m.elements.data(), shape[0], shape[1], shape[2], shape[3]);
    };
    tigon::llama4_rope_forward<B>(heads(q, "q"), heads(k, "k"), by, heads(q_out, "q"), heads(k_out, "k"));
    tigon::llama4_rope_backward<B>(heads(dq_out, "q"), heads(dk_out, "k"), by, heads(dq, "q"), heads(dk, "k"));
    return {{"q_out", values_of(q_out)}, {"k_out", values_of(k_out)}, {"d_q", values_of(dq)}, {"d_k", values_of(dk)}};
  }
};

}  // namespace golden::adapters

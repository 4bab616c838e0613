#include <tigon/ops/rope.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct rope {
  using op = tigon::op::rope;

  template <class B, class T>
  static results run(const problem& p) {
    return p.input("cos").dtype == "f32" ? with_tables<B, T, float>(p) : with_tables<B, T, T>(p);
  }

 private:
  template <class B, class T, class Table>
  static results with_tables(const problem& p) {
    matrix<T> q(p.input("q")), k(p.input("k")), dq_out(p.upstream("q_out")), dk_out(p.upstream("k_out"));
    matrix<Table> cos(p.input("cos")), sin(p.input("sin"));
    matrix<T> q_out(q.rows, q.cols), k_out(k.rows, k.cols), dq(q.rows, q.cols), dk(k.rows, k.cols);
    const auto heads = [&](matrix<T>& m, const char* like) {  // [batch, heads, seq_len, head_dim]
      const auto& shape = p.input(like).shape;
      return tigon::heads_view<T>::of_heads(m.elements.data(), shape[0], shape[1], shape[2], shape[3]);
    };
    tigon::rope_forward<B>(heads(q, "q"), heads(k, "k"), cos.view(), sin.view(), heads(q_out, "q"), heads(k_out, "k"));
    tigon::rope_backward<B>(heads(dq_out, "q"), heads(dk_out, "k"), cos.view(), sin.view(), heads(dq, "q"),
                            heads(dk, "k"));
    return {{"q_out", values_of(q_out)}, {"k_out", values_of(k_out)}, {"d_q", values_of(dq)}, {"d_k", values_of(dk)}};
  }
};

}  // namespace golden::adapters

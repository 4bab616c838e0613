#include <tigon/ops/qwen2vl_mrope.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct qwen2vl_mrope {
  using op = tigon::op::qwen2vl_mrope;

  template <class B, class T>
  static results run(const problem& p) {
    return p.input("cos").dtype == "f32" ? with_tables<B, T, float>(p) : with_tables<B, T, T>(p);
  }

 private:
  template <class B, class T, class Table>
  static results with_tables(const problem& p) {
    const auto section = [&](const char* name) {
      if (!p.opt.has(name)) throw cannot_run("no mrope_section in qwen2vl_mrope " + p.name);
      return static_cast<std::size_t>(p.opt.number(name));
    };
    const tigon::qwen2vl_mrope_options opt{
        .sections = {section("mrope_section.0"), section("mrope_section.1"), section("mrope_section.2")}};
    matrix<T> q(p.input("q")), k(p.input("k")), dq_out(p.upstream("q_out")), dk_out(p.upstream("k_out"));
    matrix<Table> cos(p.input("cos")), sin(p.input("sin"));
    matrix<T> q_out(q.rows, q.cols), k_out(k.rows, k.cols), dq(q.rows, q.cols), dk(k.rows, k.cols);
    const auto heads = [&](matrix<T>& m, const char* like) {  // [batch, heads, seq_len, head_dim]
      const auto& shape = p.input(like).shape;
      return tigon::heads_view<T>::of_heads(m.elements.data(), shape[0], shape[1], shape[2], shape[3]);
    };
    tigon::qwen2vl_mrope_forward<B>(heads(q, "q"), heads(k, "k"), cos.view(), sin.view(), heads(q_out, "q"),
                                    heads(k_out, "k"), opt);
    tigon::qwen2vl_mrope_backward<B>(heads(dq_out, "q"), heads(dk_out, "k"), cos.view(), sin.view(), heads(dq, "q"),
                                     heads(dk, "k"), opt);
    return {{"q_out", values_of(q_out)}, {"k_out", values_of(k_out)}, {"d_q", values_of(dq)}, {"d_k", values_of(dk)}};
  }
};

}  // namespace golden::adapters

// The operators that are made of matrix products: attention, linear layers.
#include <limits>

#include "layers.hpp"

namespace tigon_torch {
namespace {

using two = std::tuple<Tensor, Tensor>;
using four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

struct attention_scalars {
  double scale, softcap;
  bool causal;
  int64_t left, right, offset;
};

/// Sinks become f32, lengths i32.
attention_options options(const char* op, maybe& sinks, maybe& lengths, const attention_scalars& s) {
  if (s.offset < 0) fail(op, "q_offset is " + std::to_string(s.offset) + "; expected at least 0");
  attention_options o{s.scale, s.softcap, s.causal, s.left, s.right, s.offset, {}, {}};
  if (sinks) {
    expect_dims(op, "sinks", *sinks, 1);
    real_type_of(op, "sinks", *sinks);
    if (sinks->scalar_type() != ScalarType::Float) sinks = torch::stable::to(*sinks, ScalarType::Float);
    sinks = torch::stable::contiguous(*sinks), o.sinks = vector_of(*sinks);
  }
  if (lengths) {
    expect_dims(op, "cu_seqlens", *lengths, 1);
    make_ids(op, "cu_seqlens", *lengths);
    const auto* ends = static_cast<const int64_t*>(lengths->data_ptr());
    for (int64_t i = 0; i < lengths->numel(); ++i)
      if (ends[i] < 0 || ends[i] > std::numeric_limits<int32_t>::max())
        fail(op, "cu_seqlens[" + std::to_string(i) + "] is " + std::to_string(ends[i]) + "; expected a position");
    lengths = torch::stable::to(*lengths, ScalarType::Int), o.cumulative_lengths = vector_of(*lengths);
  }
  return o;
}

void expect_type(const char* op, const char* name, const Tensor& t, const Tensor& q) {
  if (t.scalar_type() != q.scalar_type())
    fail(op, std::string(name) + " is of " + name_of(t.scalar_type()) + "; expected " + name_of(q.scalar_type()) +
                 ", as q");
}

two attention(Tensor q, Tensor k, Tensor v, maybe sinks, maybe lengths, double scale, bool causal, int64_t left,
              int64_t right, double softcap, int64_t offset) {
  const char* op = "attention";
  const heads in_q = heads_of(op, "q", q), in_k = heads_of(op, "k", k), in_v = heads_of(op, "v", v);
  expect_type(op, "k", k, q), expect_type(op, "v", v, q);
  const attention_options opt = options(op, sinks, lengths, {scale, softcap, causal, left, right, offset});
  Tensor o = token_major(q, q.size(0), q.size(1), q.size(2), v.size(3));
  Tensor lse = make(q, {q.size(0), q.size(1), q.size(2)}, wide(q));
  table("attention", in_q.of).products->attention(call(q), in_q, in_k, in_v, heads_of(o), vector_of(lse), opt);
  return {o, lse};
}

four attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, maybe sinks, maybe lengths,
                        double scale, bool causal, int64_t left, int64_t right, double softcap, int64_t offset,
                        bool need_dq, bool need_dk, bool need_dv, bool need_dsinks) {
  const char* op = "attention_backward";
  expect_like(op, "do", d_o, "o", o);
  const heads up = heads_of(op, "do", d_o);
  const attention_saved saved{heads_of(op, "q", q), heads_of(op, "k", k), heads_of(op, "v", v), heads_of(op, "o", o),
                              vector_of(lse)};
  const ScalarType of_sinks = sinks ? sinks->scalar_type() : ScalarType::Float;
  const attention_options opt = options(op, sinks, lengths, {scale, softcap, causal, left, right, offset});
  const auto made = [](const Tensor& t, bool wanted) {
    return wanted ? token_major(t, t.size(0), t.size(1), t.size(2), t.size(3)) : nothing(t);
  };
  Tensor dq = made(q, need_dq), dk = made(k, need_dk), dv = made(v, need_dv);
  const auto to = [](const Tensor& t, bool wanted) { return wanted ? heads_of(t) : heads{}; };
  Tensor dsinks = need_dsinks && sinks ? make(q, {sinks->numel()}, wide(q)) : nothing(lse);
  table(op, saved.q.of)
      .products->attention_backward(call(q), up, saved, to(dq, need_dq), to(dk, need_dk), to(dv, need_dv),
                                    dsinks.numel() != 0 ? vector_of(dsinks) : vector{}, opt);
  if (dsinks.scalar_type() != of_sinks) dsinks = torch::stable::to(dsinks, of_sinks);
  return {dq, dk, dv, dsinks};
}

/// The shape of x with another number of columns.
std::vector<int64_t> with_columns(const Tensor& x, int64_t cols) {
  std::vector<int64_t> s = sizes(x);
  s.back() = cols;
  return s;
}

Tensor linear(Tensor x, Tensor w, maybe bias) {
  const layer_arguments a = layer_of("linear", x, w, bias);
  if (a.x.size(a.x.dim() - 1) != a.w.size(1))
    fail("linear", "x is " + text(sizes(x)) + "; expected " + std::to_string(w.size(1)) + " columns, as weight has");
  Tensor y = make(x, with_columns(x, w.size(0)));
  table("linear", a.layer.x.of).products->linear(call(a.x), a.layer.x, a.layer.w, a.layer.bias, rows_of(y));
  return y;
}

two linear_backward(Tensor dy, Tensor x, Tensor w, bool need_dx, bool need_dw) {
  const char* op = "linear_backward";
  const layer_arguments a = layer_of(op, x, w, std::nullopt);
  Tensor g = dy;
  const matrix up = rows_of(op, "dy", g);
  Tensor dx = need_dx ? make(x, sizes(x)) : nothing(x), dw = need_dw ? make(x, sizes(w)) : nothing(x);
  table(op, a.layer.x.of)
      .products->linear_backward(call(a.x), up, a.layer.x, a.layer.w, need_dx ? rows_of(dx) : matrix{},
                                 need_dw ? rows_of(dw) : matrix{});
  return {dx, dw};
}

}  // namespace
}  // namespace tigon_torch

STABLE_TORCH_LIBRARY_FRAGMENT(tigon, m) {
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? cu_seqlens, float scale, bool causal,"
      " int window_left, int window_right, float softcap, int q_offset) -> (Tensor, Tensor)");
  m.def(
      "attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? sinks,"
      " Tensor? cu_seqlens, float scale, bool causal, int window_left, int window_right, float softcap,"
      " int q_offset, bool need_dq, bool need_dk, bool need_dv, bool need_dsinks)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def("linear_backward(Tensor dy, Tensor x, Tensor weight, bool need_dx, bool need_dw) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(tigon, CPU, m) {
  using namespace tigon_torch;
  m.impl("attention", TORCH_BOX(&attention));
  m.impl("attention_backward", TORCH_BOX(&attention_backward));
  m.impl("linear", TORCH_BOX(&linear));
  m.impl("linear_backward", TORCH_BOX(&linear_backward));
}

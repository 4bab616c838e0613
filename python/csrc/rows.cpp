// The operators on rows and heads: norms, gates, rotary position embedding.
#include "tensors.hpp"

namespace tigon_torch {
namespace {

using two = std::tuple<Tensor, Tensor>;
using three = std::tuple<Tensor, Tensor, Tensor>;

int64_t rows(const Tensor& x) {
  const int64_t cols = x.dim() == 0 ? 0 : x.size(x.dim() - 1);
  return cols == 0 ? 0 : x.numel() / cols;
}

/// Memory for the gradient of a parameter in the type that kernels take it in, where it is wanted.
Tensor gradient_of(const Tensor& x, const maybe& parameter, ScalarType in, bool wanted) {
  return wanted && parameter ? make(x, {parameter->numel()}, in) : nothing(x);
}
vector optional_vector(const Tensor& made) { return made.numel() == 0 ? vector{} : vector_of(made); }
/// A gradient in the type of its parameter.
Tensor as_parameter(const Tensor& gradient, ScalarType of) {
  return gradient.scalar_type() == of ? gradient : torch::stable::to(gradient, of);
}

two rms_norm(Tensor x, maybe w, double eps, double offset, int64_t cast) {
  const char* op = "rms_norm";
  const matrix in = rows_of(op, "x", x);
  const vector weight = vector_in(type_of_parameters(x, w), op, "w", w, x);
  Tensor y = make(x, sizes(x)), rstd = make(x, {rows(x)}, wide(x));
  table(op, in.of).norms->rms_norm(call(x), in, weight, rows_of(y), vector_of(rstd),
                                   {eps, offset, static_cast<casting>(cast)});
  return {y, rstd};
}

two rms_norm_backward(Tensor dy, Tensor x, maybe w, Tensor rstd, double eps, double offset, int64_t cast,
                      bool need_dw) {
  const char* op = "rms_norm_backward";
  expect_like(op, "dy", dy, "x", x);
  const matrix in = rows_of(op, "x", x), up = rows_of(op, "dy", dy);
  const ScalarType of_w = w ? w->scalar_type() : wide(x);
  const ScalarType in_type = type_of_parameters(x, w);
  const vector weight = vector_in(in_type, op, "w", w, x);
  Tensor dx = make(x, sizes(x)), dw = gradient_of(x, w, in_type, need_dw);
  table(op, in.of).norms->rms_norm_backward(call(x), up, in, weight, vector_of(rstd), rows_of(dx), optional_vector(dw),
                                            {eps, offset, static_cast<casting>(cast)});
  return {dx, as_parameter(dw, of_w)};
}

three fused_add_rms_norm(Tensor x, Tensor residual, maybe w, double eps, double offset, int64_t cast) {
  const char* op = "fused_add_rms_norm";
  expect_like(op, "residual", residual, "x", x);
  const matrix in = rows_of(op, "x", x), r = rows_of(op, "residual", residual);
  const vector weight = vector_in(type_of_parameters(x, w), op, "w", w, x);
  Tensor y = make(x, sizes(x)), s = make(x, sizes(x)), rstd = make(x, {rows(x)}, wide(x));
  table(op, in.of).norms->fused_add_rms_norm(call(x), in, r, weight, rows_of(y), rows_of(s), vector_of(rstd),
                                             {eps, offset, static_cast<casting>(cast)});
  return {y, s, rstd};
}

/// dy or ds may be missing, where y or the sum has no other use.
two fused_add_rms_norm_backward(maybe dy, maybe ds, Tensor s, maybe w, Tensor rstd, double offset, int64_t cast,
                                bool need_dw) {
  const char* op = "fused_add_rms_norm_backward";
  const matrix in = rows_of(op, "s", s);
  matrix up, of_sum;
  if (dy) expect_like(op, "dy", *dy, "s", s), up = rows_of(op, "dy", *dy);
  if (ds) expect_like(op, "ds", *ds, "s", s), of_sum = rows_of(op, "ds", *ds);
  const ScalarType of_w = w ? w->scalar_type() : wide(s);
  const ScalarType in_type = type_of_parameters(s, w);
  const vector weight = vector_in(in_type, op, "w", w, s);
  Tensor dx = make(s, sizes(s)), dw = gradient_of(s, w, in_type, need_dw);
  table(op, in.of).norms->fused_add_rms_norm_backward(call(s), up, of_sum, in, weight, vector_of(rstd), rows_of(dx),
                                                      optional_vector(dw), {0, offset, static_cast<casting>(cast)});
  return {dx, as_parameter(dw, of_w)};
}

three layer_norm(Tensor x, maybe w, maybe b, double eps) {
  const char* op = "layer_norm";
  const matrix in = rows_of(op, "x", x);
  const ScalarType in_type = type_of_parameters(x, w, b);
  const vector weight = vector_in(in_type, op, "w", w, x), bias = vector_in(in_type, op, "b", b, x);
  Tensor y = make(x, sizes(x)), mean = make(x, {rows(x)}, wide(x)), rstd = make(x, {rows(x)}, wide(x));
  table(op, in.of).norms->layer_norm(call(x), in, weight, bias, rows_of(y), vector_of(mean), vector_of(rstd), eps);
  return {y, mean, rstd};
}

three layer_norm_backward(Tensor dy, Tensor x, maybe w, maybe b, Tensor mean, Tensor rstd, bool need_dw, bool need_db) {
  const char* op = "layer_norm_backward";
  expect_like(op, "dy", dy, "x", x);
  const matrix in = rows_of(op, "x", x), up = rows_of(op, "dy", dy);
  const ScalarType of_w = w ? w->scalar_type() : wide(x), of_b = b ? b->scalar_type() : wide(x);
  const ScalarType in_type = type_of_parameters(x, w, b);
  const vector weight = vector_in(in_type, op, "w", w, x);
  Tensor dx = make(x, sizes(x)), dw = gradient_of(x, w, in_type, need_dw), db = gradient_of(x, b, in_type, need_db);
  table(op, in.of).norms->layer_norm_backward(call(x), up, in, weight, vector_of(mean), vector_of(rstd), rows_of(dx),
                                              optional_vector(dw), optional_vector(db));
  return {dx, as_parameter(dw, of_w), as_parameter(db, of_b)};
}

Tensor swiglu(Tensor gate, Tensor up, double gate_multiplier, double down_multiplier, double limit, double slope,
              double up_offset) {
  expect_like("swiglu", "up", up, "gate", gate);
  const matrix g = rows_of("swiglu", "gate", gate), u = rows_of("swiglu", "up", up);
  Tensor y = make(gate, sizes(gate));
  table("swiglu", g.of)
      .gates->swiglu(call(gate), g, u, rows_of(y), {gate_multiplier, down_multiplier, limit, slope, up_offset});
  return y;
}

/// Memory for the gradients that are wanted.
struct gate_gradients {
  Tensor of_gate, of_up;
  matrix dgate, dup;

  gate_gradients(const Tensor& like, bool need_gate, bool need_up)
      : of_gate(need_gate ? make(like, sizes(like)) : nothing(like)),
        of_up(need_up ? make(like, sizes(like)) : nothing(like)) {
    if (need_gate) dgate = rows_of(of_gate);
    if (need_up) dup = rows_of(of_up);
  }
};

two swiglu_backward(Tensor dy, Tensor gate, Tensor up, double gate_multiplier, double down_multiplier, double limit,
                    double slope, double up_offset, bool need_gate, bool need_up) {
  const char* op = "swiglu_backward";
  expect_like(op, "dy", dy, "gate", gate);
  const matrix d = rows_of(op, "dy", dy), g = rows_of(op, "gate", gate), u = rows_of(op, "up", up);
  const gate_gradients to(gate, need_gate, need_up);
  if ((need_gate || need_up) && gate.numel() != 0)
    table(op, g.of).gates->swiglu_backward(call(gate), d, g, u, to.dgate, to.dup,
                                           {gate_multiplier, down_multiplier, limit, slope, up_offset});
  return {to.of_gate, to.of_up};
}

Tensor geglu(Tensor gate, Tensor up, bool tanh) {
  expect_like("geglu", "up", up, "gate", gate);
  const matrix g = rows_of("geglu", "gate", gate), u = rows_of("geglu", "up", up);
  Tensor y = make(gate, sizes(gate));
  table("geglu", g.of).gates->geglu(call(gate), g, u, rows_of(y), tanh);
  return y;
}

two geglu_backward(Tensor dy, Tensor gate, Tensor up, bool tanh, bool need_gate, bool need_up) {
  const char* op = "geglu_backward";
  expect_like(op, "dy", dy, "gate", gate);
  const matrix d = rows_of(op, "dy", dy), g = rows_of(op, "gate", gate), u = rows_of(op, "up", up);
  const gate_gradients to(gate, need_gate, need_up);
  if ((need_gate || need_up) && gate.numel() != 0)
    table(op, g.of).gates->geglu_backward(call(gate), d, g, u, to.dgate, to.dup, tanh);
  return {to.of_gate, to.of_up};
}

/// The first columns of a table, half of rotary_dim, a row for every token. Without a rotary_dim half of its columns:
/// the tables of transformers repeat them.
Tensor half_table(const char* op, const char* name, const Tensor& t, int64_t rotary_dim) {
  const int64_t last = t.dim() - 1, cols = t.size(last), pairs = (rotary_dim < 0 ? cols : rotary_dim) / 2;
  real_type_of(op, name, t);
  if (rotary_dim < 0 && cols % 2 != 0)
    fail(op, std::string(name) + " has " + std::to_string(cols) + " columns; expected an even number");
  if (rotary_dim % 2 == 1 || pairs > cols)
    fail(op, "rotary_dim is " + std::to_string(rotary_dim) + "; expected an even number of at most 2 * " +
                 std::to_string(cols) + ", twice the columns of " + name);
  return torch::stable::narrow(const_cast<Tensor&>(t), last, 0, pairs);
}

/// Both tables so, in the type that kernels take them in.
struct half_tables {
  Tensor of_cos, of_sin;
  matrix cos, sin;

  half_tables(const char* op, const Tensor& c, const Tensor& s, const Tensor& q, int64_t rotary_dim = -1)
      : of_cos(half_table(op, "cos", c, rotary_dim)), of_sin(half_table(op, "sin", s, rotary_dim)) {
    const ScalarType to = type_of_parameters(q, of_cos, of_sin);
    for (Tensor* t : {&of_cos, &of_sin})
      if (t->scalar_type() != to) *t = torch::stable::to(*t, to);
    cos = rows_of(op, "cos", of_cos), sin = rows_of(op, "sin", of_sin);
  }
};

/// [seq_len, r] or [batch or 1, seq_len, r]
void expect_table(const char* op, const char* name, const Tensor& t, const Tensor& q) {
  const bool batched = t.dim() == 3;
  if ((!batched && t.dim() != 2) || t.size(t.dim() - 2) != q.size(2) ||
      (batched && t.size(0) != 1 && t.size(0) != q.size(0)))
    fail(op, std::string(name) + " is " + text(sizes(t)) + "; expected 1 or batch x seq_len x columns for q of " +
                 text(sizes(q)));
}

/// q and k and where they go. Without k, q alone is rotated, and k_out is empty.
struct rotated {
  Tensor q, q_out, k_out;
  maybe k;
  heads in_q, in_k, to_q, to_k;

  rotated(const char* op, Tensor of_q, maybe of_k) : q(of_q), q_out(of_q), k_out(of_q), k(of_k) {
    in_q = heads_of(op, "q", q), q_out = heads_like(of_q), to_q = heads_of(q_out);
    if (k) {
      if (k->scalar_type() != q.scalar_type())
        fail(op, "k is of " + name_of(k->scalar_type()) + "; expected " + name_of(q.scalar_type()) + ", as q");
      in_k = heads_of(op, "k", *k), k_out = heads_like(*of_k), to_k = heads_of(k_out);
    } else {
      in_k = in_q, to_k = to_q, k_out = nothing(q);
      in_k.heads = to_k.heads = 0, in_k.data = to_k.data = nullptr;
    }
  }
};

two rope(Tensor q, maybe k, Tensor cos, Tensor sin, int64_t rotary_dim, bool last, bool neighbours, bool backward) {
  const char* op = backward ? "rope_backward" : "rope";
  const rotated to(op, q, k);
  expect_table(op, "cos", cos, q), expect_table(op, "sin", sin, q);
  if (sizes(cos) != sizes(sin)) fail(op, "sin is " + text(sizes(sin)) + "; expected " + text(sizes(cos)) + ", as cos");
  const half_tables by(op, cos, sin, q, rotary_dim);
  table(op, to.in_q.of)
      .rotary->rope(call(to.q), to.in_q, to.in_k, by.cos, by.sin, to.to_q, to.to_k, {last, neighbours}, backward);
  return {to.q_out, to.k_out};
}

/// cos and sin [3, batch, seq_len, head_dim]
two mrope(Tensor q, maybe k, Tensor cos, Tensor sin, std::vector<int64_t> sections, bool backward) {
  const char* op = backward ? "mrope_backward" : "mrope";
  const rotated to(op, q, k);
  for (const auto& [name, t] : {std::pair<const char*, const Tensor&>("cos", cos), {"sin", sin}})
    if (t.dim() != 4 || t.size(0) != 3 || t.size(1) != q.size(0) || t.size(2) != q.size(2))
      fail(op, std::string(name) + " is " + text(sizes(t)) + "; expected 3 x batch x seq_len x columns for q of " +
                   text(sizes(q)));
  if (sections.size() != 3) fail(op, "section has " + std::to_string(sections.size()) + " numbers; expected 3");
  for (const int64_t n : sections)
    if (n < 0) fail(op, "section has " + std::to_string(n) + "; expected numbers of at least 0");
  const half_tables by(op, cos, sin, q);
  table(op, to.in_q.of)
      .rotary->mrope(call(to.q), to.in_q, to.in_k, by.cos, by.sin, to.to_q, to.to_k, sections.data(), backward);
  return {to.q_out, to.k_out};
}

}  // namespace
}  // namespace tigon_torch

#if !TIGON_TORCH_CUDA
STABLE_TORCH_LIBRARY_FRAGMENT(tigon, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float eps, float offset, int casting) -> (Tensor, Tensor)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, float eps, float offset, int casting, "
      "bool need_dw)"
      " -> (Tensor, Tensor)");
  m.def(
      "fused_add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float offset, int casting)"
      " -> (Tensor, Tensor, Tensor)");
  m.def(
      "fused_add_rms_norm_backward(Tensor? dy, Tensor? ds, Tensor s, Tensor? weight, Tensor rstd, float offset,"
      " int casting, bool need_dw) -> (Tensor, Tensor)");
  m.def("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)");
  m.def(
      "layer_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd,"
      " bool need_dw, bool need_db) -> (Tensor, Tensor, Tensor)");
  m.def(
      "swiglu(Tensor gate, Tensor up, float gate_multiplier, float down_multiplier, float limit, float slope,"
      " float up_offset) -> Tensor");
  m.def(
      "swiglu_backward(Tensor dy, Tensor gate, Tensor up, float gate_multiplier, float down_multiplier, float limit,"
      " float slope, float up_offset, bool need_gate, bool need_up) -> (Tensor, Tensor)");
  m.def("geglu(Tensor gate, Tensor up, bool tanh) -> Tensor");
  m.def(
      "geglu_backward(Tensor dy, Tensor gate, Tensor up, bool tanh, bool need_gate, bool need_up)"
      " -> (Tensor, Tensor)");
  m.def(
      "rope(Tensor q, Tensor? k, Tensor cos, Tensor sin, int rotary_dim, bool last, bool neighbours, bool backward)"
      " -> (Tensor, Tensor)");
  m.def("mrope(Tensor q, Tensor? k, Tensor cos, Tensor sin, int[] section, bool backward) -> (Tensor, Tensor)");
}
#endif

STABLE_TORCH_LIBRARY_IMPL(tigon, TIGON_TORCH_KEY, m) {
  TIGON_TORCH_IMPL(m, norms, rms_norm);
  TIGON_TORCH_IMPL(m, norms, rms_norm_backward);
  TIGON_TORCH_IMPL(m, norms, fused_add_rms_norm);
  TIGON_TORCH_IMPL(m, norms, fused_add_rms_norm_backward);
  TIGON_TORCH_IMPL(m, norms, layer_norm);
  TIGON_TORCH_IMPL(m, norms, layer_norm_backward);
  TIGON_TORCH_IMPL(m, gates, swiglu);
  TIGON_TORCH_IMPL(m, gates, swiglu_backward);
  TIGON_TORCH_IMPL(m, gates, geglu);
  TIGON_TORCH_IMPL(m, gates, geglu_backward);
  TIGON_TORCH_IMPL(m, rotary, rope);
  TIGON_TORCH_IMPL(m, rotary, mrope);
}

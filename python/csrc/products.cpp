// The operators that are made of matrix products: attention, linear layers, bytes times weights of two bits.
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

/// Of packed documents, and of a padded batch.
struct attention_lengths {
  maybe &cu_seqlens, &key_begins, &key_ends;
};

constexpr int64_t of_documents = -1;  ///< a count: one and more

/// So many positions of keys, which become i32. Nothing of none.
vector positions_of(const char* op, const char* name, maybe& positions, int64_t count) {
  if (!positions) return {};
  expect_dims(op, name, *positions, 1);
  if (count == of_documents ? positions->numel() == 0 : positions->numel() != count)
    fail(op,
         std::string(name) + " is of " + std::to_string(positions->numel()) + " elements; expected " +
             (count == of_documents ? "0 and the ends of all documents" : std::to_string(count) + ", one an entry"));
  make_ids(op, name, *positions);
  const auto* at = static_cast<const int64_t*>(positions->data_ptr());
  for (int64_t i = 0; i < positions->numel(); ++i)
    if (at[i] < 0 || at[i] > std::numeric_limits<int32_t>::max())
      fail(op, std::string(name) + '[' + std::to_string(i) + "] is " + std::to_string(at[i]) + "; expected a position");
  positions = torch::stable::to(*positions, ScalarType::Int);
  return vector_of(*positions);
}

/// Sinks become f32, lengths i32.
attention_options options(const char* op, const Tensor& q, maybe& sinks, const attention_lengths& lengths,
                          const attention_scalars& s) {
  const int64_t batch = q.size(0);
  if (s.offset < 0) fail(op, "q_offset is " + std::to_string(s.offset) + "; expected at least 0");
  attention_options o{s.scale, s.softcap, s.causal, s.left, s.right, s.offset, {}, {}, {}, {}};
  if (sinks) {
    expect_dims(op, "sinks", *sinks, 1);
    real_type_of(op, "sinks", *sinks);
    if (sinks->scalar_type() != ScalarType::Float) sinks = torch::stable::to(*sinks, ScalarType::Float);
    sinks = torch::stable::contiguous(*sinks), o.sinks = vector_of(*sinks);
  }
  o.cumulative_lengths = positions_of(op, "cu_seqlens", lengths.cu_seqlens, of_documents);
  o.key_begins = positions_of(op, "key_begins", lengths.key_begins, batch);
  o.key_ends = positions_of(op, "key_ends", lengths.key_ends, batch);
  return o;
}

void expect_type(const char* op, const char* name, const Tensor& t, const Tensor& q) {
  if (t.scalar_type() != q.scalar_type())
    fail(op, std::string(name) + " is of " + name_of(t.scalar_type()) + "; expected " + name_of(q.scalar_type()) +
                 ", as q");
}

two attention(Tensor q, Tensor k, Tensor v, maybe sinks, maybe lengths, maybe key_begins, maybe key_ends, double scale,
              bool causal, int64_t left, int64_t right, double softcap, int64_t offset) {
  const char* op = "attention";
  const heads in_q = heads_of(op, "q", q), in_k = heads_of(op, "k", k), in_v = heads_of(op, "v", v);
  expect_type(op, "k", k, q), expect_type(op, "v", v, q);
  const attention_options opt =
      options(op, q, sinks, {lengths, key_begins, key_ends}, {scale, softcap, causal, left, right, offset});
  Tensor o = token_major(q, q.size(0), q.size(1), q.size(2), v.size(3));
  Tensor lse = make(q, {q.size(0), q.size(1), q.size(2)}, wide(q));
  table("attention", in_q.of).products->attention(call(q), in_q, in_k, in_v, heads_of(o), vector_of(lse), opt);
  return {o, lse};
}

four attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, maybe sinks, maybe lengths,
                        maybe key_begins, maybe key_ends, double scale, bool causal, int64_t left, int64_t right,
                        double softcap, int64_t offset, bool need_dq, bool need_dk, bool need_dv, bool need_dsinks) {
  const char* op = "attention_backward";
  expect_like(op, "do", d_o, "o", o);
  const heads up = heads_of(op, "do", d_o);
  const attention_saved saved{heads_of(op, "q", q), heads_of(op, "k", k), heads_of(op, "v", v), heads_of(op, "o", o),
                              vector_of(lse)};
  const ScalarType of_sinks = sinks ? sinks->scalar_type() : ScalarType::Float;
  const attention_options opt =
      options(op, q, sinks, {lengths, key_begins, key_ends}, {scale, softcap, causal, left, right, offset});
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

const integer_kernels& integers_for(const char* op) { return *table(op, type::bf16).integers; }

Tensor matmul_int8_int2(Tensor a, Tensor packed) {
  const char* op = "matmul_int8_int2";
  expect_dims(op, "packed", packed, 2);
  const integers in_a = integers_of(op, "a", a, ScalarType::Char),
                 w = integers_of(op, "packed", packed, ScalarType::Byte);
  Tensor c = make(a, with_columns(a, packed.size(1)), ScalarType::Int);
  integers_for(op).matmul_int8_int2(call(a), in_a, w, integers_of(c));
  return c;
}

Tensor pack_weights(Tensor weight) {
  const char* op = "pack_weights";
  expect_dims(op, "weight", weight, 2);
  const integers w = integers_of(op, "weight", weight, ScalarType::Char);
  Tensor packed = make(weight, {(weight.size(0) + 3) / 4, weight.size(1)}, ScalarType::Byte);
  integers_for(op).pack_weights(call(weight), w, integers_of(packed));
  return packed;
}

Tensor unpack_weights(Tensor packed, int64_t rows) {
  const char* op = "unpack_weights";
  expect_dims(op, "packed", packed, 2);
  if (rows < 0) fail(op, "rows is " + std::to_string(rows) + "; expected at least 0");
  const integers from = integers_of(op, "packed", packed, ScalarType::Byte);
  Tensor w = make(packed, {rows, packed.size(1)}, ScalarType::Char);
  integers_for(op).unpack_weights(call(packed), from, integers_of(w));
  return w;
}

}  // namespace
}  // namespace tigon_torch

STABLE_TORCH_LIBRARY_FRAGMENT(tigon, m) {
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? cu_seqlens, Tensor? key_begins,"
      " Tensor? key_ends, float scale, bool causal, int window_left, int window_right, float softcap, int q_offset)"
      " -> (Tensor, Tensor)");
  m.def(
      "attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? sinks,"
      " Tensor? cu_seqlens, Tensor? key_begins, Tensor? key_ends, float scale, bool causal, int window_left,"
      " int window_right, float softcap, int q_offset, bool need_dq, bool need_dk, bool need_dv, bool need_dsinks)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def("linear_backward(Tensor dy, Tensor x, Tensor weight, bool need_dx, bool need_dw) -> (Tensor, Tensor)");
  m.def("matmul_int8_int2(Tensor a, Tensor packed) -> Tensor");
  m.def("pack_weights(Tensor weight) -> Tensor");
  m.def("unpack_weights(Tensor packed, int rows) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(tigon, CPU, m) {
  using namespace tigon_torch;
  m.impl("attention", TORCH_BOX(&attention));
  m.impl("attention_backward", TORCH_BOX(&attention_backward));
  m.impl("linear", TORCH_BOX(&linear));
  m.impl("linear_backward", TORCH_BOX(&linear_backward));
  m.impl("matmul_int8_int2", TORCH_BOX(&matmul_int8_int2));
  m.impl("pack_weights", TORCH_BOX(&pack_weights));
  m.impl("unpack_weights", TORCH_BOX(&unpack_weights));
}

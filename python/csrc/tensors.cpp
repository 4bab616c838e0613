#include "tensors.hpp"

namespace tigon_torch {
namespace {

/// The distance of rows, or -1 where they have no common one.
int64_t row_stride(const Tensor& t) {
  const int64_t dims = t.dim(), cols = t.size(dims - 1);
  if (cols > 1 && t.stride(dims - 1) != 1) return -1;
  int64_t stride = cols, rows = 1;  // of the dimensions that have been looked at
  for (int64_t d = dims - 2; d >= 0; --d) {
    if (t.size(d) == 1) continue;
    if (rows == 1)
      stride = t.stride(d);
    else if (t.stride(d) != rows * stride)
      return -1;
    rows *= t.size(d);
  }
  return stride < cols ? -1 : stride;
}

matrix as_matrix(type of, const Tensor& t) {
  const int64_t cols = t.size(t.dim() - 1);
  const int64_t rows = cols == 0 ? 0 : t.numel() / cols;
  return {t.data_ptr(), of, size(rows), size(cols), size(t.numel() == 0 ? cols : row_stride(t))};
}

heads as_heads(type of, const Tensor& t) {
  return {t.data_ptr(),      of,
          size(t.size(0)),   size(t.size(1)),
          size(t.size(2)),   size(t.size(3)),
          size(t.stride(0)), size(t.stride(1)),
          size(t.stride(2))};
}

}  // namespace

Tensor make(const Tensor& like, std::vector<int64_t> s, std::optional<ScalarType> of) {
  Tensor made = torch::stable::new_empty(like, s, of);
  prepare(made);
  return made;
}

type real_type_of(const char* op, const char* name, const Tensor& t) {
  const type of = type_of(op, name, t);
  if (of == type::i32 || of == type::i64)
    fail(op, std::string(name) + " is of " + name_of(t.scalar_type()) + "; expected f32, bf16, f16 or f64");
  expect_here(op, name, t);
  return of;
}

matrix rows_of(const char* op, const char* name, Tensor& t) {
  const type of = real_type_of(op, name, t);
  if (t.dim() == 0) fail(op, std::string(name) + " is a number; expected at least one dimension");
  if (t.numel() != 0 && row_stride(t) < 0) t = torch::stable::contiguous(t);
  return as_matrix(of, t);
}
matrix rows_of(const Tensor& made) { return as_matrix(type_of("tigon", "result", made), made); }

integers integers_of(const Tensor& t) {
  int64_t rows = 1;  // also without columns
  for (const int64_t n : leading(t)) rows *= n;
  const int64_t cols = t.size(t.dim() - 1);
  return {t.data_ptr(), size(rows), size(cols), size(t.numel() == 0 ? cols : row_stride(t))};
}
integers integers_of(const char* op, const char* name, Tensor& t, ScalarType of) {
  if (t.scalar_type() != of)
    fail(op, std::string(name) + " is of " + name_of(t.scalar_type()) + "; expected " + name_of(of));
  expect_here(op, name, t);
  if (t.dim() == 0) fail(op, std::string(name) + " is a number; expected at least one dimension");
  if (t.numel() != 0 && row_stride(t) < 0) t = torch::stable::contiguous(t);
  return integers_of(t);
}

ScalarType type_of_parameters(const Tensor& x, const maybe& w, const maybe& b) {
  const auto fits = [&](const maybe& t) { return !t || t->scalar_type() == x.scalar_type(); };
  return TIGON_TORCH_CUDA && (w || b) && fits(w) && fits(b) ? x.scalar_type() : wide(x);
}

vector vector_in(ScalarType to, const char* op, const char* name, maybe& t, const Tensor& like) {
  if (!t) return {};
  expect_dims(op, name, *t, 1);
  real_type_of(op, name, *t);
  if (t->scalar_type() == ScalarType::Double && to != ScalarType::Double)
    fail(op, std::string(name) + " is of f64; expected f32, bf16 or f16 beside " + name_of(like.scalar_type()));
  if (t->scalar_type() != to) t = torch::stable::to(*t, to);
  if (!t->is_contiguous()) t = torch::stable::contiguous(*t);
  return vector_of(*t);
}
vector vector_of(const Tensor& made) { return {made.data_ptr(), type_of("tigon", "result", made), size(made.numel())}; }

heads heads_of(const char* op, const char* name, Tensor& t) {
  const type of = real_type_of(op, name, t);
  expect_dims(op, name, t, 4);
  bool copy = t.size(3) > 1 && t.stride(3) != 1;
  for (int64_t d = 0; d < 3; ++d) copy |= t.size(d) > 1 && t.stride(d) < t.size(3);
  if (copy && t.numel() != 0) t = torch::stable::contiguous(t);
  return as_heads(of, t);
}
heads heads_of(const Tensor& made) { return as_heads(type_of("tigon", "result", made), made); }

Tensor heads_like(const Tensor& t) {
  Tensor made = torch::stable::empty_like(t);
  return made.stride(3) == 1 ? made : make(t, sizes(t));
}

Tensor token_major(const Tensor& like, int64_t batch, int64_t heads, int64_t seq_len, int64_t head_dim) {
  return torch::stable::transpose(make(like, {batch, seq_len, heads, head_dim}), 1, 2);
}

}  // namespace tigon_torch

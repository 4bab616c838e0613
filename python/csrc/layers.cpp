#include "layers.hpp"

namespace tigon_torch {

layer_arguments layer_of(const char* op, Tensor x, Tensor w, maybe bias) {
  layer_arguments a{x, w, bias, {}};
  a.layer.x = rows_of(op, "x", a.x);
  expect_dims(op, "weight", a.w, 2);
  a.layer.w = rows_of(op, "weight", a.w);
  if (a.w.scalar_type() != a.x.scalar_type())
    fail(op, "weight is of " + name_of(a.w.scalar_type()) + "; expected " + name_of(a.x.scalar_type()) + ", as x");
  if (a.bias) {
    expect_dims(op, "bias", *a.bias, 1);
    real_type_of(op, "bias", *a.bias);
    if (a.bias->scalar_type() != a.x.scalar_type()) a.bias = torch::stable::to(*a.bias, a.x.scalar_type());
    a.bias = torch::stable::contiguous(*a.bias), a.layer.bias = vector_of(*a.bias);
  }
  return a;
}

made_gradients::made_gradients(const layer_arguments& a, bool need_dx, bool need_dw, bool need_db)
    : dx(need_dx ? make(a.x, sizes(a.x)) : nothing(a.x)),
      dw(need_dw ? make(a.x, sizes(a.w)) : nothing(a.x)),
      db(need_db && a.bias ? make(a.x, sizes(*a.bias)) : nothing(a.x)) {
  if (need_dx) to.dx = rows_of(dx);
  if (need_dw) to.dw = rows_of(dw);
  if (need_db && a.bias) to.dbias = vector_of(db);
}

Tensor made_gradients::bias_gradient(const maybe& bias) const {
  return bias && bias->scalar_type() != db.scalar_type() ? torch::stable::to(db, bias->scalar_type()) : db;
}

void make_ids(const char* op, const char* name, Tensor& ids) {
  expect_here(op, name, ids);
  if (ids.scalar_type() != ScalarType::Long) {
    if (ids.scalar_type() != ScalarType::Int)
      fail(op, std::string(name) + " is of " + name_of(ids.scalar_type()) + "; expected i64 or i32");
    ids = torch::stable::to(ids, ScalarType::Long);
  }
  ids = torch::stable::contiguous(ids);
}

vector labels_of(const char* op, const char* name, Tensor& labels, const Tensor& x) {
  make_ids(op, name, labels);
  if (sizes(labels) != leading(x))
    fail(op, std::string(name) + " is " + text(sizes(labels)) + "; expected " + text(leading(x)) + ", one a row");
  return vector_of(labels);
}

vector upstream_of(Tensor& upstream, const Tensor& x) {
  if (upstream.scalar_type() != wide(x)) upstream = torch::stable::to(upstream, wide(x));
  upstream = torch::stable::contiguous(upstream);
  return vector_of(upstream);
}

}  // namespace tigon_torch

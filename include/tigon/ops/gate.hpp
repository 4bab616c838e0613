// What the gated activations share: what backward asks for.
#ifndef TIGON_OPS_GATE_HPP
#define TIGON_OPS_GATE_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/rows/row.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Shapes and aliasing of a gate's backward.
template <class T>
void expect_gate_gradients(const expects& expect, in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da,
                           matrix_view<T> db) {
  expect.memory("da", da);
  expect.matrix("dc", dc, da.rows, da.cols);
  expect.matrix("a", a, da.rows, da.cols);
  expect.matrix("b", b, da.rows, da.cols);
  expect.matrix("db", db, da.rows, da.cols);
  expect.same_or_disjoint("da", da, "dc", dc);
  expect.same_or_disjoint("da", da, "a", a);
  expect.same_or_disjoint("da", da, "b", b);
  expect.same_or_disjoint("db", db, "dc", dc);
  expect.same_or_disjoint("db", db, "a", a);
  expect.same_or_disjoint("db", db, "b", b);
  expect.disjoint("da", da, "db", db);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_GATE_HPP

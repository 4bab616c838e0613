// What the gated activations share: what backward asks for.
#ifndef TIGON_OPS_GATE_HPP
#define TIGON_OPS_GATE_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/rows/row.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Shapes and aliasing of a gate's backward.
template <class T>
void expect_gate_gradients(std::string_view op, in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da,
                           matrix_view<T> db) {
  arguments args(op);
  args.in("dc", dc, da.rows, da.cols);
  args.in("a", a, da.rows, da.cols);
  args.in("b", b, da.rows, da.cols);
  args.out("db", db, da.rows, da.cols).may_be("dc", "a", "b");
  args.out("da", da).may_be("dc", "a", "b");
  args.check();
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_GATE_HPP

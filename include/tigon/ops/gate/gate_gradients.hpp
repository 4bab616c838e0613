// What the gated activations share: the checks of backward.
#ifndef TIGON_OPS_GATE_GATE_GRADIENTS_HPP
#define TIGON_OPS_GATE_GATE_GRADIENTS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/rows/row.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Options of a gate whose operands have the type of the sums and whose results will be stored as T: what they say of
/// rounding means T.
template <element T, class Options>
struct gate_of_stored : Options {};

/// Shapes and aliasing of a gate's backward.
template <class T>
void expect_gate_gradients(std::string_view op, in_matrix<T> dy, in_matrix<T> gate, in_matrix<T> up,
                           matrix_view<T> dgate, matrix_view<T> dup) {
  arguments args(op);
  args.in("dy", dy, dgate.rows, dgate.cols);
  args.in("gate", gate, dgate.rows, dgate.cols);
  args.in("up", up, dgate.rows, dgate.cols);
  args.out("dup", dup, dgate.rows, dgate.cols).may_be("dy", "gate", "up");
  args.out("dgate", dgate).may_be("dy", "gate", "up");
  args.check();
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_GATE_GATE_GRADIENTS_HPP

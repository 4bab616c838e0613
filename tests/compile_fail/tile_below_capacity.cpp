// A chip whose buffer is too small for the smallest tile of an operator refuses that operator.
// expect: tigon: the smallest tile that this operator works on exceeds the backend's tile_capacity_bits
#include <tigon/backends/ascend/backend.hpp>

namespace tigon::backends {
struct tiny : ascend {
  using parent = ascend;
  static constexpr backend_info info{"tiny", {device::npu}};
  using overrides = op_list<>;
#ifdef SHOULD_NOT_COMPILE
  static constexpr std::size_t tile_capacity_bits = 4 * 8192;
#else
  static constexpr std::size_t tile_capacity_bits = 8 * 8192;
#endif
};
}  // namespace tigon::backends

void use(tigon::matrix_view<float> x) { tigon::swiglu_backward<tigon::backends::tiny>(x, x, x, x, x); }

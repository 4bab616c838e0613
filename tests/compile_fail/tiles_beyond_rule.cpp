// A rule that counts fewer live tiles than its kernel has gives them more room than there is.
// expect: tigon: the tiles of this kernel take more of the unified buffer than the operator's tile_rule allows
#include <tigon/backends/ascend/backend.hpp>

namespace tigon::backends {
struct careless : ascend {
  using parent = ascend;
  static constexpr backend_info info{"careless", {device::npu}};
  using overrides = op_list<>;
};
}  // namespace tigon::backends

template <>
struct tigon::tile_rule<tigon::op::swiglu, tigon::tiling::pass::forward, tigon::backends::careless> {
#ifdef SHOULD_NOT_COMPILE
  static constexpr tiling::rule value{.tiles = { 1 }};
#else
  static constexpr tiling::rule value{.tiles = {3}};
#endif
};

void use(tigon::matrix_view<float> x) { tigon::swiglu_forward<tigon::backends::careless>(x, x, x); }

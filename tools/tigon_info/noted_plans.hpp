// Which plans the loops of an operator read: every backend with a member `notes_plans_of`, an int, keeps a list. What
// is instantiated counts; nothing is run.
//
//   struct noting : tigon::backends::highway { static constexpr int notes_plans_of = 7; };
//   inline void unused() { tigon::softmax_forward<noting>(x, y); }
#ifndef TIGON_TOOLS_TIGON_INFO_NOTED_PLANS_HPP
#define TIGON_TOOLS_TIGON_INFO_NOTED_PLANS_HPP

#include <tigon/rows/lanes/schedule.hpp>
#include <vector>

struct noted_shape {
  int by;
  tigon::row_shape shape;
};
/// In no order.
inline std::vector<noted_shape>& noted_shapes() {
  static std::vector<noted_shape> shapes;
  return shapes;
}
template <int By, tigon::row_shape Shape>
struct note {
  static inline const bool made = (noted_shapes().push_back({By, Shape}), true);
};

namespace tigon::simd {
inline namespace TIGON_ABI {
template <class B, row_shape Shape>
  requires(B::notes_plans_of >= 0)
inline constexpr auto plan_of<B, Shape> = [] {
  (void)&note<B::notes_plans_of, Shape>::made;  // names it, so that it is made before main
  return plan_for<Shape.pass>(B::row.cpu, Shape);
}();
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_TOOLS_TIGON_INFO_NOTED_PLANS_HPP

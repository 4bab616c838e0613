// R3: a list that equals the parent's may be an inherited one. A backend that names itself in `self` states its own,
// so a kernel that it lists and lacks is not taken from the parent.
// expect: tigon: this backend lists the operator in `overrides`, but no kernel<Op, Backend> is visible
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
  using overrides = tigon::op_list<tigon::op::rms_norm>;
};

template <>
struct tigon::kernel<tigon::op::rms_norm, acme> {
  template <class A>
  using saved = std::span<A>;
  template <tigon::backend B, tigon::element T>
  static void forward(auto&&...) {}
  template <tigon::backend B, tigon::element T>
  static void backward(auto&&...) {}
};

struct acme2 : acme {
#ifdef SHOULD_NOT_COMPILE
  using self = acme2;
#endif
  using parent = acme;
  static constexpr tigon::backend_info info{"acme2", {tigon::device::cpu}};
  using overrides = tigon::op_list<tigon::op::rms_norm>;
};

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward<acme2>(x, w, y, rstd);
}

// R3: a kernel that its backend does not list would be a surprise.
// expect: tigon: a kernel<Op, Backend> exists, but the backend does not list the operator in `overrides`
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

#ifdef SHOULD_NOT_COMPILE
using listed = tigon::op_list<>;
#else
using listed = tigon::op_list<tigon::op::rms_norm>;
#endif
struct acme : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
  using overrides = listed;
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

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward<acme>(x, w, y, rstd);
}

// R2: forward, backward and what is saved between them come from one provider.
// expect: tigon: a kernel supplies `saved`, `forward` and `backward` together, or declares `forward_only`
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
#ifndef SHOULD_NOT_COMPILE
  template <tigon::backend B, tigon::element T>
  static void backward(auto&&...) {}
#endif
};

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward<acme>(x, w, y, rstd);
}

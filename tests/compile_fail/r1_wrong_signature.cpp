// R1: a kernel is found by its name. One that cannot be called is an error, never a reason to use the parent's.
// expect: no matching function for call to
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
#ifdef SHOULD_NOT_COMPILE
  template <tigon::backend B, tigon::element T>
  static void forward(tigon::matrix_view<const T>, tigon::matrix_view<T>) {}
#else
  template <tigon::backend B, tigon::element T>
  static void forward(auto&&...) {}
#endif
  template <tigon::backend B, tigon::element T>
  static void backward(auto&&...) {}
};

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward<acme>(x, w, y, rstd);
}

// A type that restates neither `info` nor `parent` needs a base that says who it is; otherwise it would silently take
// the kernels of the base's parent.
// expect: tigon: this backend lists the operator in `overrides`, but no kernel<Op, Backend> is visible
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
#ifndef SHOULD_NOT_COMPILE
  using self = acme;
#endif
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

struct tuned : acme {
  static constexpr tigon::row_tuning row{.unroll = 1};
};

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward<tuned>(x, w, y, rstd);
}

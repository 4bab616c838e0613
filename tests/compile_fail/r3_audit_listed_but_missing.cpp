// R3: audit finds a listed operator without a kernel before anybody calls it.
// expect: tigon: this backend lists the operator in `overrides`, but no kernel<Op, Backend> is visible
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
  using overrides = tigon::op_list<tigon::op::rms_norm>;
};

#ifndef SHOULD_NOT_COMPILE
template <>
struct tigon::kernel<tigon::op::rms_norm, acme> {
  template <class A>
  using saved = std::span<A>;
  template <tigon::backend B, tigon::element T>
  static void forward(auto&&...) {}
  template <tigon::backend B, tigon::element T>
  static void backward(auto&&...) {}
};
#endif

static_assert(tigon::audit<acme>());

// R3: who has a kernel of the inherited list owns that list, and has to have the others or to shorten it.
// expect: tigon: this backend lists the operator in `overrides`, but no kernel<Op, Backend> is visible
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>

struct acme : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
  using overrides = tigon::op_list<tigon::op::rms_norm, tigon::op::softmax>;
};
struct acme2 : acme {
  using parent = acme;
  static constexpr tigon::backend_info info{"acme2", {tigon::device::cpu}};
#ifndef SHOULD_NOT_COMPILE
  using overrides = tigon::op_list<tigon::op::softmax>;
#endif
};

struct forward_alone {
  using forward_only = void;
  template <tigon::backend B, tigon::element T>
  static void forward(auto&&...) {}
};
template <>
struct tigon::kernel<tigon::op::rms_norm, acme> : forward_alone {};
template <>
struct tigon::kernel<tigon::op::softmax, acme> : forward_alone {};
template <>
struct tigon::kernel<tigon::op::softmax, acme2> : forward_alone {};

static_assert(tigon::audit<acme>() && tigon::audit<acme2>(tigon::op_list<tigon::op::rms_norm, tigon::op::softmax>{}));

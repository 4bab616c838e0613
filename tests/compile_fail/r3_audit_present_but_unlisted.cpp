// R3: given the operators there are, audit finds a kernel that its backend does not list.
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

static_assert(tigon::audit<acme>(tigon::op_list<tigon::op::rms_norm>{}));

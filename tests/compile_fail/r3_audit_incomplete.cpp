// R3: audit finds an incomplete kernel.
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
#ifndef SHOULD_NOT_COMPILE
  using forward_only = void;
#endif
  template <tigon::backend B, tigon::element T>
  static void forward(auto&&...) {}
};

static_assert(tigon::audit<acme>());

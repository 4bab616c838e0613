// A door of a device that has no kernel for the operator, and does not list it as one of row programs alone.
// expect: tigon: the kernel of this operator is written for memory that the host reads, and that of the chosen backend is
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
  using self = acme;
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
  static constexpr bool host_memory = false;
#ifdef SHOULD_NOT_COMPILE
  using shared = tigon::op_list<>;
#else
  using shared = tigon::op_list<tigon::op::rms_norm>;
#endif
};

using chosen = tigon::kernel_for<tigon::op::rms_norm, acme>;

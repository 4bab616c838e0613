// The norm of all gradients as a number of the host, where the gradients are in another memory.
// expect: tigon: the norm of gradients is in the memory of this backend, which the host does not read
// flags: -DTIGON_BACKEND=generic
#include <array>
#include <tigon/ops/adamw.hpp>

struct acme : tigon::backends::generic {
  using self = acme;
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
#ifdef SHOULD_NOT_COMPILE
  static constexpr bool host_memory = false;
#endif
};

double norm(std::array<tigon::adamw_parameter<float>, 1> list) { return tigon::adamw_norm<acme>(list); }

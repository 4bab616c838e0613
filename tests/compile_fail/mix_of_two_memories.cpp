// A backend of a device would be given data of the host.
// expect: tigon: a mix takes an operator from a backend whose data are in another memory (host_memory)
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/softmax.hpp>

namespace op = tigon::op;

struct acme : tigon::backends::generic {
  using self = acme;
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
#ifdef SHOULD_NOT_COMPILE
  static constexpr bool host_memory = false;
#endif
  using shared = tigon::op_list<op::softmax>;
};

using B = tigon::mix<tigon::backends::generic, tigon::from<acme, op::softmax>>;
constexpr auto name = B::info.name;

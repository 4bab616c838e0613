// Backends that run nowhere together.
// expect: tigon: the backends of a mix have no device in common
// flags: -DTIGON_BACKEND=generic
#include <tigon/backends/eigen/backend.hpp>
#include <tigon/ops/softmax.hpp>

namespace tb = tigon::backends;
namespace op = tigon::op;
struct no_backend {};
struct other_device : tb::generic {
  using parent = tb::generic;
  static constexpr tigon::backend_info info{"other_device", {tigon::device::gpu}};
};
struct vendors_op {
  static constexpr std::string_view name = "vendors_op";
};

#ifdef SHOULD_NOT_COMPILE
using B = tigon::mix<tb::generic, tigon::from<other_device, op::softmax>>;
#else
using B = tigon::mix<tb::generic, tigon::from<tb::eigen, op::softmax>>;
#endif

constexpr auto provided = tigon::coverage<B>(tigon::op_list<op::softmax, vendors_op>{});

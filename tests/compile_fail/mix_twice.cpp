// An operator that is taken from two backends.
// expect: tigon: a mix takes every operator from one backend
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
using B = tigon::mix<tb::eigen, tigon::from<tb::generic, op::softmax>, tigon::from<tb::eigen, op::softmax>>;
#else
using B = tigon::mix<tb::eigen, tigon::from<tb::generic, op::softmax>>;
#endif

constexpr auto provided = tigon::coverage<B>(tigon::op_list<op::softmax, vendors_op>{});

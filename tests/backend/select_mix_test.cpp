// A choice for single operators, without touching a call: the default backend becomes a mix.
#define TIGON_BACKEND highway
#define TIGON_BACKEND_HEADER "backend/own_softmax.hpp"
#define TIGON_BACKEND_OF_softmax bolt
#define TIGON_BACKEND_OF_rms_norm acme
#define TIGON_BACKEND_OF_rope
#define TIGON_BACKEND_OF_dyt highway
#include <gtest/gtest.h>

#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>

#include "own_softmax.hpp"

namespace {

namespace tb = tigon::backends;
namespace op = tigon::op;

// What is set to nothing, or to the backend itself, is no choice. The order is that of TIGON_OPERATORS.
static_assert(
    std::same_as<tigon::default_backend,
                 tigon::mix<tb::highway, tigon::from<tb::acme, op::rms_norm>, tigon::from<tb::bolt, op::softmax>>>);

TEST(SelectMix, CallsStayAsTheyAre) {
  calls().clear();
  std::vector<float> x(2 * 1003), y(x.size()), w(1003, 1), rstd(2);
  const auto view = [](std::vector<float>& v) { return tigon::matrix_view<float>(v.data(), 2, 1003); };
  tigon::rms_norm_forward(view(x), w, view(y), rstd);
  EXPECT_EQ(calls(), std::vector<std::string>{"rms_norm forward acme_with_bolt"});
  calls().clear();
  tigon::softmax_forward(view(x), view(y));
  EXPECT_EQ(calls(), std::vector<std::string>{"softmax forward bolt_with_acme"});
}

TEST(SelectMix, IsShown) {
  EXPECT_EQ(tigon::default_backend_reason, "TIGON_BACKEND names it, with TIGON_BACKEND_OF_<op> for single operators");
  EXPECT_EQ(tigon::registered_backends.begin()->info.name, "highway_with_acme_bolt");
  const auto rows = tigon::coverage<tigon::default_backend>(tigon::op_list<op::rms_norm, op::softmax, op::gemm>{});
  EXPECT_EQ(rows[0].provider, "acme");
  EXPECT_EQ(rows[1].provider, "bolt");
  EXPECT_EQ(rows[2].provider, "highway");
}

}  // namespace

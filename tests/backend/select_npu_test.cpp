// A translation unit for another device: its default, and the template argument that wins over it.
#define TIGON_DEVICE npu
#include <gtest/gtest.h>

#include <tigon/backends/xsimd/backend.hpp>
#include <tigon/ops/rms_norm.hpp>

namespace {

namespace tb = tigon::backends;

struct norm {
  std::vector<float> x = std::vector<float>(2 * 4, 2), y = std::vector<float>(8), w = std::vector<float>(4, 1),
                     rstd = std::vector<float>(2);
};

TEST(SelectNpu, TheFirstRegisteredDefault) {
  static_assert(std::same_as<tigon::default_backend, tb::ascend>);
  static_assert(std::same_as<tigon::provider_t<tigon::op::rms_norm, tigon::default_backend>, tb::ascend>);
  EXPECT_EQ(tigon::default_backend_reason, "the first registered backend that is a default on device npu");
  norm n;
  tigon::rms_norm_forward(tigon::matrix_view<const float>(n.x.data(), 2, 4), n.w, tigon::matrix_view(n.y.data(), 2, 4),
                          n.rstd);
  EXPECT_NEAR(n.y[7], 1, 1e-6);
}

TEST(SelectNpu, TheTemplateArgumentWins) {
  static_assert(!tb::xsimd::info.devices.contains(tigon::device::npu));
  static_assert(std::same_as<tigon::provider_t<tigon::op::rms_norm, tb::generic>, tb::generic>);
  norm on_cpu, always;
  tigon::rms_norm_forward<tb::xsimd>(tigon::matrix_view<const float>(on_cpu.x.data(), 2, 4), on_cpu.w,
                                     tigon::matrix_view(on_cpu.y.data(), 2, 4), on_cpu.rstd);
  tigon::rms_norm_forward<tb::generic>(tigon::matrix_view<const float>(always.x.data(), 2, 4), always.w,
                                       tigon::matrix_view(always.y.data(), 2, 4), always.rstd);
  EXPECT_NEAR(on_cpu.y[7], 1, 1e-6);
  EXPECT_NEAR(always.y[7], 1, 1e-6);
}

}  // namespace

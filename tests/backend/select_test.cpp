// The default backend of a translation unit may be one that the library has never heard of.
#define TIGON_BACKEND acme
#define TIGON_BACKEND_HEADER "backend/own_backend.hpp"
#include <gtest/gtest.h>

#include <tigon/ops/rms_norm.hpp>

#include "own_backend.hpp"

namespace {

TEST(Select, ADoorWithoutABackendUsesTheOneThatWasNamed) {
  static_assert(std::same_as<tigon::default_backend, tigon::backends::acme>);
  calls().clear();
  std::vector<float> x(8, 2), y(8), w(4, 1), rstd(2);
  tigon::rms_norm_forward(tigon::matrix_view<const float>(x.data(), 2, 4), w, tigon::matrix_view(y.data(), 2, 4), rstd);
  EXPECT_EQ(calls(), std::vector<std::string>{"rms_norm forward acme"});
  tigon::rms_norm_forward<tigon::backends::generic>(tigon::matrix_view<const float>(x.data(), 2, 4), w,
                                                    tigon::matrix_view(y.data(), 2, 4), rstd);
  EXPECT_EQ(calls().size(), 1u) << "a backend that is named at the call wins";
}

TEST(Select, DevicesOfABackend) {
  constexpr tigon::backend_info info{"both", {tigon::device::cpu, tigon::device::npu}, {tigon::device::npu}};
  static_assert(info.devices.contains(tigon::device::cpu) && info.devices.contains(tigon::device::npu));
  static_assert(!info.default_devices.contains(tigon::device::cpu) && !info.default_devices.empty());
  EXPECT_EQ(tigon::device::npu.name, "npu");
}

TEST(Select, TheRegistryShowsTheDefaultOfOnesOwn) {
  const auto& first = *tigon::registered_backends.begin();
  EXPECT_EQ(first.info.name, "acme");
  EXPECT_TRUE(first.found);
  EXPECT_EQ(tigon::registered_backends.end() - tigon::registered_backends.begin(),
            static_cast<std::ptrdiff_t>(1 + std::size(tigon::library_backends)));
  EXPECT_EQ((&first)[1].info.name, tigon::library_backends[0].info.name);
}

}  // namespace

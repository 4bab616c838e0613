// The settings win over what a vendor says, for every backend, and are part of the symbols.
#define TIGON_TILE_CAPACITY_BITS 393216
#define TIGON_VECTOR_CORES 3
#include <gtest/gtest.h>

#include <string_view>
#include <tigon/backend/tiling.hpp>
#include <tigon/backends/generic/backend.hpp>

namespace {

struct polish;  // an operator
struct chip : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"chip", {tigon::device::npu}};
  static constexpr std::size_t tile_capacity_bits = 192 * 8192;
  static std::size_t query_tile_capacity_bits() { return 1; }
  static constexpr std::size_t query_vector_cores() { return 24; }
};

}  // namespace

template <>
struct tigon::tile_rule<polish, tigon::tiling::pass::forward, chip> {
  static constexpr tiling::rule value{.tiles = {6}, .floor = 256};
};

namespace {

TEST(CapacitySetting, Wins) {
  static_assert(tigon::tile_capacity_of<chip> == 393216 && tigon::vector_cores_of<chip> == 3);
  static_assert(tigon::tile_capacity_of<tigon::backends::generic> == 393216);
  static_assert(tigon::block_of<polish, tigon::tiling::pass::forward, chip, float>() == 1024);  // 4096 at 192 KiB
  EXPECT_EQ(tigon::tile_capacity_here<chip>(), 393216u);
  EXPECT_EQ(tigon::vector_cores_here<chip>(), 3u);
  tigon::expect_capacity<chip>();  // what the query says is not asked
}

TEST(CapacitySetting, IsInTheSymbols) {
  EXPECT_TRUE(std::string_view(TIGON_STRING(TIGON_ABI)).ends_with("_chip393216x3")) << TIGON_STRING(TIGON_ABI);
}

}  // namespace

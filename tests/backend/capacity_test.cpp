// Memory and cores of a chip: the vendor's query, else the type's constant, else a sentence. Settings: the next file;
// what is said while compiling: compile_fail.
#include <gtest/gtest.h>

#include <string>
#include <tigon/backend/tiling.hpp>
#include <tigon/backends/generic/backend.hpp>

namespace {

using tigon::tile_capacity_here;
using tigon::tile_capacity_of;
using tigon::vector_cores_here;
using tigon::vector_cores_of;

struct constant : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"constant", {tigon::device::npu}};
  static constexpr std::size_t tile_capacity_bits = 64 * 8192;
  static constexpr std::size_t vector_cores = 8;
};
/// The vendor's header knows the chip that the program is compiled for.
struct early : constant {
  using parent = constant;
  static constexpr tigon::backend_info info{"early", {tigon::device::npu}};
  static constexpr std::size_t query_tile_capacity_bits() { return 128 * 8192; }
  static constexpr std::size_t query_vector_cores() { return 24; }
};
/// It does not.
struct early_unknown : constant {
  using parent = constant;
  static constexpr tigon::backend_info info{"early_unknown", {tigon::device::npu}};
  static constexpr std::size_t query_tile_capacity_bits() { return 0; }
  static constexpr std::size_t query_vector_cores() { return 0; }
};

std::size_t bits_there = 0, cores_there = 0;
/// Its driver is asked when the program runs.
struct late : constant {
  using parent = constant;
  static constexpr tigon::backend_info info{"late", {tigon::device::npu}};
  static std::size_t query_tile_capacity_bits() { return bits_there; }
  static std::size_t query_vector_cores() { return cores_there; }
};
struct late_alone : late {
  using parent = late;
  static constexpr tigon::backend_info info{"late_alone", {tigon::device::npu}};
  static constexpr std::size_t tile_capacity_bits = 0;
  static constexpr std::size_t vector_cores = 0;
};

TEST(Capacity, WhileCompiling) {
  static_assert(tile_capacity_of<constant> == 64 * 8192 && vector_cores_of<constant> == 8);
  static_assert(tile_capacity_of<early> == 128 * 8192 && vector_cores_of<early> == 24);
  static_assert(tile_capacity_of<early_unknown> == 64 * 8192 && vector_cores_of<early_unknown> == 8);
  static_assert(tile_capacity_of<late> == 64 * 8192 && vector_cores_of<late> == 8);
  EXPECT_EQ(tile_capacity_here<early>(), 128u * 8192);
  EXPECT_EQ(vector_cores_here<early>(), 24u);
  EXPECT_EQ(tile_capacity_here<constant>(), 64u * 8192);
}

TEST(Capacity, WhenTheProgramRuns) {
  bits_there = 256 * 8192, cores_there = 30;
  EXPECT_EQ(tile_capacity_here<late>(), 256u * 8192);
  EXPECT_EQ(vector_cores_here<late>(), 30u);
  bits_there = cores_there = 0;
  EXPECT_EQ(tile_capacity_here<late>(), 64u * 8192);
  EXPECT_EQ(vector_cores_here<late>(), 8u);
}

template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const tigon::error& e) {
    EXPECT_EQ(e.code(), tigon::error_code::state);
    return e.what();
  }
  return "";
}

TEST(Capacity, ElseASentence) {
  bits_there = cores_there = 0;
  EXPECT_EQ(
      refusal([] { tile_capacity_here<late_alone>(); }),
      "tigon: backend late_alone: the memory for tiles of its chip is not known, its query has no answer; compile "
      "with -DTIGON_TILE_CAPACITY_BITS=<bits>");
  EXPECT_EQ(refusal([] { vector_cores_here<late_alone>(); }),
            "tigon: backend late_alone: the number of cores of its chip is not known, its query has no answer; compile "
            "with -DTIGON_VECTOR_CORES=<number>");
  bits_there = 1, cores_there = 1;
  EXPECT_EQ(tile_capacity_here<late_alone>() + vector_cores_here<late_alone>(), 2u);
}

TEST(Capacity, ASmallerChipIsRefused) {
  bits_there = 64 * 8192 - 1;
  EXPECT_EQ(
      refusal([] { tigon::expect_capacity<late>(); }),
      "tigon: backend late: its kernels are compiled for 524288 bits of memory for tiles, and this chip has 524287; "
      "compile with -DTIGON_TILE_CAPACITY_BITS=524287");
  bits_there = 64 * 8192;
  EXPECT_EQ(refusal([] { tigon::expect_capacity<late>(); }), "");
  EXPECT_EQ(refusal([] { tigon::expect_capacity<early>(); }), "");
}

}  // namespace

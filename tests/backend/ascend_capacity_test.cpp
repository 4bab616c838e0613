// A chip whose memory is queried when the program runs: a kernel that was compiled for more is refused.
#include "ascend_chips.hpp"

#include <tigon/ops/swiglu.hpp>

#include "support/throws.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

inline std::size_t bits_there = 0;
struct ascend_asked : ascend_192k {
  using parent = ascend_192k;
  static constexpr backend_info info{"ascend_asked", {device::npu}};
  static std::size_t query_tile_capacity_bits() { return bits_there; }
};
/// Its vendor knows the chip that the program is compiled for.
struct ascend_known : ascend_192k {
  using parent = ascend_192k;
  static constexpr backend_info info{"ascend_known", {device::npu}};
  static constexpr std::size_t query_tile_capacity_bits() { return 48 * 8192; }
  static constexpr std::size_t query_vector_cores() { return 2; }
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
namespace tb = tigon::backends;

TEST(ascend_capacity, a_smaller_chip_is_refused_before_the_first_write) {
  guarded_matrix<float> gate = random_matrix<float>({3, 100}, 1), up = random_matrix<float>({3, 100}, 2), y(3, 100),
                        expected(3, 100);
  y.clear();
  tb::bits_there = 191 * 8192;
  EXPECT_TIGON_ERROR(
      (tigon::swiglu_forward<tb::ascend_asked>(gate, up, y.view())), state,
      "backend ascend_asked: its kernels are compiled for 1572864 bits of memory for tiles, and this chip "
      "has 1564672",
      y);
  tigon::swiglu_forward<tb::highway>(gate, up, expected.view());
  for (const std::size_t bits : {192 * 8192, 1024 * 8192, 0}) {
    tb::bits_there = bits;
    y.clear();
    tigon::swiglu_forward<tb::ascend_asked>(gate, up, y.view());
    EXPECT_TRUE(close(y.f64(), expected.f64(), parity.of<float>()));
  }
}

TEST(ascend_capacity, a_constexpr_query_cuts_the_tiles) {
  guarded_matrix<float> gate = random_matrix<float>({64, 4096}, 1), up = random_matrix<float>({64, 4096}, 2),
                        y(64, 4096);
  audited run;
  tigon::swiglu_forward<tb::ascend_known>(gate, up, y.view());
  EXPECT_EQ(counting_ledger::total.capacity, 48u * 1024);
  EXPECT_EQ(counting_ledger::total.programs, 2u);
}

}  // namespace

// A query that is answered only when the program runs cuts no tile: with it a constant is needed, or a setting.
// expect: tigon: the memory of this chip for tiles is not known: state tile_capacity_bits in the backend or a constexpr query_tile_capacity_bits(), or compile with -DTIGON_TILE_CAPACITY_BITS=<bits>
#include <tigon/backend/capacity.hpp>
#include <tigon/backends/generic/backend.hpp>

struct chip : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"chip", {tigon::device::npu}};
  static std::size_t query_tile_capacity_bits();
#ifdef SHOULD_NOT_COMPILE
  static constexpr std::size_t tile_capacity_bits = 0;
#else
  static constexpr std::size_t tile_capacity_bits = 8192;
#endif
};

constexpr std::size_t of_chip = tigon::tile_capacity_of<chip>;

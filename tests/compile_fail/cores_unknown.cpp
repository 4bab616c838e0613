// The same of cores.
// expect: tigon: the number of cores of this chip is not known: state vector_cores in the backend or a constexpr query_vector_cores(), or compile with -DTIGON_VECTOR_CORES=<number>
#include <tigon/backend/capacity.hpp>
#include <tigon/backends/generic/backend.hpp>

struct chip : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"chip", {tigon::device::npu}};
  static std::size_t query_vector_cores();
#ifdef SHOULD_NOT_COMPILE
  static constexpr std::size_t vector_cores = 0;
#else
  static constexpr std::size_t vector_cores = 8192;
#endif
};

constexpr std::size_t of_chip = tigon::vector_cores_of<chip>;

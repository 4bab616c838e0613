// The number of rows of a sparse gradient, where its tokens are in another memory than the host's.
// expect: tigon: the number of rows of a sparse gradient is in the memory of this backend, which the host does not
// flags: -DTIGON_BACKEND=generic
#include <cstdint>
#include <span>
#include <tigon/ops/embedding.hpp>

struct acme : tigon::backends::generic {
  using self = acme;
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
#ifdef SHOULD_NOT_COMPILE
  static constexpr bool host_memory = false;
#endif
};

std::size_t rows(tigon::matrix_view<const float> dy, std::span<const std::int32_t> ids, std::span<std::int32_t> tokens,
                 tigon::matrix_view<float> drows) {
  return tigon::embedding_backward_sparse<acme>(dy, ids, 100, tokens, drows);
}

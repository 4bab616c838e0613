// What the parts of the check program share: it compares what the elementary steps compute with the operators.
#ifndef TIGON_BENCH_PLAIN_CHECK_HPP
#define TIGON_BENCH_PLAIN_CHECK_HPP

#include "plain/passes.hpp"
#include "support/matrix.hpp"

#include <span>

namespace tigon_bench {

/// Compares within a few roundings of the largest number, after both were computed.
void expect(const char* name, std::span<const float> got, std::span<const float> want);
inline void expect(const char* name, const matrix<float>& got, const matrix<float>& want) {
  expect(name, got.values.span(), want.values.span());
}
inline void expect(const char* name, const buffer<float>& got, const buffer<float>& want) {
  expect(name, got.span(), want.span());
}

inline tigon::vector_view<const float> in(const buffer<float>& v) { return {v.data(), v.size()}; }
inline tigon::vector_view<float> out(const buffer<float>& v) { return {v.data(), v.size()}; }

/// Two of a result: one for the operator, one for the steps.
template <class M>
struct both {
  M want, got;

  template <class... Extents>
  explicit both(Extents... e) : want(e...), got(e...) {}
  void agree(const char* name) const { expect(name, got, want); }
};
using both_matrices = both<matrix<float>>;
using both_buffers = both<buffer<float>>;

void check_rows(tigon::context& ctx);
void check_heads(tigon::context& ctx);
void check_products(tigon::context& ctx);
void check_losses(tigon::context& ctx);

}  // namespace tigon_bench

#endif  // TIGON_BENCH_PLAIN_CHECK_HPP

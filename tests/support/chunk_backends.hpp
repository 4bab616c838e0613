// Backends with other chunks of logits, as with a few rows at a time, and products that are counted.
#ifndef TIGON_TESTS_SUPPORT_CHUNK_BACKENDS_HPP
#define TIGON_TESTS_SUPPORT_CHUNK_BACKENDS_HPP

#include <tigon/gemm/gemm.hpp>

#include "backend_list.hpp"

namespace tigon::test {

/// Products of the backend `counting`, and the multiplications in them; of those that are logits, the largest result
/// and the rows of all.
struct product_counts {
  std::size_t products = 0, logit_rows = 0, logit_cols = 0, all_logit_rows = 0, multiplications = 0;
};
inline product_counts counted;

template <class Base, chunk_tuning C>
struct with_chunks : Base {
  static constexpr chunk_tuning chunk = C;
};
using liger = with_chunks<usual_backend, chunk_tuning::liger()>;

}  // namespace tigon::test

namespace tigon::backends {
inline namespace TIGON_ABI {

struct counting : test::usual_backend {
  using self = counting;
  using parent = test::usual_backend;
  static constexpr backend_info info{"counting", {device::cpu}};
  using overrides = op_list<op::gemm>;
};

using small_chunks = small_chunks_of<test::usual_backend, 1024>;
using small_generic = small_chunks_of<test::single_numbers, 1024>;
using small_counting = small_chunks_of<counting, 1024>;

}  // namespace TIGON_ABI
}  // namespace tigon::backends

template <>
struct tigon::kernel<tigon::op::gemm, tigon::backends::counting>
    : tigon::kernel<tigon::op::gemm, tigon::provider_t<tigon::op::gemm, tigon::test::usual_backend>> {
  using usual = kernel<op::gemm, provider_t<op::gemm, test::usual_backend>>;
  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    auto& counted = test::counted;
    ++counted.products;
    counted.multiplications += c.rows * c.cols * gemm_detail::cols_of(a, opt.a);
    if (opt.b == transpose::yes) {
      counted.logit_rows = std::max(counted.logit_rows, c.rows);
      counted.logit_cols = std::max(counted.logit_cols, c.cols);
      counted.all_logit_rows += c.rows;
    }
    usual::template forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }
};

#endif  // TIGON_TESTS_SUPPORT_CHUNK_BACKENDS_HPP

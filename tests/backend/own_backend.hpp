// Backends as a vendor would write them in a repository of its own: nothing in include/ knows of them.
#ifndef TIGON_TESTS_BACKEND_OWN_BACKEND_HPP
#define TIGON_TESTS_BACKEND_OWN_BACKEND_HPP

#include <string>
#include <string_view>
#include <tigon/backends/highway/backend.hpp>
#include <tigon/gemm/gemm.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <vector>

namespace tigon::backends {
inline namespace TIGON_ABI {

/// Differs from its parent in numbers only.
struct tuned : highway {
  using parent = highway;
  static constexpr backend_info info{"tuned", {device::cpu}};
  using overrides = op_list<>;
  static constexpr row_tuning row{.unroll = 1};
};

/// The same without a name: nothing is restated but the numbers.
struct my_cpu : highway {
  static constexpr row_tuning row{.unroll = 2};
  static constexpr std::size_t tile_capacity_bits = 32 * 8192;
};

/// Says its name, and inherits the list of overrides with the kernels.
struct renamed : highway {
  using parent = highway;
  static constexpr backend_info info{"renamed", {device::cpu}};
  static constexpr chunk_tuning chunk{.logits_bytes = 1 << 20};
};

/// Has its own RMSNorm and its own product.
struct acme : highway {
  using self = acme;
  using parent = highway;
  static constexpr backend_info info{"acme", {device::cpu}};
  using overrides = op_list<op::rms_norm, op::gemm>;
};

/// The next chip of that vendor: inherits both.
struct acme2 : acme {
  using parent = acme;
  static constexpr backend_info info{"acme2", {device::cpu}};
  using overrides = op_list<>;
  static constexpr row_tuning row{.unroll = 2};
};

/// An acme2 with other numbers.
struct my_acme2 : acme2 {
  using parent = acme2;
  static constexpr backend_info info{"my_acme2", {device::cpu}};
  static constexpr row_tuning row{.unroll = 1};
};

/// An acme with other numbers and no name of its own.
struct my_acme : acme {
  static constexpr row_tuning row{.unroll = 1};
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

/// What acme's kernels were called for: "rms_norm forward acme2".
inline std::vector<std::string>& calls() {
  static std::vector<std::string> seen;
  return seen;
}
template <class Op, class B>
void note(const char* direction) {
  calls().push_back(std::string(Op::name) + ' ' + direction + ' ' + std::string(B::info.name));
}

/// What acme saves is a type of its own.
template <class A>
struct acme_saved : std::span<A> {
  using std::span<A>::span;
};

template <>
struct tigon::kernel<tigon::op::rms_norm, tigon::backends::acme> {
  using generic = kernel<op::rms_norm, backends::generic>;
  template <class A>
  using saved = acme_saved<A>;

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> w, matrix_view<T> y, saved<accumulator_t<T>> rstd,
                      rms_norm_options opt, context& ctx) {
    note<op::rms_norm, B>("forward");
    generic::template forward<B, T>(x, w, y, rstd, opt, ctx);
  }
  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, saved<const accumulator_t<T>> rstd,
                       matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    note<op::rms_norm, B>("backward");
    generic::template backward<B, T>(dy, x, w, rstd, dx, dw, opt, ctx);
  }
};

template <>
struct tigon::kernel<tigon::op::gemm, tigon::backends::acme>
    : tigon::kernel<tigon::op::gemm, tigon::backends::highway> {
  using highway = kernel<op::gemm, backends::highway>;

  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    note<op::gemm, B>("forward");
    highway::template forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }
};

#endif  // TIGON_TESTS_BACKEND_OWN_BACKEND_HPP

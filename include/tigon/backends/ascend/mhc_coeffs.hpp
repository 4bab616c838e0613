// Coefficients of hyper-connections: sums of streams by row programs, Sinkhorn's iteration in the buffer, products by
// the parent.
#ifndef TIGON_BACKENDS_ASCEND_MHC_COEFFS_HPP
#define TIGON_BACKENDS_ASCEND_MHC_COEFFS_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/mhc_coeffs.hpp>

#include <type_traits>

namespace tigon {
namespace unified_buffer {
inline namespace TIGON_ABI {

/// A block of tokens, a token in each lane. Its numbers are copied to the lanes of its memory, and from there.
template <class Plan>
struct token_block {
  using A = typename Plan::accumulator;
  std::size_t i;
  vector_view<A> memory;
  vector_core<Plan>* core;  ///< null: the memory is not in the buffer

  TIGON_INLINE vector_view<A> scratch(std::size_t) const { return memory; }
  TIGON_INLINE void count_in(std::size_t bytes) const {
    if (core != nullptr) core->count_in(bytes);
  }
  TIGON_INLINE void count_out(std::size_t bytes) const {
    if (core != nullptr) core->count_out(bytes);
  }
};

/// Rows of mhc_coeffs. What a block of tokens computes on is in the buffer, or in the workspace where it is too large:
/// of very many streams, or of many steps that backward makes again.
template <backend B, tiling::pass P>
struct tokens_on_tiles : rows_on_tiles<B, op::mhc_coeffs, P> {
  using parent = B;
  using overrides = op_list<>;
  struct rows : rows_on_tiles<B, op::mhc_coeffs, P>::rows {
    template <class A, class F>
    static void for_rows(context& ctx, std::size_t blocks, std::size_t width, simd::row_loop, F fn) {
      using plan = unified_buffer::plan<B, op::mhc_coeffs, P, A>;
      const bool fits = vector_core<plan>::template holds<A>(width);
      const std::size_t stride = workspace::padded<A>(width);
      workspace::frame frame(ctx.workspace());
      A* const memory = fits ? nullptr : frame.template take<A>(ctx.executor().workers() * stride);
      for_programs<plan>(ctx, blocks, plan::programs, [=](auto& core, std::size_t, auto items) TIGON_LAMBDA {
        const vector_view<A> own{fits ? core.template take<A>(width) : memory + core.worker * stride, width};
        items([&](std::size_t i) TIGON_LAMBDA { fn(token_block<plan>{i, own, fits ? &core : nullptr}); });
      });
    }
  };
};

}  // namespace TIGON_ABI
}  // namespace unified_buffer

template <>
struct kernel<op::mhc_coeffs, backends::ascend> : kernel<op::mhc_coeffs, backends::generic> {
  using lanes = kernel<op::mhc_coeffs, backends::generic>;

  /// Kept steps of the iteration are made in their own memory, and read there.
  template <backend B, tiling::pass P>
  using on_tiles = std::conditional_t<B::hyper_connections.keep_history, ub::rows_on_tiles<B, op::mhc_coeffs, P>,
                                      ub::tokens_on_tiles<B, P>>;

  template <backend B, element T, class... Argument>
  static void forward(Argument&&... argument) {
    lanes::template forward_on<B, on_tiles<B, tiling::pass::forward>, T>(argument...);
  }
  template <backend B, element T, class... Argument>
  static void backward(Argument&&... argument) {
    constexpr tiling::pass pass = tiling::pass::backward;
    lanes::template backward_on<B, ub::rows_on_tiles<B, op::mhc_coeffs, pass>, T, on_tiles<B, pass>>(argument...);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_MHC_COEFFS_HPP

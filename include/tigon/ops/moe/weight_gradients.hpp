// What a mixture of experts does with a chunk beside its products with weights: rounding, and the gradients of weights.
#ifndef TIGON_OPS_MOE_WEIGHT_GRADIENTS_HPP
#define TIGON_OPS_MOE_WEIGHT_GRADIENTS_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/moe/biases.hpp>
#include <tigon/ops/moe/chunk.hpp>

#include <algorithm>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// m = m, rounded to T.
template <class B, element T, element A>
void round_plane(matrix_view<A> m, context& ctx) {
  for_rows<B, A>(ctx, m.rows, m.cols,
                 [=] TIGON_FN(auto row) { row.map(reads(m), writes(m), [](auto v) { return round_to<T>(v); }); });
}

/// The gradient of one matrix of an expert: a product for every chunk. That of a single chunk goes where it belongs,
/// others to sums in A.
template <class B, element T, element G>
class moe_weight_gradient {
 public:
  using A = accumulator_t<T>;
  using sums = chunk_sums<row_backend<B>, A>;
  static constexpr bool wide = std::same_as<G, A>;

  /// Most bytes for an expert of so many chunks.
  static std::size_t bytes(moe_shape s, std::size_t chunks) {
    return chunks > 1 ? sums::bytes(workspace::product(s.hidden, s.intermediate), chunks, wide) : 0;
  }
  moe_weight_gradient(workspace::frame& frame, matrix_view<G> to, std::size_t chunks, bool add)
      : to_(to), chunks_(chunks), add_(add) {
    if (to.data == nullptr || chunks <= 1) return;
    sums_ = sums(frame, to.rows * to.cols, chunks, wide);
    if constexpr (wide)
      sums_.begin(to.rows, to.cols, to, add);
    else
      sums_.begin(to.rows, to.cols, {}, add);
  }
  explicit operator bool() const { return to_.data != nullptr; }

  static std::size_t product_bytes(std::size_t rows, std::size_t cols, std::size_t depth, std::size_t workers) {
    return std::max(gemm_workspace<B, T, T, G>(rows, cols, depth, workers),
                    gemm_workspace<B, T, T, A>(rows, cols, depth, workers));
  }

  /// += out^T in
  void add_product(matrix_view<const T> out, matrix_view<const T> in, context& ctx) {
    if (to_.data == nullptr) return;
    if (chunks_ == 1) return product<G>(out, in, to_, add_, ctx);
    const auto at = sums_.next(ctx);
    product<A>(out, in, at.sum, at.more, ctx);
  }
  void finish(context& ctx) {
    if (to_.data == nullptr) return;
    if (chunks_ > 1) sums_.finish(to_, add_, ctx);
    if (chunks_ == 0 && !add_) clear_matrix<row_backend<B>>(to_, ctx);
  }

 private:
  template <element C>
  static void product(matrix_view<const T> out, matrix_view<const T> in, matrix_view<C> to, bool more, context& ctx) {
    kernel_for<op::gemm, B>::template forward<B, T, T, C>(out, {in}, in_vector<C>{}, to, no_epilogue{},
                                                          {.beta = more ? 1.0 : 0.0, .a = transpose::yes}, ctx);
  }

  matrix_view<G> to_;
  std::size_t chunks_;
  bool add_;
  sums sums_;
};

/// The gradients of all matrices and biases of an expert.
template <class B, element T, element G>
struct expert_gradients {
  moe_weight_gradient<B, T, G> gate, up, down;
  expert_bias_gradients<row_backend<B>, accumulator_t<T>, G> biases;

  expert_gradients(workspace::frame& frame, const expert<G>& to, std::size_t chunks, bool add)
      : gate(frame, to.gate, chunks, add),
        up(frame, to.up, chunks, add),
        down(frame, to.down, chunks, add),
        biases(frame, to, chunks, add) {}
  bool any_before_gate() const { return gate || biases.of_gate_up(); }
  void finish(context& ctx) { gate.finish(ctx), up.finish(ctx), down.finish(ctx), biases.finish(ctx); }
};

/// What backward reads of all tokens, and the gradients of the routing weights; and whether dx is wanted.
template <class T, class R>
struct moe_operands {
  matrix_view<const T> dy, x, values;
  matrix_view<const R> weights;
  matrix_view<R> dweights;
  bool dx;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_MOE_WEIGHT_GRADIENTS_HPP

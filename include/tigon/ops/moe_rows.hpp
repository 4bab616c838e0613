// What a mixture of experts does with the rows of a chunk between products, and the gradients of its weights.
#ifndef TIGON_OPS_MOE_ROWS_HPP
#define TIGON_OPS_MOE_ROWS_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/moe_chunk.hpp>

#include <algorithm>

namespace tigon {

namespace op {
/// Rows of tokens, gathered for the pairs of a chunk. A part of moe and expert_parallel_moe, without doors.
struct moe_gather {
  static constexpr std::string_view name = "moe_gather";
};
/// Rows of the pairs of a chunk, weighted and added to their tokens, and its gradients. As moe_gather.
struct moe_scatter {
  static constexpr std::string_view name = "moe_scatter";
};
}  // namespace op

template <>
struct kernel<op::moe_gather, backends::generic> {
  using forward_only = void;  ///< its gradient is a scatter without weights

  /// to[i] = from[token of pair i]
  template <backend B, element T>
  static void forward(matrix_view<const T> from, detail::moe_chunk c, matrix_view<T> to, context& ctx) {
    for_rows<B, accumulator_t<T>>(ctx, c.rows, to.cols, [=] TIGON_FN(auto row) {
      row.map(reads(vector_view<const T>{from.row(c.token(row.i)), row.cols}), writes(to), [](auto v) { return v; });
    });
  }
};

template <>
struct kernel<op::moe_scatter, backends::generic> {
  template <class>
  using saved = no_state;

  /// to[token of pair i] += weight of pair i * from[i], or += from[i] without weights: row after row. Pairs of one token
  /// follow each other, and belong to the worker of the first.
  template <backend B, element A, element R>
  static void forward(matrix_view<const A> from, detail::moe_chunk c, matrix_view<const R> weights, matrix_view<A> to,
                      context& ctx) {
    for_rows<B, A>(ctx, c.rows, to.cols, [=] TIGON_FN(auto row) {
      const std::size_t token = c.token(row.i);
      if (row.i != 0 && c.token(row.i - 1) == token) return;
      const vector_view<A> sum{to.row(token), row.cols};
      for (std::size_t i = row.i; i < c.rows && c.token(i) == token; ++i) {
        const A w = weights.data == nullptr ? A(1) : static_cast<A>(weights.row(token)[c.choice(i)]);
        row.map(reads(vector_view<const A>(sum), vector_view<const A>{from.row(i), row.cols}), writes(sum),
                [=](auto s, auto v) { return fma(v, decltype(v)(w), s); });
      }
    });
  }

  /// dweights of pair i = p[i] . a[i];   p[i] *= w, and weighted[i] = w a[i], which may be a.
  template <backend B, element T, element R>
  static void backward(matrix_view<accumulator_t<T>> p, matrix_view<const accumulator_t<T>> a, matrix_view<T> weighted,
                       detail::moe_chunk c, matrix_view<const R> weights, matrix_view<R> dweights, context& ctx) {
    using A = accumulator_t<T>;
    for_rows<B, A>(ctx, c.rows, p.cols, [=] TIGON_FN(auto row) {
      const std::size_t token = c.token(row.i), choice = c.choice(row.i);
      const A w = static_cast<A>(weights.row(token)[choice]);
      if (dweights.data != nullptr) {
        const A sum = row.sum(reads(p, a), [](auto v, auto act) { return v * act; });
        if (row.first()) dweights.row(token)[choice] = static_cast<R>(sum);
      }
      row.map(reads(p, a), writes(p, weighted), [=](auto v, auto act) {
        const decltype(v) factor(w);
        return pack{v * factor, act * factor};
      });
    });
  }
  /// weighted[i] = w a[i] alone.
  template <backend B, element T, element R>
  static void backward(matrix_view<const accumulator_t<T>> a, matrix_view<T> weighted, detail::moe_chunk c,
                       matrix_view<const R> weights, context& ctx) {
    using A = accumulator_t<T>;
    for_rows<B, A>(ctx, c.rows, a.cols, [=] TIGON_FN(auto row) {
      const A w = static_cast<A>(weights.row(c.token(row.i))[c.choice(row.i)]);
      row.map(reads(a), writes(weighted), [=](auto act) { return act * decltype(act)(w); });
    });
  }
};

}  // namespace tigon

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

/// The gradients of all matrices of an expert.
template <class B, element T, element G>
struct expert_gradients {
  moe_weight_gradient<B, T, G> gate, up, down;

  expert_gradients(workspace::frame& frame, const expert<G>& to, std::size_t chunks, bool add)
      : gate(frame, to.gate, chunks, add), up(frame, to.up, chunks, add), down(frame, to.down, chunks, add) {}
  void finish(context& ctx) { gate.finish(ctx), up.finish(ctx), down.finish(ctx); }
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

#endif  // TIGON_OPS_MOE_ROWS_HPP

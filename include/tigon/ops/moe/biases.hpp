// Biases of the experts of a mixture: in the type of the sums, what they add to gradients, and their own gradients.
#ifndef TIGON_OPS_MOE_BIASES_HPP
#define TIGON_OPS_MOE_BIASES_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/ops/moe/chunk.hpp>
#include <tigon/rows/row.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// gate and up as alternate columns, or added to those.
struct pair_program {
  template <class V>
  TIGON_INLINE pack<V, 2> map(V gate, V up) const {
    return {{gate, up}};
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(V gate, V up, V gate_before, V up_before) const {
    return {{gate_before + gate, up_before + up}};
  }
};

/// The biases of one expert in the type of the sums. Those that are absent have no memory.
template <class A>
struct expert_biases {
  vector_view<A> gate, up, down;

  static std::size_t bytes(moe_shape s) {
    return 2 * workspace::bytes_for<A>(s.intermediate) + workspace::bytes_for<A>(s.hidden);
  }
  template <class B, element W>
  static expert_biases of(workspace::frame& frame, const expert<const W>& e, context& ctx) {
    const auto vector = [&](std::size_t n) { return vector_view<A>{frame.template take<A>(n), n}; };
    const matrix_view<const W> both = e.gate_up_bias;
    expert_biases made;
    if (both.data != nullptr) {
      const std::size_t n = both.cols / 2;
      made.gate = vector(n), made.up = vector(n);
      if (e.layout == gate_layout::halves) {
        convert_matrix<B>(both.cols_from(0, n), as_row(made.gate), ctx);
        convert_matrix<B>(both.cols_from(n, n), as_row(made.up), ctx);
      } else {
        map_rows<B>(ctx, sum_program(), reads(pair_column<0>(both)), writes(as_row(made.gate)));
        map_rows<B>(ctx, sum_program(), reads(pair_column<1>(both)), writes(as_row(made.up)));
      }
    }
    if (e.down_bias.data == nullptr) return made;
    made.down = vector(e.down_bias.cols);
    convert_matrix<B>(e.down_bias, as_row(made.down), ctx);
    return made;
  }
};

/// A row of sums over the chunks of an expert, in A.
template <class B, class A>
class expert_bias_sum {
 public:
  static std::size_t bytes(std::size_t n, std::size_t chunks) {
    return workspace::bytes_for<A>(n) + chunk_sums<B, A>::bytes(n, chunks, true);
  }
  expert_bias_sum() = default;
  expert_bias_sum(workspace::frame& frame, std::size_t n, std::size_t chunks)
      : row_(frame.template take<A>(n), 1, n), sums_(frame, n, chunks, true) {
    sums_.begin(1, n, row_, false);
  }
  /// Where the sum over the next chunk goes.
  parameter_gradient<A> next(context& ctx) {
    const auto at = sums_.next(ctx);
    return {{at.sum.data, at.sum.cols}, at.more ? gradient::accumulate : gradient::overwrite};
  }
  matrix_view<const A> finish(std::size_t chunks, context& ctx) {
    if (chunks == 0)
      clear_matrix<B>(row_, ctx);
    else
      sums_.finish(row_, false, ctx);
    return row_;
  }

 private:
  matrix_view<A> row_;
  chunk_sums<B, A> sums_;
};

/// The gradients of the biases of an expert: sums over its pairs in A, rounded once.
template <class B, class A, element G>
class expert_bias_gradients {
 public:
  using sum = expert_bias_sum<B, A>;

  /// Most bytes for an expert of so many chunks, beside column_bytes() of a chunk.
  static std::size_t bytes(moe_shape s, std::size_t chunks) {
    return 2 * sum::bytes(s.intermediate, chunks) + sum::bytes(s.hidden, chunks);
  }
  static std::size_t column_bytes(moe_shape s, std::size_t rows) {
    return std::max(simd::partials_workspace<B, A>(rows, s.intermediate, 1),
                    simd::partials_workspace<B, A>(rows, s.hidden, 1));
  }
  expert_bias_gradients(workspace::frame& frame, const expert<G>& to, std::size_t chunks, bool add)
      : gate_up_(to.gate_up_bias), down_(to.down_bias), layout_(to.layout), chunks_(chunks), add_(add) {
    const std::size_t n = gate_up_.cols / 2;
    if (of_gate_up()) gate_sum_ = sum(frame, n, chunks), up_sum_ = sum(frame, n, chunks);
    if (down_.data != nullptr) down_sum_ = sum(frame, down_.cols, chunks);
  }
  bool of_gate_up() const { return gate_up_.data != nullptr; }

  /// Of dg and du of a chunk.
  void add_gate_up(matrix_view<const A> dgate, matrix_view<const A> dup, context& ctx) {
    if (!of_gate_up()) return;
    map_rows<B>(ctx, column_sum_program(), reads(dgate), writes(), adds_to(gate_sum_.next(ctx)));
    map_rows<B>(ctx, column_sum_program(), reads(dup), writes(), adds_to(up_sum_.next(ctx)));
  }
  /// Of the rows of dy of a chunk, times the weights of their pairs.
  template <element T, element R>
  void add_down(matrix_view<const T> dy, moe_chunk c, matrix_view<const R> weights, context& ctx) {
    if (down_.data == nullptr) return;
    for_rows<B, A>(ctx, c.rows, dy.cols, adds_to(down_sum_.next(ctx)), [=] TIGON_FN(auto row) {
      const A w = static_cast<A>(weights.row(c.token(row.i))[c.choice(row.i)]);
      const auto so_far = row.partial(0);
      row.map(reads(dy, so_far), writes(so_far), [=](auto d, auto s) { return fma(d, decltype(d)(w), s); });
    });
  }
  void finish(context& ctx) {
    if (chunks_ == 0 && add_) return;
    if (of_gate_up()) write(gate_sum_.finish(chunks_, ctx), up_sum_.finish(chunks_, ctx), ctx);
    if (down_.data != nullptr) round_sums<B, A>(down_, down_sum_.finish(chunks_, ctx), add_, ctx);
  }

 private:
  void write(matrix_view<const A> gate, matrix_view<const A> up, context& ctx) {
    const std::size_t n = gate.cols;
    const auto gate_before = pair_column<0>(matrix_view<const G>(gate_up_));
    const auto up_before = pair_column<1>(matrix_view<const G>(gate_up_));
    if (layout_ == gate_layout::halves) {
      round_sums<B, A>(gate_up_.cols_from(0, n), gate, add_, ctx);
      round_sums<B, A>(gate_up_.cols_from(n, n), up, add_, ctx);
    } else if (add_) {
      map_rows<B>(ctx, pair_program(), reads(gate, up, gate_before, up_before), writes(pair_columns<G>{gate_up_}));
    } else {
      map_rows<B>(ctx, pair_program(), reads(gate, up), writes(pair_columns<G>{gate_up_}));
    }
  }

  matrix_view<G> gate_up_, down_;
  gate_layout layout_;
  std::size_t chunks_;
  bool add_;
  sum gate_sum_, up_sum_, down_sum_;
};

/// to[i] = dy[i] . bias
template <class B, element T, class A>
void dot_with_bias(matrix_view<const T> dy, in_vector<A> bias, A* to, context& ctx) {
  for_rows<B, A>(ctx, dy.rows, dy.cols, [=] TIGON_FN(auto row) {
    const A sum = row.sum(reads(dy, bias), [](auto d, auto b) { return d * b; });
    if (row.first()) to[row.i] = sum;
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_MOE_BIASES_HPP

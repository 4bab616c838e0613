// A mixture of experts in chunks: the pairs of one expert that are computed at a time, and their scratch memory.
//
//   pair      a token and one of its choices;  position: its place in the order of op::moe_routing
//   chunk     positions of one expert, at most chunk_rows() of them
//   plane     a matrix of scratch memory with a row for each pair of a chunk
#ifndef TIGON_OPS_MOE_CHUNK_HPP
#define TIGON_OPS_MOE_CHUNK_HPP

#include <tigon/ops/mlp/sum_blocks.hpp>
#include <tigon/ops/moe/gather_scatter.hpp>
#include <tigon/ops/moe/moe_options.hpp>

#include <algorithm>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// The three matrices of one expert; gate and up are alternate rows of gate_up where that is interleaved. Its biases, a
/// row each: that of gate_up as it lies.
template <class E>
struct expert {
  matrix_view<E> gate, up, down, gate_up_bias, down_bias;
  gate_layout layout;

  static expert of(moe_weights<E> all, std::size_t index, moe_shape s, gate_layout layout) {
    const std::size_t n = s.intermediate;
    expert one{{}, {}, {}, {}, {}, layout};
    if (all.down.data != nullptr) one.down = all.down.rows_from(index * s.hidden, s.hidden);
    if (all.gate_up_bias.data != nullptr) one.gate_up_bias = all.gate_up_bias.rows_from(index, 1);
    if (all.down_bias.data != nullptr) one.down_bias = all.down_bias.rows_from(index, 1);
    if (all.gate_up.data == nullptr) return one;
    const matrix_view<E> both = all.gate_up.rows_from(index * 2 * n, 2 * n);
    if (layout == gate_layout::halves) {
      one.gate = both.rows_from(0, n), one.up = both.rows_from(n, n);
    } else {
      one.gate = {both.data, n, s.hidden, 2 * both.row_stride};
      one.up = {both.row(1), n, s.hidden, 2 * both.row_stride};
    }
    return one;
  }
};

/// Most pairs of a chunk: as many as B::chunk's bytes hold, and no fewer than its least rows; no more than 512, because
/// the rate of a product hardly grows beyond.
template <class B, class A>
constexpr std::size_t chunk_rows(moe_shape s) {
  constexpr std::size_t enough = 512;
  const std::size_t bytes =
      3 * workspace::product(s.hidden, sizeof(A)) + 4 * workspace::product(s.intermediate, sizeof(A));
  const std::size_t fitting = B::chunk.logits_bytes / std::max<std::size_t>(bytes, 1);
  const std::size_t most = std::clamp<std::size_t>(std::max<std::size_t>(fitting, B::chunk.least_rows), 1, enough);
  return std::min(most, workspace::product(s.tokens, s.choices));
}

/// All pairs in the order of op::moe_routing, cut into chunks of `most` or fewer.
struct moe_pairs {
  const std::int64_t *offsets, *scatter;
  moe_shape shape;
  std::size_t most;

  /// Of the two arrays.
  static constexpr std::size_t bytes(moe_shape s) {
    return workspace::bytes_for<std::int64_t>(s.experts == SIZE_MAX ? SIZE_MAX : s.experts + 1) +
           workspace::bytes_for<std::int64_t>(s.tokens, s.choices);
  }

  std::size_t first(std::size_t e) const { return static_cast<std::size_t>(offsets[e]); }
  std::size_t chunks(std::size_t e) const {
    const std::size_t count = first(e + 1) - first(e);
    return count == 0 ? 0 : gemm_detail::ceil_div(count, even_part(count, most));
  }
  /// f(chunk) for the chunks of an expert, in order.
  template <class F>
  void for_chunks(std::size_t e, F f) const {
    const std::size_t end = first(e + 1), rows = even_part(end - first(e), std::max<std::size_t>(most, 1));
    for (std::size_t p = first(e); p < end; p += rows)
      f(moe_chunk{scatter + p, std::min(rows, end - p), shape.choices, p});
  }
};

/// The planes of a pass, in the types in which they are stored (T) and computed (A). Where T is A, what a plane of T
/// holds is made in one of A.
template <class T>
struct moe_planes {
  using A = accumulator_t<T>;
  static constexpr bool wide = std::same_as<T, A>;
  matrix_view<T> x, dy;               // gathered rows
  matrix_view<A> gate, up, act, out;  // g, u, a; what is added to y or dx
  matrix_view<A> dact;                // p
  matrix_view<T> act_T, gate_T, up_T;

  /// take.template operator()<E>(cols): memory for a plane of E.
  template <class Take>
  static moe_planes of(moe_pass pass, moe_shape s, std::size_t rows, Take take) {
    const auto plane = [&]<class E>(matrix_view<E>& to, std::size_t cols) {
      to = {take.template operator()<E>(cols), rows, cols};
    };
    const bool forward = pass == moe_pass::forward || pass == moe_pass::inference;
    const std::size_t n = s.intermediate;
    moe_planes p;
    plane(p.x, s.hidden);
    plane(p.out, s.hidden);
    plane(p.gate, n);
    plane(p.up, n);
    plane(p.act, n);
    if (!wide) plane(p.act_T, n);
    if (forward) return p;
    plane(p.dy, s.hidden);
    plane(p.dact, n);
    if (!wide) plane(p.gate_T, n), plane(p.up_T, n);
    return p;
  }
  static moe_planes in(workspace::frame& frame, moe_pass pass, moe_shape s, std::size_t rows) {
    return of(pass, s, rows, [&]<class E>(std::size_t cols) { return frame.template take<E>(rows * cols); });
  }
  static std::size_t bytes(moe_pass pass, moe_shape s, std::size_t rows) {
    std::size_t sum = 0;
    (void)of(pass, s, rows, [&]<class E>(std::size_t cols) {
      sum += workspace::bytes_for<E>(rows, cols);
      return static_cast<E*>(nullptr);
    });
    return sum;
  }
  /// In the type of x: a, later w a; dg and du.
  matrix_view<T> activated() const {
    if constexpr (wide)
      return act;
    else
      return act_T;
  }
  matrix_view<T> dgate() const {
    if constexpr (wide)
      return gate;
    else
      return gate_T;
  }
  matrix_view<T> dup() const {
    if constexpr (wide)
      return up;
    else
      return up_T;
  }
  /// Those of a chunk of n pairs.
  moe_planes first(std::size_t n) const {
    moe_planes p = *this;
    p.x.rows = p.dy.rows = p.gate.rows = p.up.rows = p.act.rows = p.out.rows = p.dact.rows = n;
    p.act_T.rows = p.gate_T.rows = p.up_T.rows = n;
    return p;
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_MOE_CHUNK_HPP

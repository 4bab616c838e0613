// SwiGLU gate of gate and up in one buffer, forward and backward.
#ifndef TIGON_OPS_SWIGLU_FUSED_HPP
#define TIGON_OPS_SWIGLU_FUSED_HPP

#include <tigon/ops/swiglu.hpp>

namespace tigon {

/// Where gate and up lie in the one buffer that a projection of both leaves.
enum class gate_layout {
  halves,       ///< the gate in the first half of the columns, up in the second (Megatron, Phi-3)
  interleaved,  ///< the gate in even columns, up in odd ones (gpt-oss)
};

namespace op {
struct swiglu_fused {
  static constexpr std::string_view name = "swiglu_fused";
};
}  // namespace op

/// swiglu (see swiglu_options) of the gate a and the up projection b in one buffer.
///
///   halves:       a[i,j] = gate_up[i,j],    b[i,j] = gate_up[i,cols+j]
///   interleaved:  a[i,j] = gate_up[i,2j],   b[i,j] = gate_up[i,2j+1]
///   dgate_up has da where gate_up has a, db where it has b.
///
/// Formula    docs/formulas/swiglu.md.
/// Shapes     gate_up, dgate_up [rows, 2 cols]; c, dc [rows, cols]; both may be 0.
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  as swiglu.
/// Writes     c, dgate_up.
/// Aliasing   backward: dgate_up may be gate_up; a second backward would then read gradients. forward: none; for c over
///            the gate use swiglu_forward with two views.
/// Throws     tigon::error: shape, stride, alias, argument (as swiglu), workspace; before the first write.
/// Edges      as swiglu.
/// Max error  that of swiglu, and its bits (tests/ops/swiglu_fused_test.cpp).
using swiglu_fused_options = swiglu_options;

namespace detail {
inline namespace TIGON_ABI {

/// gate[j] = pairs[2 j], up[j] = pairs[2 j + 1], and back: by shuffles of 16 bytes, which every target has.
template <class A>
struct pair_shuffles {
  static constexpr std::size_t size = 16 / sizeof(A);
  typedef A lanes __attribute__((vector_size(16)));

  static TIGON_INLINE void split(const A* pairs, A* gate, A* up, std::size_t n) {
    std::size_t j = 0;
    for (; j + size <= n; j += size) {
      const lanes x = load(pairs + 2 * j), y = load(pairs + 2 * j + size);
      store(pick(x, y, [](std::size_t i) { return 2 * i; }), gate + j);
      store(pick(x, y, [](std::size_t i) { return 2 * i + 1; }), up + j);
    }
    for (; j < n; ++j) gate[j] = pairs[2 * j], up[j] = pairs[2 * j + 1];
  }
  static TIGON_INLINE void join(const A* gate, const A* up, A* pairs, std::size_t n) {
    std::size_t j = 0;
    for (; j + size <= n; j += size) {
      const lanes x = load(gate + j), y = load(up + j);
      store(pick(x, y, [](std::size_t i) { return i / 2 + i % 2 * size; }), pairs + 2 * j);
      store(pick(x, y, [](std::size_t i) { return (size + i) / 2 + i % 2 * size; }), pairs + 2 * j + size);
    }
    for (; j < n; ++j) pairs[2 * j] = gate[j], pairs[2 * j + 1] = up[j];
  }

  static TIGON_INLINE lanes load(const A* p) {
    lanes v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  static TIGON_INLINE void store(lanes v, A* p) { __builtin_memcpy(p, &v, sizeof(v)); }
  /// Lane i of the result is lane at(i) of x and y, one behind the other.
  template <class At>
  static TIGON_INLINE lanes pick(lanes x, lanes y, At) {
    return [=]<std::size_t... I>(std::index_sequence<I...>)
               TIGON_LAMBDA { return __builtin_shufflevector(x, y, At()(I)...); }(std::make_index_sequence<size>{});
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::swiglu_fused, backends::generic> {
  template <class>
  using saved = no_state;
  using gate = kernel<op::swiglu, backends::generic>;

  template <backend B, element T>
  static void forward(in_matrix<T> gate_up, matrix_view<T> c, gate_layout layout, swiglu_options opt, context& ctx) {
    const std::size_t n = c.cols;
    if (layout == gate_layout::interleaved)
      gate::with_form<B, T>(opt, [&](auto form) { forward_pairs<B>(form, gate_up, c, ctx); });
    else
      kernel_for<op::swiglu, B>::template forward<B, T>(gate_up.cols_from(0, n), gate_up.cols_from(n, n), c, opt, ctx);
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dc, in_matrix<T> gate_up, matrix_view<T> dgate_up, gate_layout layout,
                       swiglu_options opt, context& ctx) {
    const std::size_t n = dc.cols;
    if (layout == gate_layout::interleaved)
      gate::with_form<B, T>(opt, [&](auto form) { backward_pairs<B>(form, dc, gate_up, dgate_up, ctx); });
    else
      kernel_for<op::swiglu, B>::template backward<B, T>(dc, gate_up.cols_from(0, n), gate_up.cols_from(n, n),
                                                         dgate_up.cols_from(0, n), dgate_up.cols_from(n, n), opt, ctx);
  }

  // By blocks of columns whose pairs, gate and up stay in the first-level cache.
  template <backend B, element T, class Form>
  static void forward_pairs(Form form, matrix_view<const T> gate_up, matrix_view<T> c, context& ctx) {
    for_rows_with_scratch<B, accumulator_t<T>>(ctx, c.rows, 2 * c.cols, 2, [=] TIGON_FN(auto row) {
      for (std::size_t first = 0; first < c.cols; first += B::row.block_cols) {
        const std::size_t n = std::min(B::row.block_cols, c.cols - first);
        const auto [a, b] = read_pairs(row.narrow(2 * n), gate_up.cols_from(2 * first, 2 * n));
        row.narrow(n).map(c.cols_from(first, n), form, a, b);
      }
    });
  }

  template <backend B, element T, class Form>
  static void backward_pairs(Form form, matrix_view<const T> dc, matrix_view<const T> gate_up, matrix_view<T> dgate_up,
                             context& ctx) {
    for_rows_with_scratch<B, accumulator_t<T>>(ctx, dc.rows, 2 * dc.cols, 2, [=] TIGON_FN(auto row) {
      for (std::size_t first = 0; first < dc.cols; first += B::row.block_cols) {
        const std::size_t n = std::min(B::row.block_cols, dc.cols - first);
        const auto [a, b] = read_pairs(row.narrow(2 * n), gate_up.cols_from(2 * first, 2 * n));
        row.narrow(n).map(outs(a, b), form, dc.cols_from(first, n), a, b);
        write_pairs(row.narrow(2 * n), dgate_up.cols_from(2 * first, 2 * n));
      }
    });
  }

  /// Gate and up of the row, widened, in scratch rows. Not inlined: once for all forms.
  template <class Row, class T, class A = accumulator_t<std::remove_const_t<T>>>
  static __attribute__((noinline)) std::array<vector_view<A>, 2> read_pairs(Row row, matrix_view<T> gate_up) {
    const auto pairs = row.scratch(0), halves = row.scratch(1);
    const std::size_t n = row.cols / 2;
    row.map(
        pairs, [](auto v) { return v; }, gate_up);
    detail::pair_shuffles<A>::split(pairs.data, halves.data, halves.data + n, n);
    return {{{halves.data, n}, {halves.data + n, n}}};
  }
  /// The way back. As a vector, which is not streamed: there is nothing to compute while memory would work.
  template <class Row, class T, class A = accumulator_t<T>>
  static __attribute__((noinline)) void write_pairs(Row row, matrix_view<T> dgate_up) {
    const auto pairs = row.scratch(0), halves = row.scratch(1);
    const std::size_t n = row.cols / 2;
    detail::pair_shuffles<A>::join(halves.data, halves.data + n, pairs.data, n);
    row.map(
        vector_view<T>{dgate_up.row(row.i), row.cols}, [](auto v) { return v; }, pairs);
  }
};

/// Bytes of workspace that the two doors take for c of `cols` columns.
template <class B = default_backend, class T>
std::size_t swiglu_fused_workspace(std::size_t cols, gate_layout layout, const context& ctx = default_context()) {
  if (layout == gate_layout::halves) return 0;
  return simd::scratch_workspace<B, accumulator_t<T>>(2 * cols, 2, ctx);
}

/// c from gate_up. See swiglu_fused_options for the contract.
template <class B = default_backend, class T>
void swiglu_fused_forward(in_matrix<T> gate_up, matrix_view<T> c, gate_layout layout = gate_layout::halves,
                          swiglu_fused_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const expects expect("swiglu_fused_forward");
  expect.memory("c", c);
  expect.matrix("gate_up", gate_up, c.rows, 2 * c.cols);
  detail::expect_swiglu_options(expect, opt);
  expect.disjoint("c", c, "gate_up", gate_up);
  ctx.workspace().expect("swiglu_fused_forward", swiglu_fused_workspace<B, T>(c.cols, layout, ctx));
  kernel_for<op::swiglu_fused, B>::template forward<B, T>(gate_up, c, layout, opt, ctx);
}

/// dgate_up from dc and gate_up. See swiglu_fused_options for the contract.
template <class B = default_backend, class T>
void swiglu_fused_backward(in_matrix<T> dc, in_matrix<T> gate_up, matrix_view<T> dgate_up,
                           gate_layout layout = gate_layout::halves, swiglu_fused_options opt = {},
                           context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const expects expect("swiglu_fused_backward");
  expect.memory("dc", dc);
  expect.matrix("gate_up", gate_up, dc.rows, 2 * dc.cols);
  expect.matrix("dgate_up", dgate_up, dc.rows, 2 * dc.cols);
  detail::expect_swiglu_options(expect, opt);
  expect.same_or_disjoint("dgate_up", dgate_up, "gate_up", gate_up);
  expect.disjoint("dgate_up", dgate_up, "dc", dc);
  ctx.workspace().expect("swiglu_fused_backward", swiglu_fused_workspace<B, T>(dc.cols, layout, ctx));
  kernel_for<op::swiglu_fused, B>::template backward<B, T>(dc, gate_up, dgate_up, layout, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SWIGLU_FUSED_HPP

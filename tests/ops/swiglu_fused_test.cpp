// The contract of include/tigon/ops/swiglu_fused.hpp, promise by promise, on every backend: the bits of swiglu on
// two matrices, which has its own test.
#include <gtest/gtest.h>

#include <tigon/ops/swiglu_fused.hpp>

#include "support/backends.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::gate_layout;

constexpr gate_layout layouts[] = {gate_layout::halves, gate_layout::interleaved};

const std::vector<tigon::swiglu_options>& variants() {
  static const std::vector<tigon::swiglu_options> all{
      {},
      {.gate_multiplier = -0.75, .down_multiplier = 1.5, .round_gate = true},
      {.limit = 2, .slope = 1.702, .up_offset = 1}};
  return all;
}

/// Column of element j of the gate, or of up, in a buffer for n of each.
std::size_t gate_column(gate_layout layout, std::size_t, std::size_t j) {
  return layout == gate_layout::halves ? j : 2 * j;
}
std::size_t up_column(gate_layout layout, std::size_t n, std::size_t j) {
  return layout == gate_layout::halves ? n + j : 2 * j + 1;
}

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct problem {
  gate_layout layout;
  tigon::swiglu_options opt;
  guarded_matrix<T> gate_up, c, dc, dgate_up;

  TIGON_TEST_NOINLINE problem(shape s, gate_layout in, tigon::swiglu_options of = {}, guard side = guard::behind)
      : layout(in),
        opt(of),
        gate_up(random_matrix<T>({s.rows, 2 * s.cols, s.padding}, 1, side, {.deviation = 3})),
        c(s.rows, s.cols, s.padding, side),
        dc(random_matrix<T>(s, 2, side)),
        dgate_up(s.rows, 2 * s.cols, s.padding, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::swiglu_fused_forward<B>(gate_up, c.view(), layout, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::swiglu_fused_backward<B>(dc, gate_up, to, layout, opt, ctx);
  }

  /// c and dgate_up by swiglu on two matrices.
  struct results {
    guarded_matrix<T> c, dgate_up;
  };
  template <class B>
  TIGON_TEST_NOINLINE results wanted() const {
    const std::size_t rows = c.rows(), n = c.cols();
    guarded_matrix<T> a(rows, n), b(rows, n), da(rows, n), db(rows, n);
    results out{guarded_matrix<T>(rows, n), guarded_matrix<T>(rows, 2 * n)};
    const auto each = [&](auto f) {
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < n; ++j) f(i, j, gate_column(layout, n, j), up_column(layout, n, j));
    };
    each([&](std::size_t i, std::size_t j, std::size_t at_gate, std::size_t at_up) {
      a(i, j) = gate_up(i, at_gate), b(i, j) = gate_up(i, at_up);
    });
    tigon::swiglu_forward<B>(a, b, out.c.view(), opt);
    tigon::swiglu_backward<B>(dc, a, b, da.view(), db.view(), opt);
    each([&](std::size_t i, std::size_t j, std::size_t at_gate, std::size_t at_up) {
      out.dgate_up(i, at_gate) = da(i, j), out.dgate_up(i, at_up) = db(i, j);
    });
    return out;
  }
};

/// Bits without the padding.
template <class T>
TIGON_TEST_NOINLINE std::vector<std::byte> elements_of(const guarded_matrix<T>& m) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < m.rows() && m.cols() != 0; ++i) {
    const auto row = std::as_bytes(std::span(&m(i, 0), m.cols()));
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

template <class On>
class swiglu_fused : public testing::Test {};
TYPED_TEST_SUITE(swiglu_fused, every_pair, names);

TYPED_TEST(swiglu_fused, has_the_bits_of_two_matrices) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t block = B::row.block_cols;
  auto shapes = row_shapes<B, T>();
  shapes.insert(shapes.end(),
                {{3, 0}, {2, block - 1}, {2, block, 1}, {3, block + 1, 3}, {2, 3 * block + 5}, {1, 65537}});
  for (const shape s : shapes)
    for (const auto& opt : variants())
      for (const gate_layout layout : layouts)
        for (const guard side : both_guards) {
          SCOPED_TRACE(testing::Message() << s << ", variant " << &opt - variants().data() << ", layout "
                                          << static_cast<int>(layout) << ", " << side);
          problem<T> p(s, layout, opt, side);
          const auto wanted = p.template wanted<B>();
          p.template forward<B>();
          p.template backward<B>(p.dgate_up.view());
          EXPECT_EQ(elements_of(p.c), elements_of(wanted.c));
          EXPECT_EQ(elements_of(p.dgate_up), elements_of(wanted.dgate_up));
          EXPECT_TRUE(p.c.padding_intact() && p.dgate_up.padding_intact());
        }
}

TYPED_TEST(swiglu_fused, gradients_may_overwrite_the_buffer) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const gate_layout layout : layouts) {
    problem<T> apart({3, B::row.block_cols + 3, 2}, layout), p({3, B::row.block_cols + 3, 2}, layout);
    apart.template backward<B>(apart.dgate_up.view());
    const auto once = bits_of(apart.gate_up, apart.dc, apart.dgate_up);
    apart.dgate_up.clear();
    apart.template backward<B>(apart.dgate_up.view());
    EXPECT_EQ(bits_of(apart.gate_up, apart.dc, apart.dgate_up), once) << "a second backward";
    p.template backward<B>(p.gate_up.view());
    EXPECT_EQ(bits_of(p.gate_up), bits_of(apart.dgate_up));
  }
}

TYPED_TEST(swiglu_fused, nan_stays_with_its_pair) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = 4 * lanes<B, T> + 3;
  for (const gate_layout layout : layouts)
    for (const std::size_t bad : {std::size_t{0}, lanes<B, T>, n - 1}) {
      problem<T> p({2, n}, layout);
      p.gate_up(1, gate_column(layout, n, bad)) = from_f64<T>(std::numeric_limits<double>::quiet_NaN());
      p.template forward<B>();
      p.template backward<B>(p.dgate_up.view());
      for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          EXPECT_EQ(std::isnan(to_f64(p.c(i, j))), i == 1 && j == bad);
          EXPECT_EQ(std::isnan(to_f64(p.dgate_up(i, gate_column(layout, n, j)))), i == 1 && j == bad);
          EXPECT_EQ(std::isnan(to_f64(p.dgate_up(i, up_column(layout, n, j)))), i == 1 && j == bad);
        }
    }
}

TYPED_TEST(swiglu_fused, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{B::row.stream_bytes / (1500 * sizeof(T)) + 2, 1501, 4};
  problem<T> p(s, gate_layout::interleaved);
  p.template forward<B>();
  p.template backward<B>(p.dgate_up.view());
  EXPECT_TRUE(p.c.padding_intact() && p.dgate_up.padding_intact());
  guarded_matrix<T> c(3, s.cols, s.padding), dgate_up(3, 2 * s.cols, s.padding);
  for (const std::size_t first : {std::size_t{0}, s.rows - 3}) {
    const auto part = [&](auto& m) { return m.view().rows_from(first, 3); };
    tigon::swiglu_fused_forward<B>(part(p.gate_up), c.view(), p.layout);
    tigon::swiglu_fused_backward<B>(part(p.dc), part(p.gate_up), dgate_up.view(), p.layout);
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < s.cols; ++j) ASSERT_EQ(to_f64(p.c(first + i, j)), to_f64(c(i, j)));
      for (std::size_t j = 0; j < 2 * s.cols; ++j) ASSERT_EQ(to_f64(p.dgate_up(first + i, j)), to_f64(dgate_up(i, j)));
    }
  }
}

TYPED_TEST(swiglu_fused, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const gate_layout layout : layouts) {
    problem<T> p({70, 2049}, layout);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.c.clear(), p.dgate_up.clear();
      p.template forward<B>(ctx);
      p.template backward<B>(p.dgate_up.view(), ctx);
      return bits_of(p.c, p.dgate_up);
    }));
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class swiglu_fused_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  problem<float> p{{3, 8, 2}, gate_layout::interleaved};
  const view x = p.gate_up.view(), c = p.c.view(), dc = p.dc.view(), dx = p.dgate_up.view();
};

TEST_F(swiglu_fused_doors, forward_refuses) {
  for (const gate_layout layout : layouts) {
    const auto forward = [=](view x, view c, tigon::swiglu_options opt = {}) {
      tigon::swiglu_fused_forward(x, c, layout, opt);
    };
    // An odd width is twice nothing.
    EXPECT_TIGON_ERROR(forward({x.data, 3, 15, 18}, c), shape,
                       "swiglu_fused_forward: gate_up is 3 x 15; expected 3 x 16", p.c);
    EXPECT_TIGON_ERROR(forward({x.data, 2, 16, 18}, c), shape,
                       "swiglu_fused_forward: gate_up is 2 x 16; expected 3 x 16", p.c);
    EXPECT_TIGON_ERROR(forward({x.data, 3, 16, 15}, c), stride, "swiglu_fused_forward: gate_up is of row stride 15",
                       p.c);
    EXPECT_TIGON_ERROR(forward({nullptr, 3, 16}, c), shape, "swiglu_fused_forward: gate_up is a null pointer", p.c);
    EXPECT_TIGON_ERROR(forward(x, {c.data, 3, 8, 7}), stride, "swiglu_fused_forward: y is of row stride 7", p.c);
    EXPECT_TIGON_ERROR(forward(x, {nullptr, 3, 8}), shape, "swiglu_fused_forward: y is a null pointer", p.c);
    EXPECT_TIGON_ERROR(forward(x, x.cols_from(0, 8)), alias,
                       "swiglu_fused_forward: y overlaps gate_up; expected no common memory", p.gate_up);
    EXPECT_TIGON_ERROR(forward(x, c, {.limit = 0}), argument, "swiglu_fused_forward: limit is", p.c);
  }
}

TEST_F(swiglu_fused_doors, backward_refuses) {
  for (const gate_layout layout : layouts) {
    const auto backward = [=](view dc, view x, view dx, tigon::swiglu_options opt = {}) {
      tigon::swiglu_fused_backward(dc, x, dx, layout, opt);
    };
    EXPECT_TIGON_ERROR(backward(dc, {x.data, 3, 15, 18}, dx), shape,
                       "swiglu_fused_backward: gate_up is 3 x 15; expected 3 x 16", p.dgate_up);
    EXPECT_TIGON_ERROR(backward(dc, x, {dx.data, 3, 14, 18}), shape,
                       "swiglu_fused_backward: dgate_up is 3 x 14; expected 3 x 16", p.dgate_up);
    EXPECT_TIGON_ERROR(backward({dc.data, 3, 8, 7}, x, dx), stride, "swiglu_fused_backward: dy is of row stride 7",
                       p.dgate_up);
    EXPECT_TIGON_ERROR(backward({nullptr, 3, 8}, x, dx), shape, "swiglu_fused_backward: dy is a null pointer",
                       p.dgate_up);
    EXPECT_TIGON_ERROR(backward(dc, x, {nullptr, 3, 16}), shape, "swiglu_fused_backward: dgate_up is a null pointer",
                       p.dgate_up);
    EXPECT_TIGON_ERROR(backward(dc.rows_from(0, 2), x.rows_from(0, 2), x.rows_from(1, 2)), alias,
                       "swiglu_fused_backward: dgate_up overlaps gate_up; expected the same buffer or no common memory",
                       p.gate_up);
    EXPECT_TIGON_ERROR(backward(dx.cols_from(0, 8), x, dx), alias, "swiglu_fused_backward: dgate_up overlaps dy",
                       p.dgate_up);
    EXPECT_TIGON_ERROR(backward(dc, x, dx, {.slope = -1}), argument, "swiglu_fused_backward: slope is", p.dgate_up);
  }
}

}  // namespace

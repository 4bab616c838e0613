// attn_res on ascend: what the parents give, through tiles.
#include <tigon/ops/attn_res.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context;

struct sizes {
  std::size_t blocks, rows, cols, padding = 0;
};

/// No rows; one element; every number of blocks that a visit may be short of; more tokens than programs; rows around
/// the blocks of columns of each capacity, with a tail, and more of them than visit a block of columns together.
const sizes every_size[] = {{2, 0, 5},       {1, 1, 1},      {1, 3, 70},       {2, 9, 41, 3},  {3, 5, 64},
                            {4, 45, 128},    {5, 85, 33, 1}, {8, 3, 255},      {9, 7, 257, 7}, {2, 3, 2048},
                            {6, 2, 2049, 5}, {3, 190, 2100}, {1, 2, 16384, 3}, {5, 1, 20001}};

template <class T, class W = T>
struct problem {
  sizes s;
  tigon::attn_res_options opt{.eps = 1e-5};
  guarded_matrix<T> v, dv, y, dy;
  guarded<W> w_query, w_norm, dw_query, dw_norm;
  guarded<accumulator_t<T>> alpha, rstd;

  TIGON_TEST_NOINLINE explicit problem(sizes of, guard side = guard::behind)
      : s(of),
        v(random_matrix<T>({of.blocks * of.rows, of.cols, of.padding}, 1, side, {.deviation = 2})),
        dv(of.blocks * of.rows, of.cols, of.padding, side),
        y(of.rows, of.cols, of.padding, side),
        dy(random_matrix<T>({of.rows, of.cols, of.padding}, 2, side)),
        w_query(random_vector<W>(of.cols, 3, side, {.deviation = 1.5 / std::sqrt(of.cols)})),
        w_norm(random_vector<W>(of.cols, 4, side, {.mean = 1, .deviation = 0.3})),
        dw_query(random_vector<W>(of.cols, 5, side)),
        dw_norm(random_vector<W>(of.cols, 6, side)),
        alpha(of.rows * of.blocks, side),
        rstd(of.rows * of.blocks, side) {}

  template <class U>
  tigon::blocks_view<U> blocks(tigon::matrix_view<U> m) const {
    return {nullptr, m.data, s.blocks, s.rows, s.cols, m.row_stride, s.rows * m.row_stride};
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = default_context()) {
    tigon::attn_res_forward<B>(blocks(v.view()), w_query, w_norm, y.view(), alpha, rstd, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = default_context()) {
    tigon::attn_res_backward<B>(dy, blocks(v.view()), w_query, w_norm, {alpha, rstd},
                                tigon::attn_res_gradients{blocks(to), dw_query, dw_norm}, opt, ctx);
  }
  template <class B>
  void run(context& ctx = default_context()) {
    forward<B>(ctx);
    backward<B>(dv.view(), ctx);
  }
  auto bits() const { return bits_of(y, alpha, rstd, dv, dw_query, dw_norm); }
};

/// What the contract of the operator promises, of either of the two.
constexpr by_type forward_bound{.f32 = 4e-6, .bf16 = 7.9e-3, .f16 = 9.8e-4, .f64 = 1e-14};
constexpr by_type gradient_bound{.f32 = 2e-5, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 4e-14};

template <class T, class W>
void expect_equal(const problem<T, W>& p, const problem<T, W>& q) {
  using A = accumulator_t<T>;
  const comparison with{.may_be_empty = p.s.rows == 0};
  EXPECT_TRUE(close(p.y.f64(), q.y.f64(), forward_bound.of<T>(), with));
  EXPECT_TRUE(close(p.alpha.f64(), q.alpha.f64(), forward_bound.of<A>(), with));
  EXPECT_TRUE(close(p.rstd.f64(), q.rstd.f64(), forward_bound.of<A>(), with));
  EXPECT_TRUE(close(p.dv.f64(), q.dv.f64(), gradient_bound.of<T>(), with));
  // Of one column, or of one block, what is added up cancels.
  const comparison of_terms{.scale = 1};
  const double bound = std::max(gradient_bound.of<W>(), gradient_bound.of<A>());
  EXPECT_TRUE(close(p.dw_query.f64(), q.dw_query.f64(), bound, of_terms));
  EXPECT_TRUE(close(p.dw_norm.f64(), q.dw_norm.f64(), bound, of_terms));
  EXPECT_TRUE(p.y.padding_intact() && p.dv.padding_intact());
}

template <class P>
struct ascend_attn_res : testing::Test {};
/// round_key rounds keys to 16 bits: where blocks end elsewhere, a sum's last bit may turn one of them to the other
/// side. So the chip with other blocks than the usual one has f32 here.
using attn_res_pairs = testing::Types<on<double_chip, float>, on<usual_chip, tigon::bfloat16>, on<small_chip, double>,
                                      on<large_chip, tigon::float16>>;
TYPED_TEST_SUITE(ascend_attn_res, attn_res_pairs, names);

TYPED_TEST(ascend_attn_res, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const sizes& s : every_size)
    for (const bool other : {false, true}) {
      SCOPED_TRACE(testing::Message() << s.blocks << " blocks of " << s.rows << " x " << s.cols << ", " << other);
      problem<T> p(s, other ? guard::before : guard::behind), q(s);
      if (other)
        for (problem<T>* each : {&p, &q}) each->opt = {.round_key = true, .dparams = tigon::gradient::accumulate};
      p.template run<B>();
      q.template run<usual_backend>();
      expect_equal(p, q);
    }
}

TEST(ascend_attn_res_of_f32, agrees_with_generic) {
  for (const sizes& s : {sizes{3, 50, 300, 4}, sizes{5, 9, 2500}}) {
    problem<float> p(s), q(s);
    p.run<usual_chip>();
    q.run<tigon::backends::generic>();
    expect_equal(p, q);
  }
}

TEST(ascend_attn_res_of_bf16, takes_weights_in_f32) {
  problem<tigon::bfloat16, float> p({5, 9, 2500}), q({5, 9, 2500});
  p.run<usual_chip>();
  q.run<usual_backend>();
  expect_equal(p, q);
}

TYPED_TEST(ascend_attn_res, writes_the_gradient_over_the_blocks) {
  using B = typename TypeParam::backend;
  for (const sizes& s : every_size) {
    problem<typename TypeParam::element> p(s), q(s);
    p.template run<B>();
    q.template forward<B>();
    q.template backward<B>(q.v.view());
    EXPECT_EQ(q.v.f64(), p.dv.f64());
    EXPECT_EQ(bits_of(q.dw_query, q.dw_norm), bits_of(p.dw_query, p.dw_norm));
  }
}

// Blocks at pointers of their own, one of them twice.
TYPED_TEST(ascend_attn_res, takes_blocks_in_any_order) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({6, 4, 3000, 1}), q({6, 4, 3000, 1});
  const auto all = p.blocks(p.v.view());
  std::vector<const T*> list;
  for (const std::size_t n : {5u, 1u, 1u, 0u, 4u, 1u}) list.push_back(all[n].data);
  const auto blocks = tigon::blocks_view<const T>::of_pointers(list, 4, 3000, all.row_stride);
  const auto run = [&]<class Of>(problem<T>& to, Of) {
    tigon::attn_res_forward<Of>(blocks, to.w_query, to.w_norm, to.y.view(), to.alpha, to.rstd, to.opt);
    tigon::attn_res_backward<Of>(to.dy, blocks, to.w_query, to.w_norm, {to.alpha, to.rstd},
                                 tigon::attn_res_gradients{to.blocks(to.dv.view()), to.dw_query, to.dw_norm}, to.opt);
  };
  run(p, B{});
  run(q, usual_backend{});
  expect_equal(p, q);
}

TYPED_TEST(ascend_attn_res, keeps_what_is_not_a_number_in_its_token) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t cols : {70u, 5000u}) {
    problem<T> p({5, 3, cols}), q({5, 3, cols});
    p.v(2 * 3 + 1, cols / 2) = from_f64<T>(std::numeric_limits<double>::quiet_NaN());  // block 2, token 1
    p.template forward<B>();
    q.template forward<B>();
    for (std::size_t j = 0; j < cols; ++j) {
      EXPECT_TRUE(std::isnan(to_f64(p.y(1, j))));
      EXPECT_EQ(to_f64(p.y(0, j)), to_f64(q.y(0, j)));
      EXPECT_EQ(to_f64(p.y(2, j)), to_f64(q.y(2, j)));
    }
  }
}

TYPED_TEST(ascend_attn_res, gives_the_same_bits_for_any_threads) {
  for (const sizes& s : {sizes{3, 61, 301}, sizes{5, 43, 5000}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template run<typename TypeParam::backend>(ctx);
      return p.bits();
    }));
}

// Up to four blocks of a row that fits come in once, more of them twice; weights once a program.
TEST(ascend_attn_res_copies, depend_on_the_number_of_blocks) {
  struct {
    std::size_t blocks, rows, cols, visits;
  } const cases[] = {{4, 40, 2048, 1}, {3, 40, 100, 1}, {8, 40, 2048, 2}, {4, 40, 4096, 2}};
  for (const auto& c : cases) {
    problem<float> p({c.blocks, c.rows, c.cols});
    const audited ledger;
    p.forward<usual_chip>();
    const auto& t = counting_ledger::total;
    EXPECT_EQ(t.programs, 20u);
    // A parameter of one block stays; of two it comes in for every visit of the sums.
    const std::size_t weights = 2 * c.cols * (c.cols > 2048 ? c.rows : 20);
    EXPECT_EQ(t.copied_in, (c.visits * c.blocks * c.rows * c.cols + weights) * sizeof(float)) << c.blocks << c.cols;
    EXPECT_EQ(t.copied_out, c.rows * c.cols * sizeof(float));
  }
}

}  // namespace

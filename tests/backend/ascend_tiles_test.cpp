// The tiles that the rules of ascend make on chips of several capacities, in the numbers of the chip's own library; one
// operator of each form on a chip of 256 KiB; and what two places for every tile take.
#include <tigon/losses/kl_div.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>

#include <array>

#include "ascend_chips.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// Two places for every tile, and twice the memory.
struct ascend_double_384k : ascend_double {
  using parent = ascend_double;
  static constexpr backend_info info{"ascend_double_384k", {device::npu}};
  static constexpr std::size_t tile_capacity_bits = 2 * 192 * 8192;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
using tigon::tiling::pass;
namespace op = tigon::op;
namespace ub = tigon::unified_buffer;

template <class B, class Op, pass P>
using plan = ub::plan<B, Op, P, float>;

/// Elements of a block at 48, 192, 256 and 1024 KiB.
template <class Op, pass P>
constexpr std::array<std::size_t, 4> blocks = {plan<small_chip, Op, P>::block, plan<usual_chip, Op, P>::block,
                                               plan<middle_chip, Op, P>::block, plan<large_chip, Op, P>::block};
using of_capacities = std::array<std::size_t, 4>;

TEST(ascend_tiles, are_those_of_the_margins_and_live_tiles) {
  EXPECT_EQ((blocks<op::rms_norm, pass::forward>), (of_capacities{1024, 4096, 8192, 32768}));            // .90, 6
  EXPECT_EQ((blocks<op::fused_add_rms_norm, pass::backward>), (of_capacities{512, 2048, 4096, 16384}));  // .90, 12
  EXPECT_EQ((blocks<op::layer_norm, pass::backward>), (of_capacities{1024, 4096, 4096, 16384}));         // .85, 10
  EXPECT_EQ((blocks<op::poly_norm, pass::backward>), (of_capacities{512, 2048, 4096, 16384}));           // .80, 10
  EXPECT_EQ((blocks<op::attn_res, pass::backward>), (of_capacities{512, 2048, 2048, 8192}));             // .85, 16
  EXPECT_EQ((blocks<op::grpo_loss, pass::forward>), (of_capacities{2048, 8192, 8192, 32768}));           // .90, 4
  EXPECT_EQ((blocks<op::grpo_loss, pass::backward>), (of_capacities{1024, 4096, 4096, 16384}));          // .90, 8
  EXPECT_EQ((blocks<op::jsd, pass::forward>), (of_capacities{1024, 4096, 4096, 16384}));                 // .90, 8
  EXPECT_EQ((blocks<op::distillation, pass::forward>), (of_capacities{1024, 4096, 4096, 16384}));        // .90, 8
  EXPECT_EQ((blocks<op::group_norm, pass::forward>), (of_capacities{1024, 4096, 4096, 16384}));          // .90, 8
  EXPECT_EQ((blocks<op::tvd, pass::forward>), (of_capacities{1024, 4096, 8192, 32768}));                 // .80, 5
  EXPECT_EQ((blocks<op::kl_div, pass::forward>), (of_capacities{1024, 4096, 8192, 32768}));              // .90, 6
  EXPECT_EQ((blocks<op::kl_div, pass::plain_forward>), (of_capacities{2048, 8192, 16384, 65536}));       // .90, 3
  EXPECT_EQ((blocks<op::kl_div, pass::backward>), (of_capacities{2048, 8192, 16384, 65536}));            // .90, 3
  EXPECT_EQ((blocks<op::kl_div, pass::plain_backward>), (of_capacities{4096, 16384, 16384, 65536}));     // .90, 2.5
  EXPECT_EQ((blocks<op::moe_gather, pass::forward>), (of_capacities{4096, 16384, 16384, 65536}));        // .90, 2
  EXPECT_EQ((blocks<op::moe_scatter, pass::forward>), (of_capacities{2048, 8192, 16384, 65536}));        // .90, 3
  EXPECT_EQ((blocks<op::mhc_coeffs, pass::backward>), (of_capacities{1024, 4096, 4096, 16384}));         // .90, 8
  EXPECT_EQ((blocks<op::mhc_pre, pass::forward>), (of_capacities{1024, 4096, 8192, 32768}));             // .90, 7
  EXPECT_EQ((blocks<op::mhc_post_res, pass::backward>), (of_capacities{512, 2048, 2048, 8192}));         // .90, 16
  EXPECT_EQ((blocks<op::embedding, pass::forward>), (of_capacities{2048, 8192, 16384, 65536}));          // .85, 3.2
}

TEST(ascend_tiles, have_several_rows) {
  using kl_div = tigon::kernel<op::kl_div, tigon::backends::ascend>;
  const auto rows = []<class Plan>(Plan, std::size_t of, std::size_t cols) {
    const ub::cut by = kl_div::forward_cut<Plan>(of, cols);
    EXPECT_EQ(by.cols, std::min<std::size_t>(cols, 128));
    return by.rows;
  };
  EXPECT_EQ(rows(plan<usual_chip, op::kl_div, pass::forward>{}, 4096, 128256), 32u);
  EXPECT_EQ(rows(plan<usual_chip, op::kl_div, pass::plain_forward>{}, 4096, 128256), 64u);
  EXPECT_EQ(rows(plan<usual_chip, op::kl_div, pass::forward>{}, 20, 128), 32u);
  EXPECT_EQ(rows(plan<usual_chip, op::kl_div, pass::forward>{}, 3, 20), 4u);
  using rope = plan<usual_chip, op::llama4_rope, pass::forward>;  // heads of f32, whatever is stored
  EXPECT_EQ(rope::cut_of(128).rows, 16u);
  EXPECT_EQ(rope::cut_of(256).rows, 8u);
}

// What two places take of a buffer is what one place takes of half of it.
TEST(ascend_tiles, take_two_places_where_copies_overlap) {
  using tigon::backends::ascend_double_384k;
  const auto expect_alike = []<class Op, pass P>(std::type_identity<Op>, std::integral_constant<pass, P>) {
    using twice = plan<ascend_double_384k, Op, P>;
    using once = plan<usual_chip, Op, P>;
    EXPECT_EQ(std::size_t{twice::block}, std::size_t{once::block});
    EXPECT_EQ(std::size_t{twice::area}, std::size_t{once::area});
    EXPECT_LE((plan<double_chip, Op, P>::block), std::size_t{once::block});
  };
  constexpr std::integral_constant<pass, pass::forward> forward;
  constexpr std::integral_constant<pass, pass::backward> backward;
  expect_alike(std::type_identity<op::swiglu>{}, forward);
  expect_alike(std::type_identity<op::layer_norm>{}, forward);
  expect_alike(std::type_identity<op::layer_norm>{}, backward);
  expect_alike(std::type_identity<op::softmax>{}, forward);
  expect_alike(std::type_identity<op::kl_div>{}, forward);
  expect_alike(std::type_identity<op::group_norm>{}, backward);
}

// A block is copied to the place that the one before does not take, which is intact.
TEST(ascend_tiles, change_places_from_block_to_block) {
  using two = plan<double_chip, op::swiglu, pass::forward>;
  guarded_matrix<float> x = random_matrix<float>({1, 3 * two::block}, 1);
  const audited ledger;
  ub::vector_core<two> core(1, x.cols(), {1, two::block, 1});
  auto tiles = core.place(tigon::matrix_view<const float>(x), x.view());
  auto& from = std::get<0>(tiles);
  std::array<const float*, 3> place{};
  for (std::size_t j = 0; j < 3; ++j) {
    core.cols_at(j);
    core.fetch(from);
    place[j] = from.data;
    EXPECT_EQ(from.data[1], x(0, j * two::block + 1));
  }
  EXPECT_EQ(place[0], place[2]);
  EXPECT_NE(place[0], place[1]);
  EXPECT_EQ(place[1][1], x(0, two::block + 1));
}

// Loops of a row see what earlier ones wrote, be it to memory of which a tile holds a part, or a single number.
TEST(ascend_row_loops, see_what_was_written_before) {
  using tiles = ub::rows_on_tiles<usual_chip, op::group_norm, pass::forward>;
  guarded_matrix<float> m = random_matrix<float>({3, 9000, 2}, 1), sums(3, 3);
  const std::vector<double> x = m.f64();
  const tigon::matrix_view<float> all = m.view(), to = sums.view();
  const auto as_it_is = [](auto v) { return v; };
  const audited ledger;
  tigon::for_rows<tiles>(tigon::default_context(), 3, 9000, [=](auto row) {
    const auto part = row.part(4000, 200);  // in two blocks of the whole row
    row.put(to, 0, part.sum(tigon::reads(all), as_it_is));
    row.map(tigon::reads(all), tigon::writes(all), [](auto v) { return v + v; });
    row.put(to, 1, part.sum(tigon::reads(all), as_it_is));
    row.put(all, 4100, 1000);
    row.put(to, 2, part.sum(tigon::reads(all), as_it_is));
  });
  for (std::size_t i = 0; i < 3; ++i) {
    double sum = 0;
    for (std::size_t j = 4000; j < 4200; ++j) sum += x[i * 9000 + j];
    EXPECT_NEAR(sums(i, 0), sum, 1e-4);
    EXPECT_NEAR(sums(i, 1), 2 * sum, 1e-4);
    EXPECT_NEAR(sums(i, 2), 2 * sum - 2 * x[i * 9000 + 4100] + 1000, 1e-3);
  }
  EXPECT_TRUE(m.padding_intact());
}

template <class F>
void expect_the_results_of_highway(F run) {
  const std::vector<std::vector<double>> wanted = run(tigon::backends::highway{});
  const audited ledger;
  const std::vector<std::vector<double>> got = run(middle_chip{});
  EXPECT_EQ(counting_ledger::total.capacity, 256u * 1024);
  for (std::size_t k = 0; k < wanted.size(); ++k) EXPECT_TRUE(close(got[k], wanted[k], 2 * parity.f32)) << k;
}

TEST(ascend_of_256k, runs_one_operator_of_each_form) {
  for (const shape s : {shape{40, 3000, 2}, shape{6, 20000}}) {
    SCOPED_TRACE(testing::Message() << s);
    guarded_matrix<float> a = random_matrix<float>(s, 1), b = random_matrix<float>(s, 2), p(s.rows, s.cols),
                          y(s.rows, s.cols, s.padding), z(s.rows, s.cols, s.padding);
    guarded<float> w = random_vector<float>(s.cols, 3), dw(s.cols), rstd(s.rows), loss(1), mean(s.rows / 2);
    tigon::softmax_forward<tigon::backends::highway>(a, p.view());
    expect_the_results_of_highway([&]<class B>(B) {
      tigon::swiglu_backward<B>(a, b, a, y.view(), z.view());
      return std::vector{y.f64(), z.f64()};
    });
    expect_the_results_of_highway([&]<class B>(B) {
      tigon::rms_norm_forward<B>(a, w, y.view(), rstd);
      tigon::rms_norm_backward<B>(b, a, w, rstd, z.view(), dw);
      return std::vector{y.f64(), z.f64(), rstd.f64(), dw.f64()};
    });
    expect_the_results_of_highway([&]<class B>(B) {
      tigon::softmax_forward<B>(a, y.view());
      return std::vector<std::vector<double>>{y.f64()};
    });
    expect_the_results_of_highway([&]<class B>(B) {
      tigon::kl_div_forward<B>(a, p, std::span<float>(loss), y.view());
      return std::vector{loss.f64(), y.f64()};
    });
    expect_the_results_of_highway([&]<class B>(B) {
      tigon::group_norm_forward<B>(a, tigon::absent, tigon::absent, y.view(), mean, std::span(rstd.data(), s.rows / 2),
                                   {.groups = 1, .channels = 2});
      return std::vector{y.f64(), mean.f64()};
    });
  }
}

}  // namespace

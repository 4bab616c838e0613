// mhc_coeffs on ascend: within the contract of the operator, through tiles.
#include <tigon/ops/mhc_coeffs.hpp>

#include "ascend_chips.hpp"
#include "support/mhc_problem.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// Backward reads the steps that forward has made.
struct ascend_keeping : ascend_192k {
  using parent = ascend_192k;
  static constexpr backend_info info{"ascend_keeping", {device::npu}};
  static constexpr hyper_connection_tuning hyper_connections{.keep_history = true};
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::gradient;

/// No tokens; one number; tokens around a block of lanes, and more than a program has; long rows; so many streams that
/// a block of tokens does not fit the smallest buffer, or none.
std::vector<mhc_shape> sizes(std::size_t lanes) {
  return {{0, 2, 3},      {1, 1, 1},        {lanes + 1, 2, 5, 3}, {lanes, 3, 2100},
          {90, 4, 33, 2}, {3, 1, 20001, 1}, {5, 10, 7},           {5, 20, 3}};
}

template <class P>
struct ascend_mhc_coeffs : testing::Test {};
using pairs = testing::Types<on<usual_chip, float>, on<double_chip, tigon::bfloat16>, on<small_chip, double>>;
TYPED_TEST_SUITE(ascend_mhc_coeffs, pairs, names);

TYPED_TEST(ascend_mhc_coeffs, keeps_the_error_of_the_operator) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const mhc_shape& s : sizes(lanes<B, T>))
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      mhc_problem<T> p(s, 0, side);
      p.template both_ways<B>();
      const mhc_reference want = p.wanted();
      p.check_forward(want);
      p.check_backward(want);
    }
}

TYPED_TEST(ascend_mhc_coeffs, gives_the_same_bits_for_any_threads) {
  for (const mhc_shape& s : {mhc_shape{301, 4, 33}, {37, 20, 3}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      mhc_problem<typename TypeParam::element> p(s);
      p.template both_ways<typename TypeParam::backend>(ctx);
      return p.bits();
    }));
}

// dx is added to in 16 bits and in those of the sums; without gradients of parameters there are no partial rows.
TYPED_TEST(ascend_mhc_coeffs, adds_to_dx_and_leaves_out_what_is_frozen) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mhc_shape s{40, 4, 50};
  mhc_problem<T> all(s), some(s), added(s);
  all.template both_ways<B>();
  some.template forward<B>();
  tigon::mhc_coeffs_backward<B>(
      some.incoming(), some.x.view(), some.weights(), some.saved(),
      tigon::mhc_coeffs_gradients{some.dx.view(), tigon::matrix_view<T>(), tigon::absent, tigon::absent}, some.opt);
  EXPECT_EQ(bits_of(some.dx), bits_of(all.dx));
  EXPECT_TRUE(some.dphi.untouched() && some.db.untouched() && some.dalpha.untouched());
  const std::vector<double> start = normal_values(s.tokens * s.cols(), 9);
  added.dx.assign(start);
  const auto rounded = added.dx.f64();
  added.opt.dx = gradient::accumulate;
  added.template both_ways<B>();
  mhc_reference want = added.wanted();
  for (std::size_t k = 0; k < rounded.size(); ++k) want.dx[k] += rounded[k];
  added.check_backward(want);
}

TEST(ascend_mhc_coeffs_history, kept_or_made_again_has_the_same_bits) {
  using kept_chip = tigon::backends::ascend_keeping;
  const mhc_shape s{37, 4, 50};
  mhc_problem<float> again(s);
  mhc_problem<float> kept(s, tigon::mhc_coeffs_history<kept_chip, float>(s.tokens, s.n, again.opt.tmax));
  again.both_ways<usual_chip>();
  kept.both_ways<kept_chip>();
  EXPECT_EQ(kept.bits(), again.bits());
}

// Streams come in for their root mean square; numbers of tokens for the iteration, whose scratch memory is the
// buffer's.
TEST(ascend_mhc_coeffs_copies, are_streams_and_coefficients) {
  const mhc_shape s{330, 4, 100};
  const std::size_t mixes = s.mixes(), numbers = s.tokens * sizeof(float);
  mhc_problem<float> p(s);
  {
    const audited ledger;
    p.forward<usual_chip>();
    EXPECT_EQ(counting_ledger::total.copied_in, numbers * (s.cols() + mixes));
    EXPECT_EQ(counting_ledger::total.copied_out, numbers * (1 + 2 * mixes));
  }
  // Steps that just fit take what is said of a block of lanes.
  using V = tigon::simd::vec<usual_chip::engine, float>;
  mhc_problem<float> q({V::size, 16, 1});
  q.opt.tmax = (43000 / V::size - 1088) / 256;
  q.forward<usual_chip>();
  const audited ledger;
  tigon::mhc_coeffs_backward<usual_chip>(
      q.incoming(), q.x.view(), q.weights(), q.saved(),
      tigon::mhc_coeffs_gradients{tigon::matrix_view<float>{}, tigon::matrix_view<float>{}, tigon::absent,
                                  tigon::absent},
      q.opt);
  EXPECT_EQ(counting_ledger::total.most_bytes,
            tigon::detail::mhc_scratch_width<V>(16, q.opt.tmax, false) * sizeof(float) + 64);
}

}  // namespace

// The chip itself: who provides what, how traits and kernels are inherited, and that the ledger sees what it is for.
#include <tigon/tigon.hpp>

#include "ascend_chips.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// The next chip of the vendor: more cores, a gate and a rule of its own, everything else inherited.
struct ascend_next : ascend_192k {
  using parent = ascend_192k;
  static constexpr backend_info info{"ascend_next", {device::npu}};
  using overrides = op_list<op::swiglu>;
  static constexpr std::size_t vector_cores = 32;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

template <>
struct tigon::tile_rule<tigon::op::rms_norm, tigon::tiling::pass::forward, tigon::backends::ascend_next> {
  static constexpr tiling::rule value{.tiles = {12}, .programs = 1};
};
template <>
struct tigon::kernel<tigon::op::swiglu, tigon::backends::ascend_next>
    : tigon::kernel<tigon::op::swiglu, tigon::backends::ascend> {};

namespace {

using namespace tigon::test;
using tigon::default_context, tigon::matrix_view;
namespace ub = tigon::unified_buffer;

using adapted =
    tigon::op_list<tigon::op::geglu, tigon::op::swiglu, tigon::op::rms_norm, tigon::op::fused_add_rms_norm,
                   tigon::op::layer_norm, tigon::op::rope, tigon::op::softmax, tigon::op::cross_entropy,
                   tigon::op::fused_linear_cross_entropy, tigon::op::dyt, tigon::op::poly_norm,
                   tigon::op::qwen2vl_mrope, tigon::op::sparsemax, tigon::op::attn_res, tigon::op::embedding,
                   tigon::op::group_norm, tigon::op::llama4_rope, tigon::op::kl_div, tigon::op::jsd, tigon::op::tvd,
                   tigon::op::distillation, tigon::op::grpo_loss, tigon::op::moe_gather, tigon::op::moe_scatter,
                   tigon::op::mhc_coeffs, tigon::op::mhc_pre, tigon::op::mhc_post_res>;

TEST(ascend, provides_what_it_lists_and_inherits_the_rest) {
  using tigon::backends::ascend;
  static_assert(tigon::audit<ascend>(tigon::all_ops{}));
  static_assert(std::same_as<ascend::overrides, adapted>);
  static_assert(ascend::info.default_devices.contains(tigon::device::npu));
  static_assert(!ascend::info.devices.contains(tigon::device::cpu));
  for (const auto& row : tigon::coverage<ascend>(adapted{})) EXPECT_EQ(row.provider, "ascend") << row.op;
  static_assert(std::same_as<tigon::provider_t<tigon::op::gemm, ascend>, tigon::backends::highway>);
  static_assert(std::same_as<tigon::provider_t<tigon::op::relu_squared, ascend>, tigon::backends::generic>);
}

TEST(ascend, is_inherited_with_its_overrides) {
  using tigon::backends::ascend_next;
  static_assert(tigon::audit<ascend_next>(tigon::all_ops{}));
  for (const auto& row : tigon::coverage<usual_chip>(adapted{})) EXPECT_EQ(row.provider, "ascend") << row.op;
  for (const auto& row : tigon::coverage<ascend_next>(adapted{}))
    EXPECT_EQ(row.provider, row.op == "swiglu" ? "ascend_next" : "ascend") << row.op;
}

// The code is the vendor's, the numbers are those of the chip that is asked for.
TEST(ascend, takes_cores_capacity_and_rules_from_the_most_derived) {
  guarded_matrix<float> x = random_matrix<float>({100, 5000}, 1), y(100, 5000);
  guarded<float> rstd(100), again(100);
  const auto copied_by = [&]<class B>(B, std::size_t programs) {
    const audited ledger;
    tigon::rms_norm_forward<B>(x, tigon::absent, y.view(), rstd);
    EXPECT_EQ(counting_ledger::total.programs, programs);
    EXPECT_EQ(counting_ledger::total.capacity, B::tile_capacity_bits / 8);
    return counting_ledger::total.copied_in / (x.rows() * x.cols() * sizeof(float));
  };
  EXPECT_EQ(copied_by(usual_chip{}, 40), 2u);
  EXPECT_EQ(copied_by(small_chip{}, 40), 2u);
  EXPECT_EQ(copied_by(large_chip{}, 40), 1u);
  EXPECT_EQ(copied_by(tigon::backends::ascend_next{}, 32), 2u);
}

using gate_plan = ub::plan<usual_chip, tigon::op::swiglu, tigon::tiling::pass::forward, float>;

// What a faulty kernel would do: write one element too many on either side of a tile.
TEST(ascend_ledger, sees_a_write_outside_a_tile) {
  guarded_matrix<float> x = random_matrix<float>({1, 50}, 1);
  for (const std::ptrdiff_t at : {-1, 0, 49, 8191, 8192}) {
    counting_ledger::clear();
    {
      ub::vector_core<gate_plan> core(1, 50, gate_plan::cut_of(50));
      auto tiles = core.place(x.view(), x.view());
      volatile float* data = std::get<1>(tiles).data;
      data[at] = 1;
    }
    EXPECT_EQ(counting_ledger::total.programs, 1u);
    EXPECT_EQ(counting_ledger::total.damaged, at < 0 || at >= 8192 ? 1u : 0u) << at;
  }
}

TEST(ascend_ledger, sees_a_write_around_the_buffer) {
  for (const std::ptrdiff_t at :
       {std::ptrdiff_t{-1}, std::ptrdiff_t{0}, std::ptrdiff_t{192 * 1024 - 1}, std::ptrdiff_t{192 * 1024}}) {
    counting_ledger::clear();
    {
      ub::vector_core<gate_plan> core(0, 0, {1, 1, 1});
      volatile std::byte* memory = ub::this_core<gate_plan::capacity>() + ub::guard_bytes;
      memory[at] = std::byte{0};
    }
    EXPECT_EQ(counting_ledger::total.damaged, at < 0 || at >= 192 * 1024 ? 1u : 0u) << at;
  }
}

TEST(ascend_ledger, ends_the_program_where_nobody_else_keeps_it) {
  const ub::usage fine{.bytes = 100, .capacity = 100}, damaged{.bytes = 100, .capacity = 100, .intact = false},
      too_much{.bytes = 101, .capacity = 100};
  ub::abort_on_damage::note(fine);
  EXPECT_DEATH(ub::abort_on_damage::note(damaged), "tigon: a kernel wrote outside its tiles");
  EXPECT_DEATH(ub::abort_on_damage::note(too_much), "tigon: a kernel wrote outside its tiles");
}

// A buffer that is read before anything was copied in gives NaN here, so the other tests would see it.
TEST(ascend_ledger, poisons_what_was_not_copied_in) {
  guarded_matrix<float> x = random_matrix<float>({1, 50}, 1);
  ub::vector_core<gate_plan> core(1, 50, gate_plan::cut_of(50));
  auto tiles = core.place(matrix_view<const float>(x));
  EXPECT_TRUE(std::isnan(std::get<0>(tiles).data[0]));
  core.fetch(std::get<0>(tiles));
  EXPECT_EQ(std::get<0>(tiles).data[0], x(0, 0));
  EXPECT_TRUE(std::isnan(std::get<0>(tiles).data[50]));
}

// A program with every group of operands, of no operator, by both drivers.
struct all_groups {
  struct row {
    float about, scale;
  };
  template <class V>
  TIGON_INLINE tigon::pack<V, 2> reduce(float about, V x, V w) const {
    const V c = x - V(about);
    return {{c * w, c * c}};
  }
  TIGON_INLINE row finish(std::array<float, 2> sums, float about) const { return {about + sums[0], 1 / (1 + sums[1])}; }
  TIGON_INLINE std::array<float, 2> save(row of) const { return {of.about, of.scale}; }
  template <class V>
  TIGON_INLINE V direct(V x, V w) const {
    return x + w;
  }
  template <class V>
  TIGON_INLINE tigon::pack<V, 2> map(row of, V x, V w, V more, V dw) const {
    return {{(x - V(of.about)) * V(of.scale) * w + more, fma(x, more, dw)}};
  }
};
/// Rows of negative mean are reduced a second time, and those of which the second sum is above `most` are in f64.
template <class A>
struct some_rows {
  A cols, most;
  struct state {
    A mean = 0;
    bool again = false;
  };
  template <class V>
  TIGON_INLINE V reduce(V x) const {
    return x;
  }
  template <class V>
  TIGON_INLINE V reduce(state of, V x) const {
    return x - V(of.mean) - V(of.mean);
  }
  TIGON_INLINE bool again(state& of, A sum) const {
    if (of.again || !(sum < 0)) return false;
    of = {sum / cols, true};
    return true;
  }
  TIGON_INLINE A finish(state of, A sum) const { return of.again ? sum : -sum; }
  TIGON_INLINE A save(A value) const { return value; }
  TIGON_INLINE std::optional<some_rows<double>> in_f64(float value) const {
    if (!(value > most)) return {};
    return some_rows<double>{cols, most};
  }
  template <class V>
  TIGON_INLINE V map(A value, V x) const {
    return x * V(value) + V(A(sizeof(A)));
  }
};

// Rows that share a block, and rows of several blocks of columns.
TEST(ascend_programs, are_those_of_lanes) {
  using tiles = ub::on_tiles<usual_chip, tigon::op::fused_add_rms_norm, tigon::tiling::pass::backward>;
  for (const shape s : {shape{0, 7}, shape{150, 30, 2}, shape{37, 5000}}) {
    SCOPED_TRACE(testing::Message() << s);
    const comparison with{.may_be_empty = s.rows == 0};
    guarded_matrix<float> x = random_matrix<float>(s, 1), more = random_matrix<float>(s, 2);
    guarded<float> w = random_vector<float>(s.cols, 3), about = random_vector<float>(s.rows, 4);
    const auto run = [&]<class B>(B) {
      std::vector<std::vector<double>> results;
      guarded_matrix<float> sum(s.rows, s.cols, s.padding), y(s.rows, s.cols, s.padding), z(s.rows, s.cols, s.padding);
      guarded<float> first(s.rows), second(s.rows), dw = random_vector<float>(s.cols, 5);
      const matrix_view<const float> in = x, beside = more;
      const tigon::vector_view<const float> weight(w.data(), s.cols);
      tigon::reduce_map<B>(
          default_context(), all_groups{}, tigon::reads(in, weight), tigon::map_reads(beside),
          tigon::of_rows(static_cast<const float*>(about.data())), tigon::saves(first.data(), second.data()),
          tigon::reduce_writes(sum.view()), tigon::writes(y.view()),
          tigon::adds_to(tigon::parameter_gradient<float>{{dw.data(), s.cols}, tigon::gradient::accumulate}));
      results = {sum.f64(), y.f64(), first.f64(), second.f64(), dw.f64()};
      tigon::reduce_map<B>(default_context(), some_rows<float>{static_cast<float>(s.cols), 1.5f}, tigon::reads(in),
                           tigon::writes(z.view()), tigon::saves(first.data()));
      results.push_back(z.f64()), results.push_back(first.f64());
      EXPECT_TRUE(sum.padding_intact() && y.padding_intact() && z.padding_intact());
      return results;
    };
    const auto on_lanes = run(tigon::backends::highway{});
    const audited ledger;
    const auto on_tiles = run(tiles{});
    for (std::size_t k = 0; k < on_lanes.size(); ++k) {
      SCOPED_TRACE(testing::Message() << "result " << k);
      EXPECT_TRUE(close(on_tiles[k], on_lanes[k], 1e-5, with));
    }
  }
}

}  // namespace

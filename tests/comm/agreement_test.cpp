// Doors that ranks call together: what they tell one another before the first write names the element types and the
// options, not sizes alone. Kernels are not compiled.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tigon/comm/threads.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>
#include <tigon/ops/expert_parallel_moe.hpp>
#include <vector>

#include "support/option_table.hpp"

TIGON_TEST_NO_KERNELS(op::expert_parallel_moe, op::vocab_parallel_cross_entropy,
                      op::vocab_parallel_fused_linear_cross_entropy,
                      op::vocab_parallel_fused_linear_scaled_cross_entropy)

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::float16, tigon::communicator_ref, tigon::geglu_options, tigon::swiglu_options;
using B = tigon::backends::no_kernels;
using call = std::function<void(communicator_ref)>;

/// Ranks 0 and 1 make these calls; both throw error_code::state with this sentence.
void expect_another(const std::string& part, const call& of_0, const call& of_1) {
  std::string said[2];
  kernel_calls = 0;
  tigon::comm::threads::run(2, [&](const tigon::comm::threads& c) {
    try {
      (c.rank() == 0 ? of_0 : of_1)(c);
    } catch (const tigon::error& e) {
      said[c.rank()] = std::string(tigon::error_code_name(e.code())) + ": " + e.what();
    }
  });
  for (const std::string& sentence : said) {
    EXPECT_EQ(sentence.find("state: tigon: "), 0u) << sentence << part;
    EXPECT_NE(sentence.find(part), sentence.npos) << sentence;
  }
  EXPECT_EQ(kernel_calls, 0) << part;
}

/// The operands of one rank's experts, of 2 tokens, 2 experts, k = 1, hidden 4 and intermediate 2.
template <class T, class W = T, class R = T>
struct experts {
  option_table<T> t;
  option_table<W> of_w;
  option_table<R> of_r;
  std::vector<std::int32_t> chosen{0, 3};
  tigon::moe_choices<std::int32_t, R> choices{{chosen.data(), 2, 1}, of_r.in(2, 1)};
  tigon::moe_weights<const W> weights{of_w.in(8, 4), of_w.in(8, 2), 2};

  template <class Gate = tigon::mlp_gate>
  call forward(Gate gate = {}) {
    return [=, this, y = t.out(2, 4)](communicator_ref c) {
      tigon::expert_parallel_moe_forward<B>(c, t.in(2, 4), choices, weights, y,
                                            tigon::expert_parallel_moe_options_for<Gate>{.gate = gate});
    };
  }
  template <class Gate = tigon::mlp_gate>
  call backward(Gate gate = {}) {
    return [=, this, to = tigon::moe_gradients<T, W, R>{t.out(2, 4), of_w.out(8, 4), of_w.out(8, 2), of_r.out(2, 1)}](
               communicator_ref c) {
      tigon::expert_parallel_moe_backward<B>(c, t.in(2, 4), t.in(2, 4), choices, weights, to,
                                             tigon::expert_parallel_moe_options_for<Gate>{.gate = gate});
    };
  }
};

TEST(agreement, of_experts_names_element_types) {
  experts<bfloat16> a;
  experts<float16> b;
  const std::string part = ": the type of x is f16 on rank 1; expected bf16, as on rank 0";
  expect_another("expert_parallel_moe_forward" + part, a.forward(), b.forward());
  expect_another("expert_parallel_moe_backward" + part, a.backward(), b.backward());
  experts<bfloat16, bfloat16, float16> weights;
  expect_another("the type of weights is f16 on rank 1; expected bf16", a.forward(), weights.forward());
  experts<bfloat16, float16> gate_up;
  expect_another("the type of gate_up and down is f16 on rank 1; expected bf16", a.backward(), gate_up.backward());
}

TEST(agreement, of_experts_is_of_the_gate_too) {
  experts<bfloat16> a, b;
  const std::string part = "the gate is another on rank 1; expected the same as on rank 0";
  expect_another(part, a.forward(), b.forward(tigon::mlp_gate::geglu));
  expect_another(part, a.forward(swiglu_options{}), b.forward(swiglu_options{.limit = 7}));
  expect_another(part, a.backward(swiglu_options{.slope = 1.702}), b.backward(swiglu_options{.slope = 1.7}));
  expect_another(part, a.backward(geglu_options{}), b.backward(geglu_options{.round_gate = true}));
}

/// A rank's calls of the losses, of 4 rows and 3 of 6 classes.
template <class T, class W = T>
struct classes {
  option_table<T> t;
  option_table<W> of_w;
  std::vector<std::int64_t> ids{0, 1, 2, 5};
  std::vector<float> numbers = std::vector<float>(64);

  std::span<float> results(std::size_t n) { return std::span(numbers).subspan(n, 4); }
  call forward() {
    return [this](communicator_ref c) {
      tigon::vocab_parallel_cross_entropy_forward<B>(c, t.in(4, 3), {3 * c.rank(), 6}, ids,
                                                     {results(0), results(16), results(32)});
    };
  }
  using types = tigon::linear_types<T, W, W>;
  tigon::linear_shard<types> shard(std::size_t rank) { return {{t.in(4, 2), of_w.in(3, 2)}, {3 * rank, 6}}; }
  call linear() {
    return [this](communicator_ref c) {
      tigon::vocab_parallel_fused_linear_cross_entropy_forward<B>(c, shard(c.rank()), ids, {results(0).first(1)});
    };
  }
  call scaled() {
    return [this](communicator_ref c) {
      tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward<B>(c, shard(c.rank()), ids, {results(0)});
    };
  }
};

TEST(agreement, of_classes_names_element_types) {
  classes<bfloat16> a;
  classes<float16> b;
  const std::string part = "type is another on rank 1; expected the same as on rank 0";
  expect_another("vocab_parallel_cross_entropy_forward: " + part, a.forward(), b.forward());
  expect_another("vocab_parallel_fused_linear_cross_entropy_forward: " + part, a.linear(), b.linear());
  expect_another("vocab_parallel_fused_linear_scaled_cross_entropy_forward: " + part, a.scaled(), b.scaled());
  classes<bfloat16, float16> w;
  expect_another(part, a.linear(), w.linear());
}

}  // namespace

// The contract of include/tigon/ops/moe.hpp, promise by promise.
// Operators: moe moe_gather moe_scatter
#include <gtest/gtest.h>

#include <tigon/ops/moe.hpp>

#include <algorithm>
#include <functional>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/moe_problem.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// A few pairs at a time.
using few_pairs = small_chunks_of<test::usual_backend, 4096>;
/// Products, a gate and an order of its own.
struct own_parts : few_pairs {
  using parent = few_pairs;
  static constexpr backend_info info{"own_parts", {device::cpu}};
  using overrides = op_list<op::gemm, op::swiglu, op::moe_routing>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

inline std::size_t products = 0, product_rows = 0, forward_gates = 0, backward_gates = 0, orders = 0;

template <class Op>
using usual_kernel = tigon::kernel<Op, tigon::provider_t<Op, tigon::test::usual_backend>>;

template <>
struct tigon::kernel<tigon::op::gemm, tigon::backends::own_parts> : usual_kernel<tigon::op::gemm> {
  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    static_assert(std::same_as<B, backends::own_parts>);
    ++products;
    if (opt.a == transpose::no) product_rows += c.rows;
    usual_kernel<op::gemm>::template forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }
};
template <>
struct tigon::kernel<tigon::op::swiglu, tigon::backends::own_parts> : usual_kernel<tigon::op::swiglu> {
  template <tigon::backend B, tigon::element T, class... Rest>
  static void forward(Rest&&... rest) {
    static_assert(std::same_as<B, tigon::backends::own_parts>);
    ++forward_gates;
    usual_kernel<tigon::op::swiglu>::template forward<B, T>(std::forward<Rest>(rest)...);
  }
  template <tigon::backend B, tigon::element T, class... Rest>
  static void backward(Rest&&... rest) {
    ++backward_gates;
    usual_kernel<tigon::op::swiglu>::template backward<B, T>(std::forward<Rest>(rest)...);
  }
};
template <>
struct tigon::kernel<tigon::op::moe_routing, tigon::backends::own_parts> : usual_kernel<tigon::op::moe_routing> {
  template <tigon::backend B, tigon::token_id I, tigon::token_id O, class... Rest>
  static void forward(Rest&&... rest) {
    ++orders;
    usual_kernel<tigon::op::moe_routing>::template forward<B, I, O>(std::forward<Rest>(rest)...);
  }
};

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gate_layout, tigon::gradient, tigon::matrix_view,
    tigon::moe_options, tigon::moe_pass;
using tigon::backends::few_pairs;

// Not every type on every backend: three products are compiled for each, and golden values run on every engine in f32.
#if defined(TIGON_CONFORMANCE_BACKEND)
using moe_pairs = testing::Types<on<usual_backend, float>, on<few_pairs, float>, on<few_pairs, bfloat16>,
                                 on<few_pairs, tigon::float16>, on<few_pairs, double>>;
#else
using moe_pairs = with_engines<list<on<single_numbers, double>, on<few_pairs, float>, on<few_pairs, bfloat16>>,
                               on<tigon::backends::generic, float>, on<few_pairs, double>,
                               on<tigon::backends::eigen, tigon::float16>, on<bf16_backend, bfloat16>>;
#endif

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class T, class W = T, class G = W, class R = T, class I = std::int32_t>
struct problem : moe_problem<T, W, G, R, I> {
  using moe_problem<T, W, G, R, I>::moe_problem;

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::moe_forward<B, T>(this->x, this->choices(), this->experts(), this->y.view(), this->saved, this->opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void inference(context& ctx = tigon::default_context()) {
    tigon::moe_forward_inference<B, T>(this->x, this->choices(), this->experts(), this->y.view(), this->opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::moe_gradients<T, G, R> to, context& ctx = tigon::default_context()) {
    tigon::moe_backward<B, T>(this->dy, this->x, this->choices(), this->experts(), this->saved, to, this->opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void recompute(tigon::moe_gradients<T, G, R> to, context& ctx = tigon::default_context()) {
    tigon::moe_backward_recompute<B, T>(this->dy, this->x, this->choices(), this->experts(), to, this->opt, ctx);
  }
};

const moe_sizes every_moe_size[] = {
    {1, 1, 1, 1, 1},
    {7, 2, 4, 33, 17, 3},
    {1, 2, 5, 16, 9},     // most experts have no tokens
    {9, 3, 3, 5, 40, 1},  // every token chooses every expert
    {20, 1, 6, 17, 8, 2},
    {6, 4, 5, 20, 3, 1, chosen::few},           // an expert several times in a token
    {30, 2, 3, 12, 19, 0, chosen::one_expert},  // one expert has them all, twice
    {0, 2, 3, 5, 7},                            // no tokens
    {4, 0, 3, 5, 7, 1},                         // no choices
    {5, 2, 3, 0, 7},
    {5, 2, 3, 6, 0},
};
struct variant {
  const char* name;
  moe_options opt;
};
const variant variants[] = {{"halves", {}},
                            {"interleaved", {.layout = gate_layout::interleaved}},
                            {"added", {.dw = gradient::accumulate}},
                            {"interleaved, added", {gate_layout::interleaved, gradient::accumulate}}};

template <class On>
class moe : public testing::Test {};
TYPED_TEST_SUITE(moe, moe_pairs, names);

TYPED_TEST(moe, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const moe_sizes& s : every_moe_size)
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v.opt, side);
        const auto wanted = p.wanted();
        p.template forward<B>();
        p.expect_value(wanted);
        EXPECT_TRUE(p.saved.filled);
        EXPECT_TRUE(p.memory.padding_intact());
        const auto kept = bits_of(p.memory);
        p.template backward<B>(p.all());
        p.expect_gradients(wanted);
        EXPECT_EQ(bits_of(p.memory), kept);

        // Without anything saved, the same bits.
        problem<T> again(s, v.opt, side);
        again.template inference<B>();
        again.template recompute<B>(again.all());
        EXPECT_EQ(bits_of(again.y), bits_of(p.y));
        EXPECT_EQ(again.gradients(), p.gradients());
        EXPECT_TRUE(again.memory.untouched());
      }
}

TYPED_TEST(moe, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const moe_sizes s{20, 2, 3, 17, 45};
  problem<T> full(s);
  full.template forward<B>();
  full.template backward<B>(full.all());
  for (int which = 0; which < 16; ++which) {
    problem<T> p(s), again(s);
    const bool dx = which & 1, dgate_up = which & 2, ddown = which & 4, dweights = which & 8;
    p.template forward<B>();
    for (problem<T>* one : {&p, &again}) {
      auto to = one->all();
      if (!dx) to.dx = {};
      if (!dgate_up) to.dgate_up = {};
      if (!ddown) to.ddown = {};
      if (!dweights) to.dweights = {};
      if (one == &p)
        one->template backward<B>(to);
      else
        one->template recompute<B>(to);
      EXPECT_TRUE(dx ? bits_of(one->dx) == bits_of(full.dx) : one->dx.untouched()) << which;
      EXPECT_TRUE(dgate_up ? bits_of(one->dgate_up) == bits_of(full.dgate_up) : one->dgate_up.untouched()) << which;
      EXPECT_TRUE(ddown ? bits_of(one->ddown) == bits_of(full.ddown) : one->ddown.untouched()) << which;
      EXPECT_TRUE(dweights ? bits_of(one->dweights) == bits_of(full.dweights) : one->dweights.untouched()) << which;
    }
  }
}

// Choices in another order: the same sums in the same order.
TYPED_TEST(moe, order_of_a_tokens_choices_changes_no_bit) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const moe_sizes s{23, 3, 7, 18, 20, 1};
  problem<T> p(s), turned(s);
  for (std::size_t t = 0; t < s.tokens; ++t)
    for (std::size_t j = 0; j < s.choices; ++j) {
      turned.indices(t, j) = p.indices(t, s.choices - 1 - j);
      turned.weights(t, j) = p.weights(t, s.choices - 1 - j);
    }
  for (problem<T>* one : {&p, &turned}) {
    one->template forward<B>();
    one->template backward<B>(one->all());
  }
  EXPECT_EQ(bits_of(turned.y, turned.dx, turned.dgate_up, turned.ddown), bits_of(p.y, p.dx, p.dgate_up, p.ddown));
  for (std::size_t t = 0; t < s.tokens; ++t)
    for (std::size_t j = 0; j < s.choices; ++j)
      EXPECT_EQ(to_f64(turned.dweights(t, j)), to_f64(p.dweights(t, s.choices - 1 - j)));
}

TYPED_TEST(moe, bad_tokens_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const moe_sizes s{12, 2, 4, 5, 30};
  problem<T> clean(s), p(s);
  p.x(4, 2) = from_f64<T>(nan);
  for (problem<T>* each : {&clean, &p}) {
    each->template forward<B>();
    each->template backward<B>(each->all());
  }
  for (std::size_t i = 0; i < s.tokens; ++i)
    for (std::size_t h = 0; h < s.hidden; ++h) {
      EXPECT_TRUE(i == 4 ? std::isnan(to_f64(p.y(i, h))) : to_f64(p.y(i, h)) == to_f64(clean.y(i, h))) << i;
      EXPECT_TRUE(i == 4 ? std::isnan(to_f64(p.dx(i, h))) : to_f64(p.dx(i, h)) == to_f64(clean.dx(i, h))) << i;
    }
  for (std::size_t e = 0; e < s.experts; ++e) {
    const bool bad = p.expert[8] == e || p.expert[9] == e;
    EXPECT_EQ(std::isnan(to_f64(p.ddown(e * s.hidden, 0))), bad) << e;
    EXPECT_EQ(std::isnan(to_f64(p.dgate_up(e * 2 * s.intermediate, 0))), bad) << e;
  }
}

// An empty std::vector has no memory, and neither has a mixture without tokens; its weights have gradients of zero.
TYPED_TEST(moe, nothing_needs_no_memory) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({0, 2, 3, 5, 7});
  p.saved.memory = {nullptr, 0, 14};
  const std::size_t bytes =
      std::max(tigon::moe_workspace<B, T>(moe_pass::forward, p.s), tigon::moe_workspace<B, T>(moe_pass::backward, p.s));
  with_workspace_of(bytes, [&](context& ctx) {
    p.template forward<B>(ctx);
    p.template backward<B>(p.all(), ctx);
  });
  for (const auto& zeros : {p.dgate_up.f64(), p.ddown.f64()})
    EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
}

TYPED_TEST(moe, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const moe_sizes& s : {moe_sizes{90, 2, 3, 40, 53}, moe_sizes{60, 3, 4, 130, 20, 0, chosen::few}}) {
    problem<T> p(s);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.clear();
      p.template forward<B>(ctx);
      p.template backward<B>(p.all(), ctx);
      auto bits = bits_of(p.y, p.dx, p.dgate_up, p.ddown, p.dweights, p.memory);
      p.clear();
      p.template inference<B>(ctx);
      p.template recompute<B>(p.all(), ctx);
      const auto more = bits_of(p.y, p.dx, p.dgate_up, p.ddown, p.dweights);
      bits.insert(bits.end(), more.begin(), more.end());
      return bits;
    }));
  }
}

TYPED_TEST(moe, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const moe_sizes& s :
       {moe_sizes{20, 2, 3, 17, 67}, moe_sizes{37, 3, 5, 67, 5}, moe_sizes{50, 2, 4, 9, 13, 0, chosen::one_expert}})
    for (const std::size_t threads : {1u, 3u}) {
      problem<T> p(s);
      const auto named = [&](moe_pass pass, const char* sentence, auto call) {
        const std::size_t bytes = tigon::moe_workspace<B, T>(pass, s, threads);
        EXPECT_TRUE(refuses([&] { with_workspace_of(bytes - 1, call, threads); }, tigon::error_code::workspace,
                            sentence, p.y, p.dx, p.dgate_up, p.ddown, p.dweights));
        with_workspace_of(bytes, call, threads);
      };
      named(moe_pass::forward, "moe_forward: workspace is of", [&](context& ctx) { p.template forward<B>(ctx); });
      named(moe_pass::backward, "moe_backward: workspace is of",
            [&](context& ctx) { p.template backward<B>(p.all(), ctx); });
      named(moe_pass::inference, "moe_forward_inference: workspace is of",
            [&](context& ctx) { p.template inference<B>(ctx); });
      named(moe_pass::recompute, "moe_backward_recompute: workspace is of",
            [&](context& ctx) { p.template recompute<B>(p.all(), ctx); });
    }
}

TEST(moe_types, weights_and_their_gradients_may_have_their_own) {
  using B = usual_backend;
  const moe_sizes s{12, 2, 3, 20, 33, 1};
  const auto check = [&](auto p) {
    const auto wanted = p.wanted();
    p.template forward<B>();
    p.expect_value(wanted);
    p.template backward<B>(p.all());
    p.expect_gradients(wanted);
  };
  check(problem<bfloat16, bfloat16, float, float, std::int64_t>(s, {.dw = gradient::accumulate}));
  check(problem<float, bfloat16, float, bfloat16>(s));
}

// Hundreds of chunks of one expert: their sums of gradients are compensated in f32, and made in f32 for 16 bits.
TEST(moe_chunks, do_not_let_the_error_grow) {
  const moe_sizes s{700, 1, 2, 12, 70, 0, chosen::one_expert};
  const auto check = [&](auto p) {
    const auto wanted = p.wanted();
    p.template forward<few_pairs>();
    p.expect_value(wanted);
    p.template backward<few_pairs>(p.all());
    p.expect_gradients(wanted);
  };
  for (const gradient dw : {gradient::overwrite, gradient::accumulate}) {
    check(problem<float>(s, {.dw = dw}));
    check(problem<bfloat16>(s, {.dw = dw}));
  }
}

TEST(moe_formula, is_the_derivative_of_its_definition) {
  using complex = std::complex<double>;
  for (const moe_sizes& s : {moe_sizes{3, 2, 3, 4, 5}, moe_sizes{4, 3, 3, 3, 2, 0, chosen::few}}) {
    const auto expert = experts_of(s);
    const std::size_t n = s.experts * s.hidden * s.intermediate;
    const moe_operands<double> o{normal_values(s.tokens * s.hidden, 1), normal_values(s.pairs(), 2),
                                 normal_values(n, 3), normal_values(n, 4), normal_values(n, 5)};
    const auto dy = normal_values(s.tokens * s.hidden, 6);
    const auto r = moe_reference(s, expert, o, dy);
    const auto same = [&](const std::vector<double>& gradient, auto member, auto complex_member) {
      const auto loss = [&](const std::vector<complex>& z) {
        const auto c = [](const std::vector<double>& v) { return std::vector<complex>(v.begin(), v.end()); };
        moe_operands<complex> at{c(o.x), c(o.weights), c(o.gate), c(o.up), c(o.down)};
        at.*complex_member = z;
        const std::vector<complex> y = moe_value(s, expert, at);
        complex sum = 0;
        for (std::size_t k = 0; k < y.size(); ++k) sum += dy[k] * y[k];
        return sum;
      };
      const auto where = probes(gradient.size());
      EXPECT_TRUE(close(pick(gradient, where), complex_step(loss, o.*member, where), 1e-13));
    };
    using real = moe_operands<double>;
    using imaginary = moe_operands<complex>;
    same(r.dx, &real::x, &imaginary::x);
    same(r.dweights, &real::weights, &imaginary::weights);
    same(r.dgate, &real::gate, &imaginary::gate);
    same(r.dup, &real::up, &imaginary::up);
    same(r.ddown, &real::down, &imaginary::down);
  }
}

// Numbers made by hand.
TEST(moe_numbers, are_those_of_an_example) {
  const moe_sizes s{2, 2, 3, 2, 1};
  problem<double> p(s);
  p.x.assign({1, 2, -1, .5});
  p.gate_up.assign({1, 0, 0, 1, .5, .5, 1, -1, -1, 1, 2, 0});
  p.down.assign({1, 2, -1, 1, .5, 3});
  p.indices.assign({2, 0, 0, 1});
  p.weights.assign({.75, .25, .6, .4});
  p.dy.assign({1, 0, 0, 1});
  p.forward<usual_backend>();
  p.backward<usual_backend>(p.all());
  const auto near = [](const auto& got, std::vector<double> want) { EXPECT_TRUE(close(got.f64(), want, 1e-7)); };
  near(p.memory, {1, 2, -1, .5, -.25, -1.5, 1, 2});
  near(p.y, {.9138232, 4.0208222, -.1463560, -.0956913});
  near(p.dx, {.3163763, .8785176, -.1132717, -.3918343});
  near(p.dgate_up, {.4204376, .9493694, .5054944, .2041644, .2257740, -.1128870, .0437823, -.0218912, .6957529,
                    1.3915058, .2741470, .5482939});
  near(p.ddown, {.3655293, -.0806824, 0, .0656735, 1.0965879, 0});
  near(p.dweights, {.7310586, 1.4621172, -.2689414, .1641838});
}

TEST(moe_parts, of_a_backend_are_used) {
  if (!std::same_as<usual_provider<tigon::op::moe>, tigon::backends::generic>)
    GTEST_SKIP() << "a mixture of the backend's own is made of what it likes";
  using B = tigon::backends::own_parts;
  problem<float> p({20, 2, 4, 17, 45});
  const auto wanted = p.wanted();
  products = product_rows = forward_gates = backward_gates = orders = 0;
  p.forward<B>();
  EXPECT_EQ(product_rows, 3 * p.s.pairs());  // none is padded, none made twice
  EXPECT_EQ(products, 3 * forward_gates);
  EXPECT_GE(forward_gates, 4u);
  EXPECT_EQ(orders, 1u);
  products = product_rows = forward_gates = 0;
  p.backward<B>(p.all());
  EXPECT_EQ(product_rows, 3 * p.s.pairs());
  EXPECT_EQ(products, 6 * backward_gates);
  EXPECT_GE(backward_gates, 4u);
  EXPECT_EQ(orders, 2u);
  p.expect_value(wanted), p.expect_gradients(wanted);
}

TEST(moe_memory, is_a_chunk_and_no_copy_of_weights) {
  using B = usual_backend;
  if (!std::same_as<usual_provider<tigon::op::moe>, tigon::backends::generic>)
    GTEST_SKIP() << "a mixture of the backend's own takes what it names";
  const tigon::moe_shape s{8192, 8, 128, 2048, 768};
  const std::size_t sums = s.tokens * s.hidden * sizeof(float), order = s.tokens * s.choices * sizeof(std::int64_t);
  const std::size_t of_expert = 3 * s.hidden * s.intermediate * sizeof(float);
  const std::size_t chunk = B::chunk.logits_bytes, products = std::size_t{64} << 20;
  const auto bytes = [&]<class T>(T, moe_pass pass) { return tigon::moe_workspace<B, T>(pass, s); };
  EXPECT_LE(bytes(float(), moe_pass::forward), chunk + order + products);
  EXPECT_LE(bytes(float(), moe_pass::recompute), chunk + order + products + 2 * of_expert);
  EXPECT_LE(bytes(bfloat16(), moe_pass::forward), chunk + order + products + sums);
  EXPECT_LE(bytes(bfloat16(), moe_pass::recompute), chunk + order + products + sums + of_expert);
}

// Sums of the gradients of an expert over its chunks.
TEST(moe_memory, of_gradients_is_for_those_who_want_them) {
  constexpr moe_pass recompute = moe_pass::recompute;
  const tigon::moe_shape s{700, 2, 2, 512, 512};
  const std::size_t sums = 3 * s.hidden * s.intermediate * sizeof(float);
  const std::size_t trained = tigon::moe_workspace<few_pairs, bfloat16>(recompute, s);
  EXPECT_LE((tigon::moe_workspace<few_pairs, bfloat16>(moe_pass::inference, s)) + sums, trained);
  EXPECT_LE((tigon::moe_workspace<few_pairs, bfloat16>(recompute, s, 1, tigon::parameters::frozen)) + sums, trained);
}

/// The doors, which are the same for every backend: refused before the first write.
class moe_doors : public testing::Test {
 protected:
  using view = matrix_view<float>;
  struct arguments {
    view x, gate_up, down, weights, y, dy, dx, dgate_up, ddown, dweights;
    matrix_view<std::int32_t> indices;
    tigon::moe_saved<float>* saved;
    std::size_t experts = 3;
    moe_options opt = {};
  };
  moe_doors() { p.forward<tigon::default_backend>(), p.y.clear(), all.assign(std::vector<double>(200, 1)); }

  using changes = const std::function<void(arguments&)>&;
  void refuses_call(tigon::error_code code, const std::string& part, void (*call)(arguments&), changes change) {
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses([&] { call(a); }, code, part, p.y, p.memory, p.dx, p.dgate_up, p.ddown, p.dweights, all));
  }
  void refuses_forward(tigon::error_code code, const std::string& part, changes change) {
    const auto forward = [](arguments& a) {
      tigon::moe_forward(a.x, tigon::moe_choices{a.indices, a.weights},
                         tigon::moe_weights{a.gate_up, a.down, a.experts}, a.y, *a.saved, a.opt);
    };
    refuses_call(code, "moe_forward: " + part, forward, change);
    if (part.find("saved") != part.npos) return;
    const auto inference = [](arguments& a) {
      tigon::moe_forward_inference(a.x, tigon::moe_choices{a.indices, a.weights},
                                   tigon::moe_weights{a.gate_up, a.down, a.experts}, a.y, a.opt);
    };
    refuses_call(code, "moe_forward_inference: " + part, inference, change);
  }
  void refuses_backward(tigon::error_code code, const std::string& part, changes change) {
    const auto backward = [](arguments& a) {
      tigon::moe_backward(a.dy, a.x, tigon::moe_choices{a.indices, a.weights},
                          tigon::moe_weights{a.gate_up, a.down, a.experts}, *a.saved,
                          tigon::moe_gradients{a.dx, a.dgate_up, a.ddown, a.dweights}, a.opt);
    };
    refuses_call(code, "moe_backward: " + part, backward, change);
    if (part.find("saved") != part.npos) return;
    const auto recompute = [](arguments& a) {
      tigon::moe_backward_recompute(a.dy, a.x, tigon::moe_choices{a.indices, a.weights},
                                    tigon::moe_weights{a.gate_up, a.down, a.experts},
                                    tigon::moe_gradients{a.dx, a.dgate_up, a.ddown, a.dweights}, a.opt);
    };
    refuses_call(code, "moe_backward_recompute: " + part, recompute, change);
  }
  void refuses_both(tigon::error_code code, const std::string& part, changes change) {
    refuses_forward(code, part, change);
    refuses_backward(code, part, change);
  }

  problem<float> p{{4, 2, 3, 5, 6, 1}};
  guarded<float> all = guarded<float>(200);
  tigon::moe_saved<float> wrong{p.memory.view(), true};
  const view token{all.data(), 4, 5}, wide{all.data(), 36, 5}, tall{all.data(), 15, 6}, pair{all.data(), 4, 2};
  const arguments good{p.x.view(),  p.gate_up.view(),  p.down.view(),  p.weights.view(),  p.y.view(),       p.dy.view(),
                       p.dx.view(), p.dgate_up.view(), p.ddown.view(), p.dweights.view(), p.indices.view(), &p.saved};
};

TEST_F(moe_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  refuses_both(shape, "experts is 0; expected at least 1", [](auto& a) { a.experts = 0; });
  refuses_both(shape, "x is a null pointer", [](auto& a) { a.x.data = nullptr; });
  refuses_both(stride, "x is of row stride 4", [](auto& a) { a.x.row_stride = 4; });
  refuses_both(shape, "indices is 3 x 2; expected 4 x 2", [](auto& a) { a.indices.rows = 3; });
  refuses_both(shape, "weights is 4 x 1; expected 4 x 2", [](auto& a) { a.weights.cols = 1; });
  refuses_both(shape, "gate_up is 36 x 4; expected 36 x 5", [](auto& a) { a.gate_up.cols = 4; });
  refuses_both(shape, "gate_up is 36 x 5; expected 24 x 5", [](auto& a) { a.experts = 2; });
  refuses_both(shape, "down is 14 x 6; expected 15 x 6", [](auto& a) { a.down.rows = 14; });
  refuses_both(stride, "down is of row stride 5", [](auto& a) { a.down.row_stride = 5; });
  refuses_forward(shape, "y is 3 x 5; expected 4 x 5", [](auto& a) { a.y.rows = 3; });
  refuses_forward(shape, "saved is 8 x 11; expected 8 x 12",
                  [&](auto& a) { wrong.memory.cols = 11, a.saved = &wrong; });
  refuses_backward(shape, "saved is 7 x 12; expected 8 x 12",
                   [&](auto& a) { wrong.memory = p.memory.view(), wrong.memory.rows = 7, a.saved = &wrong; });
  refuses_backward(shape, "dy is 4 x 4; expected 4 x 5", [](auto& a) { a.dy.cols = 4; });
  refuses_backward(shape, "dx is 3 x 5; expected 4 x 5", [](auto& a) { a.dx.rows = 3; });
  refuses_backward(shape, "dgate_up is 35 x 5; expected 36 x 5", [](auto& a) { a.dgate_up.rows = 35; });
  refuses_backward(shape, "ddown is 15 x 5; expected 15 x 6", [](auto& a) { a.ddown.cols = 5; });
  refuses_backward(shape, "dweights is 4 x 1; expected 4 x 2", [](auto& a) { a.dweights.cols = 1; });
}

TEST_F(moe_doors, refuse_experts_that_are_not_there) {
  using enum tigon::error_code;
  for (const std::int32_t bad : {3, -1}) {
    p.indices(3, 1) = bad;
    refuses_both(index, "indices[3, 1] is " + std::to_string(bad) + "; expected at least 0 and below 3", [](auto&) {});
  }
}

TEST_F(moe_doors, refuse_a_backward_before_a_forward) {
  wrong.filled = false;
  refuses_backward(tigon::error_code::state, "saved is empty; expected what a forward left",
                   [&](auto& a) { a.saved = &wrong; });
}

TEST_F(moe_doors, refuse_common_memory) {
  using enum tigon::error_code;
  refuses_forward(alias, "y overlaps x", [](auto& a) { a.y = a.x; });
  refuses_forward(alias, "y overlaps weights", [&](auto& a) { a.y = token, a.weights = pair; });
  refuses_forward(alias, "y overlaps gate_up", [&](auto& a) { a.y = token, a.gate_up = wide; });
  refuses_forward(alias, "y overlaps down", [&](auto& a) { a.y = token, a.down = tall; });
  wrong.memory = {all.data(), 8, 12};
  refuses_forward(alias, "saved overlaps x", [&](auto& a) { a.saved = &wrong, a.x = token; });
  refuses_forward(alias, "saved overlaps y", [&](auto& a) { a.saved = &wrong, a.y = token; });
  refuses_backward(alias, "dx overlaps saved", [&](auto& a) { a.saved = &wrong, a.dx = token; });
  refuses_backward(alias, "dgate_up overlaps saved", [&](auto& a) { a.saved = &wrong, a.dgate_up = wide; });
  refuses_backward(alias, "dx overlaps dy", [](auto& a) { a.dx = a.dy; });
  refuses_backward(alias, "dx overlaps x", [](auto& a) { a.dx = a.x; });
  refuses_backward(alias, "dgate_up overlaps gate_up", [](auto& a) { a.dgate_up = a.gate_up; });
  refuses_backward(alias, "ddown overlaps down", [](auto& a) { a.ddown = a.down; });
  refuses_backward(alias, "dweights overlaps weights", [](auto& a) { a.dweights = a.weights; });
  refuses_backward(alias, "dgate_up overlaps dx", [&](auto& a) { a.dx = token, a.dgate_up = wide; });
  refuses_backward(alias, "ddown overlaps dgate_up", [&](auto& a) { a.dgate_up = wide, a.ddown = tall; });
  refuses_backward(alias, "dweights overlaps ddown", [&](auto& a) { a.ddown = tall, a.dweights = pair; });
}

}  // namespace

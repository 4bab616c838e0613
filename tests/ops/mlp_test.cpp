// The contract of include/tigon/ops/mlp.hpp, promise by promise.
#include <gtest/gtest.h>

#include <functional>
#include <tigon/ops/mlp.hpp>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/mlp_problem.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// Products and a gate of its own.
struct own_parts : small_blocks {
  using parent = small_blocks;
  static constexpr backend_info info{"own_parts", {device::cpu}};
  using overrides = op_list<op::gemm, op::swiglu, op::geglu>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

inline std::size_t products = 0, forward_gates = 0, backward_gates = 0;

template <class Op>
using usual_kernel = tigon::kernel<Op, tigon::provider_t<Op, tigon::test::usual_backend>>;

template <>
struct tigon::kernel<tigon::op::gemm, tigon::backends::own_parts> : usual_kernel<tigon::op::gemm> {
  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    static_assert(std::same_as<B, backends::own_parts>);
    ++products;
    usual_kernel<op::gemm>::template forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }
};
template <class Op>
struct counting_gate : usual_kernel<Op> {
  template <tigon::backend B, tigon::element T, class... Rest>
  static void forward(Rest&&... rest) {
    static_assert(std::same_as<B, tigon::backends::own_parts>);
    ++forward_gates;
    usual_kernel<Op>::template forward<B, T>(std::forward<Rest>(rest)...);
  }
  template <tigon::backend B, tigon::element T, class... Rest>
  static void backward(Rest&&... rest) {
    ++backward_gates;
    usual_kernel<Op>::template backward<B, T>(std::forward<Rest>(rest)...);
  }
};
template <>
struct tigon::kernel<tigon::op::swiglu, tigon::backends::own_parts> : counting_gate<tigon::op::swiglu> {};
template <>
struct tigon::kernel<tigon::op::geglu, tigon::backends::own_parts> : counting_gate<tigon::op::geglu> {};

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gradient, tigon::matrix_view, tigon::mlp_gate,
    tigon::mlp_options, tigon::mlp_pass, tigon::transpose;
using tigon::backends::small_blocks;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// With memory for what forward leaves.
template <class T, class W = T, class G = W>
struct problem : mlp_problem<T, W, G> {
  guarded_matrix<T> memory;
  tigon::mlp_saved<T> saved;

  TIGON_TEST_NOINLINE explicit problem(mlp_sizes s, mlp_options o = {}, guard side = guard::behind)
      : mlp_problem<T, W, G>(s, o, side), memory(s.tokens, 3 * s.intermediate, s.padding, side), saved{memory.view()} {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::mlp_forward<B, T>(this->x, tigon::mlp_weights{this->wg.view(), this->wu.view(), this->wd.view()},
                             this->y.view(), saved, this->opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void inference(context& ctx = tigon::default_context()) {
    tigon::mlp_forward_inference<B, T>(this->x, tigon::mlp_weights{this->wg.view(), this->wu.view(), this->wd.view()},
                                       this->y.view(), this->opt, ctx);
  }
  struct outputs {
    matrix_view<T> dx;
    matrix_view<G> dwg, dwu, dwd;
  };
  outputs all() { return {this->dx.view(), this->dwg.view(), this->dwu.view(), this->dwd.view()}; }
  template <class B>
  TIGON_TEST_NOINLINE void backward(outputs to, context& ctx = tigon::default_context()) {
    tigon::mlp_backward<B, T>(this->dy, this->x, tigon::mlp_weights{this->wg.view(), this->wu.view(), this->wd.view()},
                              saved, to.dx, tigon::mlp_weights{to.dwg, to.dwu, to.dwd}, this->opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void recompute(outputs to, context& ctx = tigon::default_context()) {
    tigon::mlp_backward_recompute<B, T>(this->dy, this->x,
                                        tigon::mlp_weights{this->wg.view(), this->wu.view(), this->wd.view()}, to.dx,
                                        tigon::mlp_weights{to.dwg, to.dwu, to.dwd}, this->opt, ctx);
  }
};

template <class On>
class mlp : public testing::Test {};
TYPED_TEST_SUITE(mlp, mlp_pairs, names);

TYPED_TEST(mlp, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const mlp_sizes s : every_mlp_size)
    for (const mlp_variant& v : mlp_variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v.opt, side);
        const auto wanted = p.wanted();
        p.template forward<B>();
        p.expect_value(wanted);
        EXPECT_TRUE(p.saved.filled);
        p.template backward<B>(p.all());
        p.expect_gradients(wanted);
        EXPECT_TRUE(p.memory.padding_intact());

        problem<T> again(s, v.opt, side);
        again.template inference<B>();
        again.expect_value(wanted);
        again.template recompute<B>(again.all());
        again.expect_gradients(wanted);
        EXPECT_TRUE(again.memory.untouched());
      }
}

TYPED_TEST(mlp, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mlp_sizes s{20, 17, 45};
  problem<T> full(s);
  full.template forward<B>();
  full.template backward<B>(full.all());
  for (int which = 0; which < 16; ++which) {
    problem<T> p(s);
    auto to = p.all();
    const bool dx = which & 1, dwg = which & 2, dwu = which & 4, dwd = which & 8;
    if (!dx) to.dx = {};
    if (!dwg) to.dwg = {};
    if (!dwu) to.dwu = {};
    if (!dwd) to.dwd = {};
    p.template forward<B>();
    p.template backward<B>(to);
    EXPECT_TRUE(dx ? bits_of(p.dx) == bits_of(full.dx) : p.dx.untouched()) << which;
    EXPECT_TRUE(dwg ? bits_of(p.dwg) == bits_of(full.dwg) : p.dwg.untouched()) << which;
    EXPECT_TRUE(dwu ? bits_of(p.dwu) == bits_of(full.dwu) : p.dwu.untouched()) << which;
    EXPECT_TRUE(dwd ? bits_of(p.dwd) == bits_of(full.dwd) : p.dwd.untouched()) << which;
  }
}

TYPED_TEST(mlp, dx_may_overwrite_dy_or_x) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mlp_sizes s{20, 17, 45, 2};
  problem<T> apart(s);
  apart.template forward<B>();
  apart.template backward<B>(apart.all());
  for (const auto to : {&problem<T>::dy, &problem<T>::x})
    for (const bool recompute : {false, true}) {
      problem<T> p(s);
      auto out = p.all();
      out.dx = (p.*to).view();
      if (recompute) {
        p.template recompute<B>(out);
      } else {
        p.template forward<B>();
        p.template backward<B>(out);
      }
      EXPECT_EQ(bits_of(p.*to, p.dwg, p.dwu, p.dwd), apart.gradients());
    }
}

TYPED_TEST(mlp, one_backward_for_one_forward) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({5, 7, 9});
  EXPECT_TIGON_ERROR(p.template backward<B>(p.all()), state, "mlp_backward: saved is empty, or was used by a backward",
                     p.dx, p.dwg, p.dwu, p.dwd, p.memory);
  p.template forward<B>();
  p.template backward<B>(p.all());
  const auto once = p.gradients();
  EXPECT_TIGON_ERROR(p.template backward<B>(p.all()), state, "mlp_backward: saved is empty, or was used by a backward",
                     p.dx, p.dwg, p.dwu, p.dwd, p.memory);
  p.template forward<B>();
  p.template backward<B>(p.all());
  EXPECT_EQ(p.gradients(), once);
}

// An empty std::vector has no memory, and neither has an MLP without tokens.
TYPED_TEST(mlp, nothing_needs_no_memory) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({0, 5, 7});
  p.saved.memory = {nullptr, 0, 21};
  const std::size_t bytes = std::max(tigon::mlp_workspace<B, T>(mlp_pass::forward, 0, 5, 7),
                                     tigon::mlp_workspace<B, T>(mlp_pass::backward, 0, 5, 7));
  with_workspace_of(bytes, [&](context& ctx) {
    p.template forward<B>(ctx);
    p.template backward<B>(p.all(), ctx);
  });
  for (const auto& zeros : {p.dwg.f64(), p.dwu.f64(), p.dwd.f64()})
    EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
}

TYPED_TEST(mlp, bad_tokens_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> clean({9, 5, 30}), p({9, 5, 30});
  p.x(4, 2) = from_f64<T>(nan);
  for (problem<T>* each : {&clean, &p}) {
    each->template forward<B>();
    each->template backward<B>(each->all());
  }
  for (std::size_t i = 0; i < 9; ++i)
    for (std::size_t h = 0; h < 5; ++h) {
      EXPECT_TRUE(i == 4 ? std::isnan(to_f64(p.y(i, h))) : to_f64(p.y(i, h)) == to_f64(clean.y(i, h))) << i;
      EXPECT_TRUE(i == 4 ? std::isnan(to_f64(p.dx(i, h))) : to_f64(p.dx(i, h)) == to_f64(clean.dx(i, h))) << i;
    }
}

TYPED_TEST(mlp, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const mlp_sizes s : {mlp_sizes{70, 40, 530}, mlp_sizes{300, 33, 50}}) {
    problem<T> p(s);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.clear();
      p.template forward<B>(ctx);
      p.template backward<B>(p.all(), ctx);
      auto bits = bits_of(p.y, p.dx, p.dwg, p.dwu, p.dwd);
      p.clear();
      p.template inference<B>(ctx);
      p.template recompute<B>(p.all(), ctx);
      const auto more = bits_of(p.y, p.dx, p.dwg, p.dwu, p.dwd);
      bits.insert(bits.end(), more.begin(), more.end());
      return bits;
    }));
  }
}

TYPED_TEST(mlp, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  // The third: a shorter last chunk of inference wants more than the others. The last: no columns to sum over.
  for (const mlp_sizes s : {mlp_sizes{20, 17, 67}, mlp_sizes{37, 67, 5}, mlp_sizes{13, 5, 123}, mlp_sizes{3, 0, 9}})
    for (const transpose weights : {transpose::no, transpose::yes})
      for (const std::size_t threads : {1u, 3u}) {
        problem<T> p(s, {.weights = weights});
        const auto named = [&](mlp_pass pass, const char* sentence, auto call) {
          const std::size_t bytes = tigon::mlp_workspace<B, T>(pass, s.tokens, s.hidden, s.intermediate, threads);
          const auto refused = bytes == 0
                                   ? testing::AssertionSuccess()
                                   : refuses([&] { with_workspace_of(bytes - 1, call, threads); },
                                             tigon::error_code::workspace, sentence, p.y, p.dx, p.dwg, p.dwu, p.dwd);
          EXPECT_TRUE(refused);
          with_workspace_of(bytes, call, threads);
        };
        named(mlp_pass::forward, "mlp_forward: workspace is of", [&](context& ctx) { p.template forward<B>(ctx); });
        named(mlp_pass::backward, "mlp_backward: workspace is of",
              [&](context& ctx) { p.template backward<B>(p.all(), ctx); });
        named(mlp_pass::inference, "mlp_forward_inference: workspace is of",
              [&](context& ctx) { p.template inference<B>(ctx); });
        named(mlp_pass::recompute, "mlp_backward_recompute: workspace is of",
              [&](context& ctx) { p.template recompute<B>(p.all(), ctx); });
      }
}

// What the sums of g and u are before they are rounded, an f32 MLP on the same numbers knows.
TEST(mlp_of_16_bits, rounds_a_after_the_gate_and_p_never) {
  using B = usual_backend;
  const mlp_sizes s{30, 50, 70};
  const mlp_options opt{.gate_multiplier = 0.9, .down_multiplier = 1.1};
  problem<bfloat16> p(s, opt);
  problem<float> q(s, opt);
  const auto copy = [](const auto& from, auto& to) { to.assign(from.f64()); };
  copy(p.x, q.x), copy(p.dy, q.dy), copy(p.wg, q.wg), copy(p.wu, q.wu), copy(p.wd, q.wd);
  p.forward<B>(), q.forward<B>();
  const auto differing = [&] {
    std::size_t count = 0;
    for (std::size_t i = 0; i < s.tokens; ++i)
      for (std::size_t j = 0; j < 3 * s.intermediate; ++j)
        count += to_f64(p.memory(i, j)) != to_f64(bfloat16(q.memory(i, j)));
    return count;
  };
  // The products sum in different orders, so that now and then a number next to a tie falls to the other side.
  const std::size_t few = s.tokens * 3 * s.intermediate / 500;
  EXPECT_LE(differing(), few);
  copy(p.memory, q.memory);
  p.backward<B>(p.all()), q.backward<B>(q.all());
  for (std::size_t i = 0; i < s.tokens; ++i)  // a is gone, and not of interest
    for (std::size_t j = 0; j < s.intermediate; ++j) p.memory(i, j) = bfloat16(0.0f), q.memory(i, j) = 0;
  EXPECT_LE(differing(), few);

  // dx is one sum of rounded dg and du, rounded once.
  guarded_matrix<float> sum(s.tokens, s.hidden);
  const auto part = [&](std::size_t k) {
    return matrix_view<const bfloat16>(p.memory.view().cols_from(k * s.intermediate, s.intermediate));
  };
  tigon::gemm<B>(part(1), p.wg.view(), sum.view(), {.alpha = opt.gate_multiplier});
  tigon::gemm<B>(part(2), p.wu.view(), sum.view(), {.beta = 1});
  std::size_t others = 0;
  for (std::size_t i = 0; i < s.tokens; ++i)
    for (std::size_t h = 0; h < s.hidden; ++h) others += to_f64(p.dx(i, h)) != to_f64(bfloat16(sum(i, h)));
  EXPECT_LE(others, s.tokens * s.hidden / 200);
}

TEST(mlp_types, weights_and_their_gradients_may_have_their_own) {
  using B = usual_backend;
  const mlp_sizes s{12, 20, 33, 1};
  const auto check = [&](auto p) {
    const auto wanted = p.wanted();
    p.template forward<B>();
    p.expect_value(wanted);
    p.template backward<B>(p.all());
    p.expect_gradients(wanted);
  };
  check(problem<bfloat16, bfloat16, float>(s, {.dw = gradient::accumulate}));
  check(problem<float, bfloat16, float>(s));
}

TEST(mlp_formula, is_the_derivative_of_its_definition) {
  const mlp_sizes s{3, 4, 5};
  using complex = std::complex<double>;
  for (const mlp_variant& v : mlp_variants) {
    SCOPED_TRACE(v.name);
    const std::size_t n = s.hidden * s.intermediate, m = s.tokens * s.hidden;
    const auto x = normal_values(m, 1), dy = normal_values(m, 2), wg = normal_values(n, 3), wu = normal_values(n, 4),
               wd = normal_values(n, 5);
    const auto r = mlp_reference(s, x, wg, wu, wd, dy, v.opt);
    const auto same = [&](const std::vector<double>& gradient, const std::vector<double>& at, auto with) {
      const auto loss = [&](const std::vector<complex>& z) {
        const std::vector<complex> y = with(z);
        complex sum = 0;
        for (std::size_t k = 0; k < m; ++k) sum += dy[k] * y[k];
        return sum;
      };
      const auto where = probes(at.size());
      EXPECT_TRUE(close(pick(gradient, where), complex_step(loss, at, where), 1e-13));
    };
    const auto c = [](const std::vector<double>& z) { return std::vector<complex>(z.begin(), z.end()); };
    using many = const std::vector<complex>&;
    same(r.dx, x, [&](many z) { return mlp_value(s, z, c(wg), c(wu), c(wd), v.opt); });
    same(r.dwg, wg, [&](many z) { return mlp_value(s, c(x), z, c(wu), c(wd), v.opt); });
    same(r.dwu, wu, [&](many z) { return mlp_value(s, c(x), c(wg), z, c(wd), v.opt); });
    same(r.dwd, wd, [&](many z) { return mlp_value(s, c(x), c(wg), c(wu), z, v.opt); });
  }
}

TEST(mlp_parts, of_a_backend_are_used) {
  if (!std::same_as<usual_provider<tigon::op::mlp>, tigon::backends::generic>)
    GTEST_SKIP() << "an MLP of the backend's own is made of what it likes";
  using B = tigon::backends::own_parts;
  for (const mlp_gate gate : {mlp_gate::swiglu, mlp_gate::geglu}) {
    problem<float> p({20, 17, 45}, {.gate = gate});
    const auto wanted = p.wanted();
    products = forward_gates = backward_gates = 0;
    p.forward<B>();
    EXPECT_EQ(products, 3u);  // sums of f32 need no blocks
    EXPECT_GE(forward_gates, 1u);
    EXPECT_EQ(backward_gates, 0u);
    p.backward<B>(p.all());
    EXPECT_EQ(products, 3u + 6u);
    EXPECT_GE(backward_gates, 1u);
    p.expect_value(wanted), p.expect_gradients(wanted);
  }
}

TEST(mlp_memory, is_what_is_saved_and_no_gradient_of_a) {
  using B = usual_backend;
  if (!std::same_as<usual_provider<tigon::op::mlp>, tigon::backends::generic>)
    GTEST_SKIP() << "an MLP of the backend's own takes what it names";
  const std::size_t tokens = 2048, hidden = 64, n = 5632, a = tokens * n * sizeof(float);
  const auto bytes = [&]<class T>(T, mlp_pass pass) { return tigon::mlp_workspace<B, T>(pass, tokens, hidden, n); };
  const std::size_t of_products = std::max(
      {tigon::gemm_workspace<B, float>(tokens, n, hidden), tigon::gemm_workspace<B, float>(tokens, hidden, n),
       tigon::gemm_workspace<B, float>(n, hidden, tokens), tigon::gemm_workspace<B, float>(hidden, n, tokens)});
  EXPECT_LE(bytes(float(), mlp_pass::forward), of_products);
  EXPECT_LE(bytes(float(), mlp_pass::backward), of_products);
  EXPECT_LE(bytes(float(), mlp_pass::recompute), 3 * a + of_products);
  const std::size_t block = B::chunk.logits_bytes / 16;
  EXPECT_LE(bytes(float(), mlp_pass::inference), std::min(a, B::chunk.logits_bytes) + block + of_products);
  // In 16 bits: half of everything, blocks of sums, and products that carry sums of their own.
  EXPECT_LE(bytes(bfloat16(), mlp_pass::forward), 2 * block + 2 * of_products);
  EXPECT_LE(bytes(bfloat16(), mlp_pass::backward), 3 * block + 2 * of_products);
  EXPECT_LE(bytes(bfloat16(), mlp_pass::recompute), 3 * a / 2 + 3 * block + 2 * of_products);
}

TEST(mlp_blocks, are_within_the_budget) {
  using B = usual_backend;
  using tigon::detail::largest_block, tigon::detail::inference_rows;
  constexpr std::size_t most = B::chunk.logits_bytes / 16 / sizeof(float);
  for (const std::size_t rows : {0u, 1u, 17u, 100u, 1024u, 1025u, 5000u})
    for (const std::size_t cols : {0u, 1u, 300u, 1024u, 5632u, 100000u}) {
      const auto b = largest_block<B, float>(rows, cols);
      EXPECT_LE(b.rows * b.cols, most) << rows << " x " << cols;
      EXPECT_LE(b.rows, rows);
      EXPECT_LE(b.cols, cols);
      EXPECT_TRUE(rows == 0 || b.rows > 0);
      EXPECT_TRUE(cols == 0 || b.cols > 0);
      EXPECT_EQ(b.rows * b.cols == rows * cols, rows * cols <= most) << rows << " x " << cols;
    }
  EXPECT_EQ((inference_rows<B, float>(100, 64)), 100u);
  EXPECT_EQ((inference_rows<B, float>(100, B::chunk.logits_bytes)), 1u);
  EXPECT_EQ((inference_rows<B, float>(0, 64)), 0u);
}

/// The doors, which are the same for every backend: refused before the first write.
class mlp_doors : public testing::Test {
 protected:
  using view = matrix_view<float>;
  struct arguments {
    view x, wg, wu, wd, y, dy, dx, dwg, dwu, dwd;
    tigon::mlp_saved<float>* saved;
    mlp_options opt;
  };
  mlp_doors() { p.forward<tigon::default_backend>(), p.y.clear(), all.assign(std::vector<double>(200, 1)); }

  using changes = const std::function<void(arguments&)>&;
  void refuses_call(tigon::error_code code, const std::string& part, void (*call)(arguments&), changes change) {
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses([&] { call(a); }, code, part, p.y, p.memory, p.dx, p.dwg, p.dwu, p.dwd, all));
    EXPECT_TRUE(p.saved.filled);
  }
  void refuses_forward(tigon::error_code code, const std::string& part, changes change) {
    const auto forward = [](arguments& a) {
      tigon::mlp_forward(a.x, tigon::mlp_weights{a.wg, a.wu, a.wd}, a.y, *a.saved, a.opt);
    };
    refuses_call(code, "mlp_forward: " + part, forward, change);
    if (part.find("saved") != part.npos) return;
    const auto inference = [](arguments& a) {
      tigon::mlp_forward_inference(a.x, tigon::mlp_weights{a.wg, a.wu, a.wd}, a.y, a.opt);
    };
    refuses_call(code, "mlp_forward_inference: " + part, inference, change);
  }
  void refuses_backward(tigon::error_code code, const std::string& part, changes change) {
    const auto backward = [](arguments& a) {
      tigon::mlp_backward(a.dy, a.x, tigon::mlp_weights{a.wg, a.wu, a.wd}, *a.saved, a.dx,
                          tigon::mlp_weights{a.dwg, a.dwu, a.dwd}, a.opt);
    };
    refuses_call(code, "mlp_backward: " + part, backward, change);
    if (part.find("saved") != part.npos) return;
    const auto recompute = [](arguments& a) {
      tigon::mlp_backward_recompute(a.dy, a.x, tigon::mlp_weights{a.wg, a.wu, a.wd}, a.dx,
                                    tigon::mlp_weights{a.dwg, a.dwu, a.dwd}, a.opt);
    };
    refuses_call(code, "mlp_backward_recompute: " + part, recompute, change);
  }
  void refuses_both(tigon::error_code code, const std::string& part, changes change) {
    refuses_forward(code, part, change);
    refuses_backward(code, part, change);
  }

  problem<float> p{{3, 4, 6, 1}};
  guarded<float> all = guarded<float>(200);
  tigon::mlp_saved<float> wrong{p.memory.view(), true};
  const view front{all.data(), 3, 4}, shifted{all.data() + 4, 3, 4}, wide{all.data(), 6, 4}, tall{all.data(), 4, 6};
  const arguments good{p.x.view(),  p.wg.view(),  p.wu.view(),  p.wd.view(),  p.y.view(), p.dy.view(),
                       p.dx.view(), p.dwg.view(), p.dwu.view(), p.dwd.view(), &p.saved,   {}};
};

TEST_F(mlp_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  refuses_both(shape, "x is a null pointer", [](auto& a) { a.x.data = nullptr; });
  refuses_both(stride, "x is of row stride 3", [](auto& a) { a.x.row_stride = 3; });
  refuses_both(shape, "wg is 6 x 3; expected 6 x 4", [](auto& a) { a.wg.cols = 3; });
  refuses_both(stride, "wg is of row stride 3", [](auto& a) { a.wg.row_stride = 3; });
  refuses_both(shape, "wu is 5 x 4; expected 6 x 4", [](auto& a) { a.wu.rows = 5; });
  refuses_both(shape, "wd is 4 x 5; expected 4 x 6", [](auto& a) { a.wd.cols = 5; });
  refuses_both(shape, "wg is 6 x 4; expected 4 x 4", [](auto& a) { a.opt.weights = transpose::yes; });
  refuses_both(argument, "gate_multiplier is nan", [](auto& a) { a.opt.gate_multiplier = nan; });
  refuses_both(argument, "down_multiplier is inf",
               [](auto& a) { a.opt.down_multiplier = std::numeric_limits<double>::infinity(); });
  refuses_forward(shape, "y is 2 x 4; expected 3 x 4", [](auto& a) { a.y.rows = 2; });
  refuses_forward(shape, "saved is 3 x 17; expected 3 x 18",
                  [&](auto& a) { wrong.memory.cols = 17, a.saved = &wrong; });
  refuses_backward(shape, "saved is 2 x 18; expected 3 x 18",
                   [&](auto& a) { wrong.memory = p.memory.view(), wrong.memory.rows = 2, a.saved = &wrong; });
  refuses_backward(shape, "dy is 3 x 3; expected 3 x 4", [](auto& a) { a.dy.cols = 3; });
  refuses_backward(shape, "dx is 2 x 4; expected 3 x 4", [](auto& a) { a.dx.rows = 2; });
  refuses_backward(shape, "dwg is 6 x 3; expected 6 x 4", [](auto& a) { a.dwg.cols = 3; });
  refuses_backward(shape, "dwu is 5 x 4; expected 6 x 4", [](auto& a) { a.dwu.rows = 5; });
  refuses_backward(shape, "dwd is 4 x 5; expected 4 x 6", [](auto& a) { a.dwd.cols = 5; });
  refuses_backward(stride, "dwd is of row stride 5", [](auto& a) { a.dwd.row_stride = 5; });
}

TEST_F(mlp_doors, refuse_common_memory) {
  using enum tigon::error_code;
  refuses_forward(alias, "y overlaps x", [](auto& a) { a.y = a.x; });
  refuses_forward(alias, "y overlaps wg", [&](auto& a) { a.y = front, a.wg = wide; });
  refuses_forward(alias, "y overlaps wu", [&](auto& a) { a.y = front, a.wu = wide; });
  refuses_forward(alias, "y overlaps wd", [&](auto& a) { a.y = front, a.wd = tall; });
  wrong.memory = {all.data(), 3, 18};
  refuses_forward(alias, "saved overlaps x", [&](auto& a) { a.saved = &wrong, a.x = front; });
  refuses_forward(alias, "saved overlaps wu", [&](auto& a) { a.saved = &wrong, a.wu = wide; });
  refuses_forward(alias, "saved overlaps y", [&](auto& a) { a.saved = &wrong, a.y = front; });
  refuses_backward(alias, "saved overlaps dy", [&](auto& a) { a.saved = &wrong, a.dy = front; });
  refuses_backward(alias, "saved overlaps wd", [&](auto& a) { a.saved = &wrong, a.wd = tall; });
  refuses_backward(alias, "dx overlaps saved", [&](auto& a) { a.saved = &wrong, a.dx = front; });
  refuses_backward(alias, "dwg overlaps saved", [&](auto& a) { a.saved = &wrong, a.dwg = wide; });
  refuses_backward(alias, "dx overlaps dy", [&](auto& a) { a.dx = shifted, a.dy = front; });
  refuses_backward(alias, "dx overlaps x", [&](auto& a) { a.dx = shifted, a.x = front; });
  refuses_backward(alias, "dx overlaps wg", [&](auto& a) { a.dx = front, a.wg = wide; });
  refuses_backward(alias, "dwg overlaps dy", [&](auto& a) { a.dwg = wide, a.dy = front; });
  refuses_backward(alias, "dwg overlaps x", [&](auto& a) { a.dwg = wide, a.x = front; });
  refuses_backward(alias, "dwg overlaps wg", [&](auto& a) { a.dwg = a.wg; });
  refuses_backward(alias, "dwg overlaps dx", [&](auto& a) { a.dwg = wide, a.dx = front; });
  refuses_backward(alias, "dwu overlaps dwg", [&](auto& a) { a.dwu = wide, a.dwg = wide; });
  refuses_backward(alias, "dwd overlaps dwg", [&](auto& a) { a.dwd = tall, a.dwg = wide; });
  refuses_backward(alias, "dwd overlaps dwu", [&](auto& a) { a.dwd = tall, a.dwu = wide; });
  refuses_backward(alias, "dwd overlaps wd", [&](auto& a) { a.dwd = a.wd; });
}

}  // namespace

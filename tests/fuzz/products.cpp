// Fuzzing of embedding, adamw, products and the fused linear cross entropy: what has indices or products in it.
#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/ops/adamw.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/matmul_int8_int2.hpp>

#include "labels.hpp"
#include "linear.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;

template <class P>
void embedding(P& p) {
  using T = typename P::element;
  constexpr bounds most{.f32 = 6e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
  const std::size_t vocab = p.in.between(1, 20), rows = p.some_rows(p.in.one_in(4) ? 200 : 9), cols = p.some_cols(100);
  tigon::embedding_options opt{.padding_index = p.in.template pick<std::ptrdiff_t>({-1, 0, 3})};
  opt.dweight = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate});
  auto& weight = p.filled(p.matrix("weight", vocab, cols), 0, 1, false);
  auto& ids = p.template vector<std::int32_t>("ids", rows);
  generator next(p.in.seed());
  const bool same = p.in.one_in(3);
  for (std::size_t i = 0; i < rows; ++i) ids.set(i, static_cast<double>(same ? vocab / 2 : next() % vocab));
  if (rows != 0 && p.in.one_in(12)) {
    ids.set(p.in.below(rows), p.in.pick({-1.0, static_cast<double>(vocab), 2147483647.0, -2147483648.0}));
    p.may_refuse = true;
  }
  auto &y = p.matrix("y", rows, cols), &dy = p.filled(p.matrix("dy", rows, cols), 0, 1, false);
  auto& dweight = p.matrix("dweight", vocab, cols);
  if (opt.dweight == tigon::gradient::accumulate) p.fill(dweight, 0, 1, false);
  p.call({&y}, [&](auto s) {
    tigon::embedding_forward<typename decltype(s)::backend>(weight.at(s), ids.vec(s), y.at(s), opt, s.ctx);
  });
  p.compare(y, {.bound = 0});
  p.call({&dweight}, [&](auto s) {
    tigon::embedding_backward<typename decltype(s)::backend>(dy.at(s), ids.vec(s), dweight.at(s), opt, s.ctx);
  });
  p.compare(dweight, {.bound = most.of<T>(), .scale = static_cast<double>(rows + 1) * p.size_of_terms({&dy})});
}

template <class P>
void adamw(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds most{.f32 = 3e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 6e-16};
  const std::size_t n = p.in.one_in(8) ? 0 : p.some_cols(2000);
  tigon::adamw_options opt{.learning_rate = p.in.pick({1e-3, 0.1}), .beta1 = p.in.pick({0.9, 0.0})};
  opt.weight_decay = p.in.pick({0.01, 0.0}), opt.step = p.in.template pick<std::uint64_t>({1, 10, 100000});
  opt.max_norm = p.in.pick({0.0, 1.0, 1e6}), opt.gradient_scale = p.in.pick({1.0, 0.25});
  opt.skip_non_finite = p.in.one_in(2);
  auto &w = p.filled(p.vector("w", n), 0, 1, false), &g = p.filled(p.vector("g", n), 0, 1);
  auto &m = p.filled(p.template vector<A>("m", n), 0, 0.1, false), &v = p.template vector<A>("v", n);
  for (std::size_t i = 0; i < n; ++i) v.set(i, m.got(i) * m.got(i) + 1e-4);
  double norms[2] = {0, 0};
  p.call({&w, &m, &v}, [&](auto s) {
    using S = decltype(s);
    using N = std::conditional_t<S::is_reference, double, A>;
    using E = typename S::element;
    const tigon::adamw_parameter<E, E, N> list[1] = {{w.vec(s), g.vec(s), m.vec(s), v.vec(s)}};
    norms[S::is_reference] = tigon::adamw<typename S::backend>(list, opt, s.ctx);
  });
  if (p.is_wild()) {  // with max_norm every element depends on every other one
    if (std::isfinite(norms[0]) && !std::isfinite(norms[1])) p.fail("the norm of gradients that are not finite is");
    return;
  }
  // The two terms of each may cancel.
  p.compare(m, {.bound = std::same_as<A, float> ? most.f32 : 2e-15, .scale = 0.1 * p.stretch()});
  p.compare(v, {.bound = std::same_as<A, float> ? most.f32 : 2e-16, .scale = 0.01});
  p.compare(w, {.bound = most.of<T>(), .scale = 3});
  if (std::abs(norms[0] - norms[1]) > 1e-14 * norms[1]) p.fail("another norm");
}

template <class P>
void gemm(P& p) {
  using T = typename P::element;
  const std::size_t m = p.some_rows(70), n = p.some_cols(90), k = p.in.one_in(16) ? 0 : p.some_cols(120);
  tigon::gemm_options opt;
  opt.a = p.in.pick({tigon::transpose::no, tigon::transpose::yes});
  opt.b = p.in.pick({tigon::transpose::no, tigon::transpose::yes});
  const bool ta = opt.a == tigon::transpose::yes, tb = opt.b == tigon::transpose::yes;
  auto& a = p.filled(p.matrix("a", ta ? k : m, ta ? m : k), 0, 1, false);
  auto& b = p.filled(p.matrix("b", tb ? n : k, tb ? k : n), 0, 1, false);
  auto& c = p.matrix("c", m, n);
  p.call({&c}, [&](auto s) { tigon::gemm<typename decltype(s)::backend>(a.at(s), b.at(s), c.at(s), opt, s.ctx); });
  // Products of k terms: f32 (f64) sums, one rounding.
  const double rounding = sizeof(T) == 2 ? (std::same_as<T, tigon::bfloat16> ? 0x1p-8 : 0x1p-11) : 0;
  const double sum = std::same_as<T, double> ? 2e-15 : 1e-6;
  const double terms = std::sqrt(static_cast<double>(k + 1)) * p.size_of_terms({&a}) * p.size_of_terms({&b});
  p.compare(c, {.bound = rounding + sum, .scale = 2 * terms});
}

template <class P>
void matmul_int8_int2(P& p) {
  const std::size_t m = p.some_rows(20), n = p.some_cols(90), k = p.in.one_in(16) ? 0 : p.some_cols(200);
  const std::size_t packed_rows = (k + 3) / 4;
  auto &a = p.template matrix<std::int8_t>("a", m, 4 * packed_rows), &w = p.template matrix<std::int8_t>("w", k, n);
  auto& packed = p.template matrix<std::uint8_t>("packed", packed_rows, n);
  auto& again = p.template matrix<std::int8_t>("again", k, n);
  auto& c = p.template matrix<std::int32_t>("c", m, n);
  generator next(p.in.seed());
  const bool extreme = p.in.one_in(4);
  for (std::size_t e = 0; e < a.size(); ++e) a.set(e, extreme ? -128 : static_cast<double>(next() % 256) - 128);
  for (std::size_t e = 0; e < w.size(); ++e) w.set(e, extreme ? 2 : static_cast<double>(next() % 4) - 1);
  if (w.size() != 0 && p.in.one_in(16))
    w.set(p.in.below(w.size()), p.in.pick({-2.0, 3.0, -128.0})), p.may_refuse = true;
  p.call({&packed},
         [&](auto s) { tigon::matmul_int8_int2_pack<typename decltype(s)::backend>(w.at(s), packed.at(s), s.ctx); });
  p.call({&again}, [&](auto s) {
    tigon::matmul_int8_int2_unpack<typename decltype(s)::backend>(packed.at(s), again.at(s), s.ctx);
  });
  p.call({&c}, [&](auto s) {
    tigon::matmul_int8_int2<typename decltype(s)::backend>(a.at(s), packed.at(s), c.at(s), s.ctx);
  });
  p.expect_equal({&packed, &again, &c});
  for (std::size_t e = 0; e < w.size() && !p.is_faulty(); ++e)
    if (again.got(e) != w.got(e)) p.fail("weights do not come back");
}

template <class P>
void fused_linear_cross_entropy(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 6e-16};
  constexpr bounds of_gradient{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 2e-15};
  const std::size_t rows = p.some_rows(40), hidden = p.some_cols(60), vocab = p.some_cols(120);
  tigon::fused_linear_cross_entropy_options opt;
  opt.token_scaling = p.in.one_in(4);
  opt.loss.reduction = p.in.pick({tigon::reduction::mean, tigon::reduction::sum, tigon::reduction::none});
  opt.loss.label_smoothing = p.in.pick({0.0, 0.1}), opt.loss.lse_square_scale = p.in.pick({0.0, 0.01});
  const bool biased = p.in.one_in(2);
  auto& x = p.filled(p.matrix("x", rows, hidden), 0, 1, false);
  auto& w = p.filled(p.matrix("w", vocab, hidden), 0, 1 / std::sqrt(static_cast<double>(hidden)), false);
  auto& bias = p.filled(p.vector("bias", biased ? vocab : 0), 0, 0.5, false);
  auto& target = some_labels(p, p.template vector<std::int64_t>("target", rows), vocab);
  auto& loss = p.template vector<A>("loss", opt.loss.reduction == tigon::reduction::none ? rows : 1);
  auto &dx = p.matrix("dx", rows, hidden), &dw = p.matrix("dw", vocab, hidden);
  auto& dbias = p.vector("dbias", biased ? vocab : 0);
  const std::size_t logit_rows = p.in.one_in(2) ? p.in.between(1, 10) : 0;
  p.call({&loss, &dx, &dw, &dbias}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    const rows_at_a_time chunk(s.ctx, logit_rows);
    const auto b = biased ? bias.vec(s) : decltype(bias.vec(s))();
    const auto db = biased ? dbias.vec(s) : decltype(dbias.vec(s))();
    tigon::fused_linear_cross_entropy_forward<typename S::backend, E>(
        tigon::linear_layer<E>{x.at(s), w.at(s), b}, target.vec(s), {.loss = loss.vec(s)},
        tigon::linear_gradients<E>{dx.at(s), dw.at(s), db}, opt, tigon::absent, {}, s.ctx);
  });
  const double stretch = p.stretch() * p.stretch();
  // Sums of both signs over classes, or over rows.
  const double one = opt.loss.reduction == tigon::reduction::mean ? 1 / counted_labels(target) : 1;
  const double of_w = p.size_of_terms({&w}) * one, of_x = p.size_of_terms({&x}) * one;
  const double of_logits = one * loss_of_logits(x, w, opt.loss.lse_square_scale);
  p.compare(loss, {.bound = stretch * of_loss.of<T>(), .scale = opt.token_scaling ? 1.0 : of_logits});
  p.compare(dx, {.bound = stretch * of_gradient.of<T>(), .scale = of_w});
  p.compare(dw, {.bound = stretch * of_gradient.of<T>(), .scale = of_x});
  p.compare(dbias, {.bound = stretch * of_gradient.of<T>(), .scale = one * 0.2});
}

constexpr target all[] = {TIGON_FUZZ_TARGET(embedding), TIGON_FUZZ_TARGET(adamw), TIGON_FUZZ_TARGET(gemm),
                          TIGON_FUZZ_TARGET(matmul_int8_int2), TIGON_FUZZ_TARGET(fused_linear_cross_entropy)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }

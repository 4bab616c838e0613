// The contracts of fused_linear_distillation.hpp, fused_linear_jsd_distillation.hpp,
// fused_linear_cosine_distillation.hpp and fused_linear_jsd.hpp in include/tigon/losses, promise by promise.
// Operators: distillation fused_linear_distillation fused_linear_jsd fused_linear_jsd_distillation
// Operators: fused_linear_cosine_distillation
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_cosine_distillation.hpp>
#include <tigon/losses/fused_linear_jsd.hpp>

#include "support/backends.hpp"
#include "support/chunk_backends.hpp"
#include "support/complex_step.hpp"
#include "support/ignored_rows.hpp"
#include "support/linear_problem.hpp"
#include "support/logit_loss.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gradient, tigon::matrix_view;
using tigon::teacher_padding;
/// A few rows of both models' logits at a time.
using small_chunks = tigon::backends::small_chunks_of<usual_backend, 2048>;
using options = tigon::fused_linear_distillation_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();

struct sizes {
  std::size_t rows, hidden, teacher_hidden, vocab, padding = 0;
  friend std::ostream& operator<<(std::ostream& out, sizes s) {
    return out << s.rows << " rows of " << s.hidden << " and " << s.teacher_hidden << ", " << s.vocab
               << " classes, padding " << s.padding;
  }
};
const sizes every_size[] = {{0, 5, 3, 7}, {1, 1, 2, 1},       {5, 3, 0, 2, 1},
                            {3, 0, 4, 9}, {7, 33, 20, 65, 3}, {21, 16, 9, 123}};

enum class which { jsd, cosine, jsd_alone };
struct variant {
  const char* name;
  which loss;
  double beta;
  bool biased;
  std::size_t more;  ///< columns that only the teacher has
  options opt;
  gradient mode = gradient::overwrite;
};
constexpr options soft_only(double temperature) {
  return {.weight_hard = 0, .weight_soft = 1, .temperature = temperature};
}
const variant variants[] = {
    {"jsd", which::jsd, 0.5, false, 0, {}},
    {"jsd, biased, more classes of probability 0, added",
     which::jsd,
     0.1,
     true,
     3,
     {.weight_hard = 0.3, .weight_soft = 0.9, .temperature = 2},
     gradient::accumulate},
    {"forward KL, fewer classes of the teacher",
     which::jsd,
     0,
     false,
     5,
     {.temperature = 0.7, .ignore_index = 0, .padding = teacher_padding::drop_teacher}},
    {"reverse KL, more classes of logit 0",
     which::jsd,
     1,
     true,
     2,
     {.temperature = 1.7, .padding = teacher_padding::zero_logit, .denominator = 3}},
    {"jsd of all rows, no hard part",
     which::jsd,
     0.9,
     false,
     0,
     {.weight_hard = 0, .weight_soft = 2, .mask_soft = false}},
    {"hard part alone", which::jsd, 0.5, true, 4, {.weight_hard = 1.5, .weight_soft = 0}},
    {"cosine", which::cosine, 0.5, true, 0, {}},
    {"cosine, more classes of logit 0",
     which::cosine,
     0.3,
     false,
     4,
     {.weight_hard = 0.2, .weight_soft = 0.8, .padding = teacher_padding::zero_logit}},
    {"cosine of all rows, fewer classes of the teacher",
     which::cosine,
     1,
     false,
     1,
     {.weight_hard = 0, .padding = teacher_padding::drop_teacher, .mask_soft = false}},
    {"jsd without labels to learn from", which::jsd_alone, 0.5, false, 0, soft_only(1)},
    {"reverse KL without labels to learn from", which::jsd_alone, 1, true, 0, soft_only(0.8)},
    {"jsd of capped logits, more classes of probability 0",
     which::jsd,
     0.4,
     true,
     3,
     {.weight_hard = 0.3, .weight_soft = 0.9, .temperature = 1.4, .softcap = 1.5, .teacher_softcap = 0.7},
     gradient::accumulate},
    {"reverse KL of a capped student, of all rows",
     which::jsd,
     1,
     false,
     0,
     {.ignore_index = 0, .mask_soft = false, .softcap = 0.5}},
    {"cosine of capped logits", which::cosine, 0.3, false, 0, {.softcap = 0.9, .teacher_softcap = 0.6}},
};

// Losses in units of the reference, gradients of |reference| + its root mean square; at most ten times the worst seen.
constexpr by_type loss_bound{.f32 = 3e-6, .bf16 = 3e-6, .f16 = 3e-6, .f64 = 4e-15};
constexpr by_type gradient_bound{.f32 = 2e-5, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 4e-14};

template <class N>
N log_sum_exp(const std::vector<N>& s) {
  using std::exp, std::log;
  auto top = -std::numeric_limits<decltype(std::real(N()))>::infinity();
  for (const N& v : s) top = std::max(top, std::real(v));
  N sum = 0;
  for (const N& v : s) sum += exp(v - top);
  return top + log(sum);
}

/// A row's soft loss in the textbook's way, for any number type, and its derivative by the textbook's formula.
template <class N>
struct soft_row {
  N loss = 0;
  std::vector<N> d;

  TIGON_TEST_NOINLINE soft_row(std::vector<N> z, std::vector<N> t, const variant& v) {
    using std::exp, std::log, std::sqrt;
    using real = decltype(std::real(N()));
    const std::size_t vocab = z.size();
    const real beta = v.beta, temperature = v.opt.temperature;
    if (v.opt.padding == teacher_padding::drop_teacher)
      t.resize(vocab);
    else
      z.resize(t.size(), v.opt.padding == teacher_padding::zero_logit ? N(0) : N(-inf));
    if (v.loss == which::cosine) {
      N zz = 0, tt = 0, zt = 0;
      for (std::size_t j = 0; j < z.size(); ++j) zz += z[j] * z[j], tt += t[j] * t[j], zt += z[j] * t[j];
      const bool zero = std::abs(zz) == 0 || std::abs(tt) == 0;
      const N cosine = zero ? N(0) : zt / sqrt(zz * tt);
      loss = beta * (real(1) - cosine);
      for (std::size_t j = 0; j < vocab; ++j)
        d.push_back(zero ? N(0) : -beta * (t[j] / sqrt(tt) - cosine * z[j] / sqrt(zz)) / sqrt(zz));
      return;
    }
    for (auto* row : {&z, &t})
      for (N& s : *row) s /= temperature;
    const N of_z = log_sum_exp(z), of_t = log_sum_exp(t);
    std::vector<N> u;
    N sum = 0;
    for (std::size_t j = 0; j < z.size(); ++j) {
      const N x = z[j] - of_z, y = t[j] - of_t, p = exp(y);
      const bool none = std::isinf(std::real(x));
      const N q = none ? N(0) : exp(x), m = beta * p + (1 - beta) * q;
      if (beta == 0)
        loss += p * (y - x), u.push_back(-p);
      else if (beta == 1)
        loss += none ? N(0) : q * (x - y), u.push_back(none ? N(0) : q * (x - y + real(1)));
      else
        loss += beta * p * (y - log(m)) + (none ? N(0) : (1 - beta) * q * (x - log(m))),
            u.push_back(none ? N(0) : (1 - beta) * q * (x - log(m)));
      sum += u.back();
    }
    for (std::size_t j = 0; j < vocab; ++j) d.push_back((u[j] - exp(z[j] - of_z) * sum) / temperature);
  }
};

/// A row of logits from a row of x, w and the bias, which may be empty.
template <class N, class X, class W>
std::vector<N> logits_of(const X* x, const std::vector<W>& w, const std::vector<W>& bias, std::size_t hidden,
                         std::size_t vocab) {
  std::vector<N> z(vocab);
  for (std::size_t j = 0; j < vocab; ++j) {
    z[j] = bias.empty() ? N(0) : N(bias[j]);
    for (std::size_t h = 0; h < hidden; ++h) z[j] += N(x[h]) * N(w[j * hidden + h]);
  }
  return z;
}

template <class N>
std::vector<N> capped(std::vector<N> z, double softcap) {
  if (softcap != 0)
    for (N& v : z) v = softcap * std::tanh(v / softcap);
  return z;
}

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct problem : linear_problem<T> {
  using A = accumulator_t<T>;
  using layer = linear_problem<T>;
  using layer::x, layer::w, layer::bias, layer::dx, layer::dw, layer::dbias;
  sizes s;
  variant v;
  std::size_t wide;
  guarded_matrix<T> tx, tw;
  guarded<T> tbias;
  guarded<std::int64_t> target;
  guarded<A> loss, soft, hard;

  TIGON_TEST_NOINLINE explicit problem(sizes of, variant kind = variants[0], guard side = guard::behind)
      : layer({of.rows, of.hidden, of.vocab, of.padding}, kind.biased, kind.mode, side),
        s(of),
        v(kind),
        wide(s.vocab + v.more),
        tx(random_matrix<T>({s.rows, s.teacher_hidden, 5 * s.padding}, 13, side)),
        tw(random_matrix<T>({wide, s.teacher_hidden, 6 * s.padding}, 4, side, {.deviation = 0.4})),
        tbias(random_vector<T>(v.biased ? wide : 0, 6, side)),
        target(s.rows, side),
        loss(1, side),
        soft(v.loss == which::jsd_alone ? 0 : 1, side),
        hard(soft.size(), side) {
    std::ranges::copy(random_labels(s.rows, s.vocab, v.opt.ignore_index, 7), target.begin());
  }
  void clear() { this->clear_gradients(), loss.clear(), soft.clear(), hard.clear(); }

  bool by_logits = false;  ///< tx has the teacher's logits
  tigon::distillation_teacher<T> teacher() {
    if (by_logits) return tx.view();
    return {tx.view(), tw.view(), given(tbias)};
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(matrix_view<T> to_dx, matrix_view<T> to_dw, std::span<T> to_db,
                                   context& ctx = tigon::default_context(), double upstream = 1) {
    const tigon::distillation_losses<A> losses{loss, given(soft), given(hard)};
    const tigon::linear_gradients<T> to{to_dx, to_dw, to_db, this->dparams};
    options opt = v.opt;
    opt.upstream = upstream;
    if (v.loss == which::jsd)
      tigon::fused_linear_jsd_distillation_forward<B>(this->head(), teacher(), target, losses, to, {opt, v.beta}, ctx);
    else if (v.loss == which::cosine)
      tigon::fused_linear_cosine_distillation_forward<B>(this->head(), teacher(), target, losses, to, {opt, v.beta},
                                                         ctx);
    else
      tigon::fused_linear_jsd_forward<B>(this->head(), teacher(), target, loss, to, alone(upstream), ctx);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context(), double upstream = 1) {
    forward<B>(dx.view(), dw.view(), given(dbias), ctx, upstream);
  }
  template <class B>
  void cosine(context& ctx = tigon::default_context()) {
    tigon::fused_linear_cosine_distillation_forward<B>(this->head(), teacher(), target, {loss, soft, hard},
                                                       this->gradients(), {v.opt, v.beta}, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(double upstream, context& ctx = tigon::default_context()) {
    if (v.loss == which::jsd)
      tigon::fused_linear_jsd_distillation_backward<B>(this->head(), teacher(), target, upstream, this->gradients(),
                                                       {v.opt, v.beta}, ctx);
    else if (v.loss == which::cosine)
      tigon::fused_linear_cosine_distillation_backward<B>(this->head(), teacher(), target, upstream, this->gradients(),
                                                          {v.opt, v.beta}, ctx);
    else
      tigon::fused_linear_jsd_backward<B>(this->head(), teacher(), target, upstream, this->gradients(), alone(), ctx);
  }
  tigon::fused_linear_jsd_options alone(double upstream = 1) const {
    return {v.beta, v.opt.temperature, v.opt.ignore_index, v.opt.padding, v.opt.denominator, upstream};
  }
  double share() const {
    const auto kept = static_cast<double>(s.rows) - static_cast<double>(std::ranges::count(target, v.opt.ignore_index));
    return kept == 0 ? 0 : 1 / (v.opt.denominator != 0 ? v.opt.denominator : kept);
  }

  struct reference : layer_gradients {
    double soft = 0, hard = 0, loss = 0;
  };
  /// The definition in long double with all logits at once; to be computed before the call, because dw and dbias may
  /// be added to.
  TIGON_TEST_NOINLINE reference wanted(double upstream = 1) const {
    using N = long double;
    const whole_layer student = this->layer::layer();
    const auto txv = tx.f64(), twv = tw.f64(), tbv = tbias.f64();
    reference out{this->before()};
    N soft_sum = 0, hard_sum = 0;
    const std::vector<double> even(s.vocab, 1);
    for (std::size_t i = 0; i < s.rows; ++i) {
      const bool kept = target[i] != v.opt.ignore_index;
      const auto own = logits_of<N>(student.x.data() + i * s.hidden, student.w, student.bias, s.hidden, s.vocab);
      const auto z = capped(own, v.opt.softcap);
      const auto t = capped(logits_of<N>(txv.data() + i * s.teacher_hidden, twv, tbv, s.teacher_hidden, wide),
                            v.opt.teacher_softcap);
      std::vector<N> d(s.vocab);
      if (share() != 0 && (kept || !v.opt.mask_soft)) {
        const soft_row<N> r(z, t, v);
        soft_sum += r.loss;
        for (std::size_t j = 0; j < s.vocab; ++j) d[j] = v.opt.weight_soft * r.d[j];
      }
      if (kept && v.loss != which::jsd_alone) {
        const auto at = static_cast<std::size_t>(target[i]);
        const row_of_loss<N> r(z, at, even, {});
        hard_sum += r.main;
        for (std::size_t j = 0; j < s.vocab; ++j)
          d[j] += v.opt.weight_hard * (j == at ? std::expm1(-r.minus_log_p) : std::exp(z[j] - z[at] - r.minus_log_p));
      }
      for (std::size_t j = 0; j < s.vocab; ++j) {
        if (v.opt.softcap != 0) d[j] /= std::pow(std::cosh(own[j] / v.opt.softcap), 2);
        add_logit_gradient(out, student, i, j, static_cast<double>(d[j] * share() * upstream));
      }
    }
    out.soft = static_cast<double>(soft_sum * share()), out.hard = static_cast<double>(hard_sum * share());
    const auto part = [](double weight, double value) { return weight == 0 ? 0 : weight * value; };
    out.loss = part(v.opt.weight_soft, out.soft) + part(v.opt.weight_hard, out.hard);
    return out;
  }
  TIGON_TEST_NOINLINE void expect_losses(const reference& r) const {
    // A vocabulary of one class has losses of 0.
    const comparison with{.scale = 1e-3, .may_be_empty = true};
    EXPECT_TRUE(close(loss.f64(), {{r.loss}}, loss_bound.of<T>(), with)) << "loss";
    if (soft.size() == 0) return;
    EXPECT_TRUE(close(soft.f64(), {{r.soft}}, loss_bound.of<T>(), with)) << "soft";
    EXPECT_TRUE(close(hard.f64(), {{r.hard}}, loss_bound.of<T>(), with)) << "hard";
  }
  TIGON_TEST_NOINLINE void expect_gradients(const reference& r) const {
    // One class has no gradient, and neither has a cosine of one or of nothing.
    expect_layer_gradients(*this, r, gradient_bound.of<T>(),
                           {.scale = s.vocab == 1 || s.teacher_hidden == 0 ? 1.0 : 0});
  }
  auto results() const { return bits_of(loss, soft, hard); }
  auto bits() const { return bits_of(dx, dw, dbias, loss, soft, hard); }
};

// Golden values are compared on every backend; here one instantiation each of what differs.
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<small_chunks, bfloat16>>;
#else
using pairs = testing::Types<on<single_numbers, double>, on<small_chunks, float>, on<small_chunks, bfloat16>>;
#endif

template <class On>
class fused_linear_distillation : public testing::Test {};
TYPED_TEST_SUITE(fused_linear_distillation, pairs, names);

TYPED_TEST(fused_linear_distillation, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes s : every_size)
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        const auto wanted = p.wanted();
        p.template forward<B>();
        p.expect_losses(wanted);
        p.expect_gradients(wanted);
      }
}

TYPED_TEST(fused_linear_distillation, backward_takes_an_upstream_gradient) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<T> p({20, 17, 9, 67, 2}, v), q({20, 17, 9, 67, 2}, v);
    const auto wanted = p.wanted(-2.5);
    p.template backward<B>(-2.5);
    p.expect_gradients(wanted);
    EXPECT_TRUE(p.loss.untouched() && p.soft.untouched() && p.hard.untouched());
    q.template forward<B>(tigon::default_context(), -2.5);
    EXPECT_EQ(bits_of(q.dx, q.dw, q.dbias), bits_of(p.dx, p.dw, p.dbias));
    q.expect_losses(wanted);
  }
}

TYPED_TEST(fused_linear_distillation, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t kind : {1u, 6u})
    expect_gradients_may_be_left_out<B>([=] { return problem<T>({20, 17, 9, 67}, variants[kind]); });
}

/// Logits that are given are those of a layer with the identity for w.
TYPED_TEST(fused_linear_distillation, a_teachers_logits_may_be_given) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    const sizes s{20, 17, 67 + v.more, 67, 2};
    problem<T> layer(s, v), logits(s, v);
    logits.by_logits = true;
    for (std::size_t j = 0; j < layer.wide; ++j)
      for (std::size_t h = 0; h < layer.wide; ++h) layer.tw(j, h) = from_f64<T>(j == h);
    std::ranges::fill(layer.tbias, from_f64<T>(0));
    const auto wanted = layer.wanted(-2.5);
    layer.template forward<B>(), logits.template forward<B>();
    EXPECT_EQ(logits.bits(), layer.bits());
    EXPECT_FALSE(logits.loss.untouched());
    logits.clear();
    logits.template backward<B>(-2.5);
    logits.expect_gradients(wanted);
    // Ignored rows of it are not read.
    if (!v.opt.mask_soft) continue;
    const auto before = logits.bits();
    for (std::size_t j = 0; j < logits.wide; ++j) logits.tx(1, j) = from_f64<T>(nan);
    logits.clear();
    logits.template backward<B>(-2.5);
    EXPECT_EQ(logits.bits(), before);
  }
}

TEST(teacher_logits, are_refused_where_they_do_not_fit) {
  using B = small_chunks;
  problem<float> p({4, 5, 9, 9}, variants[0]);
  p.by_logits = true;
  const auto call = [&](matrix_view<const float> logits, tigon::linear_gradients<float> to, options opt = {}) {
    tigon::fused_linear_jsd_distillation_forward<B>(p.head(), logits, p.target, {p.loss}, to, {opt, 0.5});
  };
  const auto cosine = [&](matrix_view<const float> logits) {
    tigon::fused_linear_cosine_distillation_forward<B>(p.head(), logits, p.target, {p.loss});
  };
  const matrix_view<const float> all = p.tx;
  const std::string name = "fused_linear_jsd_distillation_forward: teacher.logits ";
  EXPECT_TIGON_ERROR(call(all.cols_from(0, 8), {}), shape, name + "is 4 x 8; expected at least the student's 9 columns",
                     p.loss);
  EXPECT_TIGON_ERROR(call(all.rows_from(0, 3), {}), shape, name + "is 3 x 9; expected 4 x 9", p.loss);
  EXPECT_TIGON_ERROR(call({nullptr, 4, 9}, {}), shape, name + "is a null pointer", p.loss);
  EXPECT_TIGON_ERROR(call(all, {.dx = p.tx.view().cols_from(0, 5)}), alias, "dx overlaps teacher.logits", p.loss);
  const guarded_matrix<float> wide = random_matrix<float>({4, 10}, 3);
  EXPECT_TIGON_ERROR(cosine(wide), argument, "padding is neg_inf; expected zero_logit or drop_teacher", p.loss);
  problem<float> none({0, 5, 9, 9}, variants[0]);
  none.by_logits = true;
  none.forward<B>();
  EXPECT_EQ(none.loss[0], 0);
}

TYPED_TEST(fused_linear_distillation, nothing_kept_is_zero_and_bad_rows_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    if (v.mode == gradient::accumulate) continue;
    SCOPED_TRACE(v.name);
    problem<T> p({9, 5, 4, 30}, v);
    std::ranges::fill(p.target, v.opt.ignore_index);
    p.template forward<B>();
    for (const auto& zeros : {p.loss.f64(), p.soft.f64(), p.hard.f64(), p.dx.f64(), p.dw.f64(), p.dbias.f64()})
      EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));

    problem<T> clean({9, 5, 4, 30}, v), bad({9, 5, 4, 30}, v);
    bad.x(4, 2) = from_f64<T>(nan), clean.target[4] = bad.target[4] = 7;
    clean.template forward<B>(), bad.template forward<B>();
    EXPECT_TRUE(std::isnan(bad.loss[0]));
    for (std::size_t i = 0; i < 9; ++i)
      for (std::size_t h = 0; h < 5; ++h)
        EXPECT_TRUE(i == 4 ? std::isnan(to_f64(bad.dx(i, h))) : to_f64(bad.dx(i, h)) == to_f64(clean.dx(i, h))) << i;
  }
}

TYPED_TEST(fused_linear_distillation, ignored_rows_contribute_nothing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    if (!v.opt.mask_soft) continue;
    SCOPED_TRACE(v.name);
    problem<T> p({20, 17, 9, 67, 2}, v), zeros({20, 17, 9, 67, 2}, v);
    for (const std::size_t i : {1, 7, 19}) {
      p.target[i] = zeros.target[i] = v.opt.ignore_index;
      for (std::size_t h = 0; h < 17; ++h) zeros.x(i, h) = from_f64<T>(0), p.x(i, h) = from_f64<T>(nan);
      for (std::size_t h = 0; h < 9; ++h) zeros.tx(i, h) = from_f64<T>(0), p.tx(i, h) = from_f64<T>(nan);
    }
    p.template forward<B>(), zeros.template forward<B>();
    EXPECT_EQ(p.bits(), zeros.bits());
    for (const double g : p.dw.f64()) ASSERT_TRUE(std::isfinite(g));
    for (std::size_t h = 0; h < 17; ++h) EXPECT_EQ(to_f64(p.dx(7, h)), 0);
  }
}

template <class B, class T>
TIGON_TEST_NOINLINE loss_of_rows<problem<T>> rows_of(sizes s, variant v, bool by_logits, std::size_t chunk) {
  using P = problem<T>;
  v.opt.denominator = 3;
  return {.rows = s.rows,
          .make =
              [=] {
                P p(s, v);
                p.by_logits = by_logits;
                for (std::size_t i = 0; i < s.rows; ++i)
                  if (p.target[i] == v.opt.ignore_index) p.target[i] = static_cast<std::int64_t>(1 + i % (s.vocab - 1));
                return p;
              },
          .ignore =
              [=](P& p, std::size_t i) {
                p.target[i] = v.opt.ignore_index;
                spoil_row(p.x, i, s.hidden), spoil_row(p.tx, i, s.teacher_hidden);
              },
          .copy =
              [=](P& p, std::size_t i, const P& from, std::size_t k) {
                for (std::size_t h = 0; h < s.hidden; ++h) p.x(i, h) = from.x(k, h);
                for (std::size_t h = 0; h < s.teacher_hidden; ++h) p.tx(i, h) = from.tx(k, h);
                p.target[i] = from.target[k];
              },
          .results =
              [=](const P& p, std::size_t i) {
                std::vector<double> out;
                append_row(out, p.dx, i, s.hidden);
                return out;
              },
          .parameters = [](const P& p) { return bits_of(p.dw, p.dbias, p.loss, p.soft, p.hard); },
          .call = [](P& p, context& ctx) { p.template forward<B>(ctx); },
          .bytes =
              [=](context& ctx) {
                return tigon::fused_linear_distillation_workspace<B, T>(
                    s.rows, s.hidden, s.vocab, by_logits ? 0 : s.teacher_hidden, s.vocab + v.more, ctx,
                    tigon::parameters::trained, v.opt.softcap != 0);
              },
          .chunk = chunk};
}

TYPED_TEST(fused_linear_distillation, rows_do_not_depend_on_which_others_count) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t kind : {3u, 6u, 11u}) {
    SCOPED_TRACE(variants[kind].name);
    ASSERT_TRUE(variants[kind].opt.mask_soft);
    const std::size_t wide = 60 + variants[kind].more;
    for (const std::size_t rows : {130u, 8u})
      expect_rows_for_themselves(
          rows_of<B, T>({rows, 40, kind == 6 ? wide : 24, 60, 1}, variants[kind], kind == 6, 100));
  }
}

/// Calls whose gradients f32 inside does not give to within the bar of golden sets.
TYPED_TEST(fused_linear_distillation, few_rows_keep_to_the_bar_of_golden_sets) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  struct few_rows_case {
    sizes of;
    double deviation;  ///< of logits
    variant v;
  };
  const few_rows_case cases[] = {
      {{5, 9, 9, 257}, 2, {"reverse KL alone", which::jsd_alone, 1, false, 0, soft_only(0.8)}},
      {{5, 20, 20, 300}, 3, {"jsd alone", which::jsd_alone, 0.5, false, 0, soft_only(0.7)}},
      {{8, 16, 12, 120}, 3, {"jsd", which::jsd, 0.3, true, 5, {.temperature = 0.7, .softcap = 20}}},
      {{8, 24, 30, 150}, 9, {"cosine", which::cosine, 0.5, true, 0, {.softcap = 15}}}};
  if constexpr (tigon::detail::few_rows_in_f64<B, T>)
    for (const few_rows_case& c : cases)
      for (std::uint64_t seed = 0; seed < 25; ++seed) {
        SCOPED_TRACE(testing::Message() << c.v.name << ", seed " << seed);
        problem<T> p(c.of, c.v);
        const auto fill = [&](auto& m, std::size_t rows, std::size_t cols, double deviation, std::uint64_t of) {
          m.assign(normal_values(rows * cols, 4 * seed + of, {.deviation = deviation}));
        };
        const auto of_sum = [&](std::size_t hidden) { return c.deviation / std::sqrt(static_cast<double>(hidden)); };
        fill(p.x, c.of.rows, c.of.hidden, 1, 100), fill(p.tx, c.of.rows, c.of.teacher_hidden, 1, 101);
        fill(p.w, c.of.vocab, c.of.hidden, of_sum(c.of.hidden), 102);
        fill(p.tw, p.wide, c.of.teacher_hidden, of_sum(c.of.teacher_hidden), 103);
        const auto wanted = p.wanted();
        p.template forward<B>();
        expect_golden_bar(p, p.loss.f64(), {wanted.loss}, wanted);
      }
}

TYPED_TEST(fused_linear_distillation, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t kind : {3u, 6u}) {
    problem<T> p({60, 40, 20, 700}, variants[kind]);
    EXPECT_TRUE(same_forward_for_any_threads<B>(p));
  }
}

TYPED_TEST(fused_linear_distillation, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [v, hidden, teacher_hidden] :
       {std::tuple(variants[3], 17u, 40u), {variants[11], 17u, 40u}, {variants[3], 3u, 900u}}) {
    SCOPED_TRACE(v.name);
    problem<T> p({hidden == 17 && !v.biased ? 6u : 20u, hidden, teacher_hidden, 67}, v);
    const auto bytes = [&](context& ctx) {
      return tigon::fused_linear_distillation_workspace<B, T>(p.s.rows, p.s.hidden, 67, p.s.teacher_hidden, p.wide, ctx,
                                                              tigon::parameters::trained, p.v.opt.softcap != 0);
    };
    expect_takes_its_workspace("fused_linear_jsd_distillation_backward", p, bytes,
                               [&](context& ctx) { p.template backward<B>(1, ctx); });
    p.clear();
    expect_takes_its_workspace("fused_linear_jsd_distillation_forward", p, bytes,
                               [&](context& ctx) { p.template forward<B>(ctx); });
  }
}

TEST(gradients, differentiate_the_definition) {
  using B = single_numbers;
  using N = std::complex<double>;
  const sizes s{5, 4, 3, 11};
  const auto differentiate = [&](const variant& v) {
    SCOPED_TRACE(testing::Message() << v.name << ", beta " << v.beta);
    problem<double> p(s, v);
    if (v.mode == gradient::accumulate) p.dparams = gradient::overwrite;
    p.forward<B>();
    const auto txv = p.tx.f64(), twv = p.tw.f64(), tbv = p.tbias.f64();
    const auto loss = [&](const auto& xv, const auto& wv, const auto& bv) {
      N total = 0;
      for (std::size_t i = 0; i < s.rows; ++i) {
        const bool kept = p.target[i] != v.opt.ignore_index;
        const std::vector<N> wn(wv.begin(), wv.end()), bn(bv.begin(), bv.end());
        const auto z = capped(logits_of<N>(&xv[i * s.hidden], wn, bn, s.hidden, s.vocab), v.opt.softcap);
        const auto t =
            capped(logits_of<N>(&txv[i * s.teacher_hidden], twv, tbv, s.teacher_hidden, p.wide), v.opt.teacher_softcap);
        if (kept || !v.opt.mask_soft) total += v.opt.weight_soft * soft_row<N>(z, t, v).loss;
        if (kept && v.loss != which::jsd_alone)
          total += v.opt.weight_hard *
                   row_of_loss<N>(z, static_cast<std::size_t>(p.target[i]), std::vector<double>(s.vocab, 1), {}).main;
      }
      return total * p.share();
    };
    const auto xv = p.x.f64(), wv = p.w.f64(), bv = p.bias.f64();
    const auto of_x = probes(xv.size()), of_w = probes(wv.size()), of_b = probes(bv.size());
    const auto expect = [](const std::vector<double>& got, const std::vector<double>& want, const char* name) {
      EXPECT_TRUE(close(got, want, 1e-12, {.may_be_empty = true})) << name;
    };
    expect(pick(p.dx.f64(), of_x), complex_step([&](const auto& c) { return loss(c, wv, bv); }, xv, of_x), "dx");
    expect(pick(p.dw.f64(), of_w), complex_step([&](const auto& c) { return loss(xv, c, bv); }, wv, of_w), "dw");
    expect(pick(p.dbias.f64(), of_b), complex_step([&](const auto& c) { return loss(xv, wv, c); }, bv, of_b), "dbias");
  };
  for (const variant& v : variants) differentiate(v);
  for (const double beta : {0.0, 0.3, 0.8, 1.0})
    differentiate({"as the specification", which::jsd, beta, true, 0, {.weight_hard = 0.4, .temperature = 1.7}});
}

/// Rows of logits as they are: hidden = rows and the identity for x, so that row i of the logits is column i of w.
template <class T>
void set_logits(guarded_matrix<T>& x, guarded_matrix<T>& w, const std::vector<std::vector<double>>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t k = 0; k < rows.size(); ++k) x(i, k) = from_f64<T>(i == k);
    for (std::size_t j = 0; j < rows[i].size(); ++j) w(j, i) = from_f64<T>(rows[i][j]);
  }
}
template <class T>
problem<T> given_logits(const std::vector<std::vector<double>>& student,
                        const std::vector<std::vector<double>>& teacher, variant v) {
  const std::size_t n = student.size();
  v.more = teacher[0].size() - student[0].size();
  problem<T> p({n, n, n, student[0].size()}, v);
  set_logits(p.x, p.w, student), set_logits(p.tx, p.tw, teacher);
  std::ranges::fill(p.target, 0);
  return p;
}
std::vector<double> in_f32(std::vector<double> values) {
  for (double& v : values) v = static_cast<double>(static_cast<float>(v));
  return values;
}

// Liger adds up P log P - M log M and its like, whose terms cancel where the student has nearly learnt the teacher.
TEST(divergences, of_a_student_that_has_nearly_learnt_keep_their_digits) {
  for (const double beta : {0.0, 0.1, 0.5, 1.0})
    for (const double difference : {1e-1, 1e-2, 1e-3}) {
      SCOPED_TRACE(testing::Message() << "beta " << beta << ", difference " << difference);
      auto t = in_f32(normal_values(1000, 11, {.deviation = 2})), z = t;
      const auto noise = normal_values(1000, 12, {.deviation = difference});
      for (std::size_t j = 0; j < z.size(); ++j) z[j] += noise[j];
      z = in_f32(z);
      auto p = given_logits<float>({z}, {t}, {"", which::jsd_alone, beta, false, 0, soft_only(1)});
      const auto wanted = p.wanted();
      p.forward<small_chunks>();
      // The logarithms of both are rounded before they are subtracted.
      EXPECT_NEAR(p.loss[0] / wanted.loss, 1, 3e-7 / difference);
      EXPECT_LT(measure(p.dw.f64(), wanted.dw).rel_l2, 1e-6 / difference);
      const std::vector<float> zf(z.begin(), z.end()), tf(t.begin(), t.end());
      const float of_z = log_sum_exp(zf), of_t = log_sum_exp(tf);
      float textbook = 0;
      for (std::size_t j = 0; j < z.size(); ++j) {
        const float x = zf[j] - of_z, y = tf[j] - of_t, P = std::exp(y), Q = std::exp(x), b = static_cast<float>(beta);
        const float M = b * P + (1 - b) * Q;
        textbook += beta == 0 ? P * (y - x) : beta == 1 ? Q * (x - y) : b * P * y + (1 - b) * Q * x - M * std::log(M);
      }
      if (difference == 1e-3) {
        EXPECT_GT(std::abs(textbook / wanted.loss - 1), 1e-2) << "this test would not notice it";
      }
    }
}

// Where one column has most of the student's probability, its gradient is what the others leave of it. A temperature
// whose inverse is no number of f32 shifts all logarithms by the same digits.
TEST(divergences, of_rows_with_one_likely_column_keep_their_digits) {
  for (const double beta : {0.0, 0.1, 0.5, 1.0})
    for (const double lift : {4, 8, 16}) {
      SCOPED_TRACE(testing::Message() << "beta " << beta << ", lift " << lift);
      auto t = in_f32(normal_values(1000, 11)), z = in_f32(normal_values(1000, 12));
      z[400] = 4 + lift, t[400] = 4.5;
      auto p = given_logits<float>({z}, {t}, {"", which::jsd_alone, beta, false, 0, soft_only(0.7)});
      const auto wanted = p.wanted();
      p.forward<small_chunks>();
      EXPECT_LT(measure(p.dw.f64(), wanted.dw).rel_l2, 1.5e-6);
    }
}

// A sum of exponentials that begins with the maximum's own 1 has no digit left of what training still reduces.
TEST(labels, that_are_sure_keep_their_digits) {
  for (const double lift : {8, 16, 25, 40}) {
    auto z = in_f32(normal_values(1000, 16));
    z[0] = 4 + lift;
    auto p = given_logits<float>({z}, {z}, {"", which::jsd, 0.5, false, 0, {.weight_hard = 1, .weight_soft = 0}});
    const auto wanted = p.wanted();
    p.forward<small_chunks>();
    EXPECT_NEAR(p.hard[0] / wanted.hard, 1, 1e-6) << "lift " << lift;
    EXPECT_NEAR(p.dw(0, 0) / wanted.dw[0], 1, 2e-6) << "lift " << lift;
  }
}

// In Liger 0 log 0 is NaN where both probabilities underflow, and the whole loss with it.
TEST(divergences, know_no_log_of_zero) {
  std::vector<double> z(40), t(40);
  for (std::size_t j = 0; j < 40; ++j) z[j] = j < 3 ? 1.0 + static_cast<double>(j) : -150, t[j] = j < 3 ? 2 : -200;
  for (const double beta : {0.0, 0.5, 1.0}) {
    auto p = given_logits<float>({z, z}, {t, t}, {"", which::jsd, beta, false, 0, {}});
    p.target[1] = 39;
    const auto wanted = p.wanted();
    p.forward<small_chunks>();
    p.expect_losses(wanted);
    p.expect_gradients(wanted);
  }
}

TEST(divergences, are_infinite_where_the_teacher_has_what_the_student_cannot) {
  const std::vector<double> z{1, 2, 3}, t{1, 1, 2, 0};
  for (const double beta : {0.0, 0.5, 1.0}) {
    auto p = given_logits<float>({z}, {t}, {"", which::jsd, beta, false, 0, {.weight_hard = 0}});
    const auto wanted = p.wanted();
    p.forward<small_chunks>();
    EXPECT_EQ(std::isinf(p.soft[0]), beta == 0);
    p.expect_losses(wanted);
    p.expect_gradients(wanted);
  }
}

// Liger's 1 - cosine is rounded to multiples of 2^-24.
TEST(cosines, of_parallel_rows_keep_their_digits) {
  for (const double difference : {1e-2, 1e-3, 1e-4}) {
    auto t = in_f32(normal_values(1000, 13, {.deviation = 2})), z = t;
    const auto noise = normal_values(1000, 14, {.deviation = 2 * difference});
    for (std::size_t j = 0; j < z.size(); ++j) z[j] = 3 * (z[j] + noise[j]);
    z = in_f32(z);
    auto p = given_logits<float>({z}, {t}, {"", which::cosine, 1, false, 0, {.weight_hard = 0, .weight_soft = 1}});
    const auto wanted = p.wanted();
    p.forward<small_chunks>();
    EXPECT_NEAR(p.loss[0] / wanted.loss, 1, 1e-8 / difference);
    EXPECT_LT(measure(p.dw.f64(), wanted.dw).rel_l2, 4e-7 / difference);
    float zz = 0, tt = 0, zt = 0;
    for (std::size_t j = 0; j < z.size(); ++j) {
      const auto a = static_cast<float>(z[j]), b = static_cast<float>(t[j]);
      zz += a * a, tt += b * b, zt += a * b;
    }
    if (difference == 1e-4) {
      EXPECT_GT(std::abs((1 - zt / (std::sqrt(zz) * std::sqrt(tt))) / wanted.loss - 1), 0.1);
    }
  }
}

TEST(cosines, of_zeros_and_of_extreme_rows) {
  // Liger divides a row of zeros by 1e-12, and its gradient is 1e12 times too large.
  const std::vector<double> zero(20, 0.0), some = in_f32(normal_values(20, 15));
  std::vector<double> huge = some, tiny = some;
  for (double& v : huge) v *= 1e25;
  for (double& v : tiny) v *= 1e-25;
  auto p = given_logits<float>({zero, some, huge, tiny}, {some, zero, some, some},
                               {"", which::cosine, 0.5, false, 0, {.weight_hard = 0, .weight_soft = 1}});
  p.forward<small_chunks>();
  EXPECT_FLOAT_EQ(p.loss[0], 0.25f);
  for (std::size_t j = 0; j < 20; ++j) {
    EXPECT_EQ(p.dw(j, 0), 0);
    EXPECT_EQ(p.dw(j, 1), 0);
  }
}

TEST(ignored_rows, are_not_multiplied) {
  const variant& v = variants[3];
  expect_products_of_kept_rows(rows_of<tigon::backends::small_counting, float>({40, 16, 9, 123}, v, false, 0),
                               counted.multiplications, 3 * 16 * 123 + 9 * (123 + v.more));
}

// Liger's cosine counts ignored rows in the sum and not in the number that it divides by.
TEST(ignored_rows, have_no_soft_loss_unless_asked) {
  for (const which kind : {which::cosine, which::jsd})
    for (const bool masked : {true, false}) {
      problem<float> p({9, 5, 4, 30}, {"", kind, 0.5, false, 0, {.weight_hard = 0, .mask_soft = masked}});
      p.target[5] = p.target[6] = -100;
      problem<float> q({9, 5, 4, 30}, p.v);
      std::ranges::copy(p.target, q.target.begin());
      for (std::size_t h = 0; h < 5; ++h) q.x(5, h) = -q.x(5, h);
      p.forward<small_chunks>(), q.forward<small_chunks>();
      EXPECT_EQ(p.soft[0] == q.soft[0], masked);
      for (std::size_t h = 0; h < 5; ++h) EXPECT_EQ(p.dx(5, h) == 0, masked);
    }
}

TEST(ignored_rows, have_no_gradient_behind_bad_ones) {
  problem<float> p({9, 5, 4, 30}, {"", which::jsd, 0.5, false, 0, {}});
  p.x(4, 0) = static_cast<float>(nan);
  p.target[4] = 3, p.target[5] = -100;
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  p.forward<small_chunks>(ctx);
  for (std::size_t h = 0; h < 5; ++h) {
    EXPECT_TRUE(std::isnan(p.dx(4, h)));
    EXPECT_EQ(p.dx(5, h), 0);
  }
}

TEST(parts, without_weight_are_not_computed_unless_asked) {
  problem<float> p({9, 5, 4, 30}, {"", which::jsd, 0.5, false, 0, {.weight_hard = 1, .weight_soft = 0}});
  const guarded<float> nothing(0);  // cannot be read
  const tigon::distillation_losses<float> losses{p.loss};
  tigon::fused_linear_jsd_distillation_forward<small_chunks>(
      p.head(), {matrix_view(nothing.data(), 9, 4), matrix_view(nothing.data(), 30, 4)}, p.target, losses,
      p.gradients(), {p.v.opt, 0.5});
  const auto wanted = p.wanted();
  EXPECT_TRUE(close(p.loss.f64(), {{wanted.loss}}, loss_bound.f32));
  p.expect_gradients(wanted);
  p.tx.assign(std::vector<double>(9 * 4, nan));
  p.forward<small_chunks>();
  EXPECT_TRUE(std::isfinite(p.loss[0]) && std::isfinite(p.dx(3, 3)) && std::isnan(p.soft[0]));
}

TEST(parts, are_halves_where_nothing_is_said) {
  const options opt;
  EXPECT_EQ((std::vector{opt.weight_hard, opt.weight_soft, opt.temperature, opt.upstream}),
            (std::vector{0.5, 0.5, 1.0, 1.0}));
}

TEST(labels, of_jsd_alone_may_be_absent_or_anything) {
  problem<float> p({9, 5, 4, 30}, variants[9]), q({9, 5, 4, 30}, variants[9]);
  p.target[1] = 999, p.target[2] = -7;  // no row is ignored any more
  p.forward<small_chunks>();
  tigon::fused_linear_jsd_forward<small_chunks>(q.head(), q.teacher(), tigon::absent, q.loss, q.gradients(), q.alone());
  EXPECT_EQ(bits_of(p.loss, p.dx, p.dw), bits_of(q.loss, q.dx, q.dw));
}

TEST(chunks, change_the_results_by_rounding_alone) {
  const sizes s{40, 16, 9, 200};
  problem<float> a(s, variants[6]), b(s, variants[6]);
  const auto wanted = a.wanted();
  context& ctx = tigon::default_context();
  EXPECT_EQ((tigon::detail::chunk_rows<usual_backend, float>(s.rows, 16, a.wide, ctx, 2)), 40u);
  EXPECT_EQ((tigon::detail::chunk_rows<small_chunks, float>(s.rows, 16, a.wide, ctx, 2)), 1u);
  a.cosine<usual_backend>(), b.cosine<small_chunks>();
  a.expect_losses(wanted), b.expect_losses(wanted);
  a.expect_gradients(wanted), b.expect_gradients(wanted);
}

TEST(chunks, of_a_wide_vocabulary) {
  for (const std::size_t kind : {0u, 6u}) {
    problem<float> p({3, 2, 2, 256000}, variants[kind]);
    p.target[0] = 255999;
    const auto wanted = p.wanted();
    p.forward<small_chunks>();
    p.expect_losses(wanted);
    p.expect_gradients(wanted);
  }
}

// docs/formulas/distillation.md: the logits of a chunk for both, an f32 dw where w has 16 bits, and what the largest
// product packs.
TEST(chunks, take_the_memory_that_the_page_says) {
  using B = usual_backend;
  constexpr std::size_t mib = std::size_t{1} << 20;
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  problem<float> p({160, 32, 32, 20000}, variants[7]);
  p.target[1] = 0;  // no row is ignored
  p.cosine<B>(ctx);
  const std::size_t chunk = tigon::detail::chunk_rows<B, float>(160, 32, p.wide, ctx, 2);
  const std::size_t page = 2 * 4 * chunk * p.wide + tigon::gemm_workspace<B, float, float, float>(chunk, 32, 20000);
  EXPECT_NEAR(static_cast<double>(scratch.high_water()) / static_cast<double>(page), 1, 0.1);
  // Liger keeps N x V losses in f32 beside its chunks: a gigabyte of them here.
  EXPECT_LT((tigon::fused_linear_distillation_workspace<B, float>(2048, 2048, 128256, 4096, 128256, ctx)), 100 * mib);
}

/// A soft loss of one's own: half the squared distance of the logits.
struct squared_error {
  static constexpr bool takes_neg_inf = false;
  struct terms {
    template <class V>
    tigon::pack<V, 4> operator()(V v, V t) const {
      const V r = v - t;
      return {{r, r, r * r, r}};
    }
    tigon::soft_loss_row<float> finish(float square, float) const { return {square / 2, 0, 1}; }
  };
  template <class Row>
  terms operator()(Row, tigon::vector_view<float>, tigon::vector_view<float>) const {
    return {};
  }
};

TEST(soft_losses, of_ones_own) {
  problem<float> p({7, 5, 4, 30});
  const tigon::distillation_losses<float> losses{p.loss, p.soft, p.hard};
  tigon::fused_linear_distillation_forward<small_chunks>(p.head(), p.teacher(), p.target, squared_error{}, losses,
                                                         p.gradients(), {.weight_hard = 0});
  const auto xv = p.x.f64(), wv = p.w.f64(), txv = p.tx.f64(), twv = p.tw.f64();
  double soft = 0;
  std::vector<double> dx(7 * 5);
  for (std::size_t i = 0; i < 7; ++i) {
    if (p.target[i] == -100) continue;
    const auto z = logits_of<double>(&xv[i * 5], wv, {}, 5, 30), t = logits_of<double>(&txv[i * 4], twv, {}, 4, 30);
    for (std::size_t j = 0; j < 30; ++j) {
      soft += (z[j] - t[j]) * (z[j] - t[j]) / 2 / 6;
      for (std::size_t h = 0; h < 5; ++h) dx[i * 5 + h] += (z[j] - t[j]) / 12 * wv[j * 5 + h];
    }
  }
  EXPECT_TRUE(close(p.soft.f64(), {{soft}}, 3e-6));
  EXPECT_TRUE(close(p.loss.f64(), {{soft / 2}}, 3e-6));
  EXPECT_TRUE(close(p.dx.f64(), dx, 2e-5));
  problem<float> q({7, 5, 4, 30});
  tigon::fused_linear_distillation_backward<small_chunks>(q.head(), q.teacher(), q.target, squared_error{}, 1,
                                                          q.gradients(), {.weight_hard = 0});
  EXPECT_EQ(bits_of(p.dx, p.dw), bits_of(q.dx, q.dw));
}

// Engines differ in what a maximum does with NaN.
#if defined(TIGON_CONFORMANCE_BACKEND)
using other_engine = usual_backend;
#else
using other_engine = tigon::backends::xsimd;
#endif
TEST(rows_of_logits, are_nan_on_any_engine_where_something_is) {
  using B = other_engine;
  const auto bad_is_nan = [&](const auto& soft) {
    for (std::size_t bad = 0; bad < 4; ++bad)
      for (const bool all : {false, true}) {
        guarded<float> z = random_vector<float>(3 * 37, 1), t = random_vector<float>(3 * 37, 2);
        const float value = bad < 2 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
        guarded<float>& to = bad % 2 == 0 ? z : t;
        std::fill_n(to.begin() + 37, all ? 37 : 1, value);
        double of_soft[3], of_hard[3];
        tigon::detail::distillation_rows<float> rows{of_soft, of_hard, 1, 1, 37, 37};
        rows.ignored = -100, rows.gradient = true;
        const std::int64_t target[] = {5, 6, 7};
        tigon::default_context().workspace().expect("test", 1 << 16);
        tigon::kernel_for<tigon::op::distillation, B>::template forward<B, float, std::int64_t>(
            matrix_view(z.data(), 3, 37), matrix_view(t.data(), 3, 37), target, soft, rows, tigon::default_context());
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(std::isnan(of_soft[i]), i == 1) << bad << all;
          EXPECT_EQ(std::isnan(of_hard[i]), i == 1 && bad % 2 == 0) << bad << all;
          for (std::size_t j = 0; j < 37; ++j) EXPECT_EQ(std::isnan(z[i * 37 + j]), i == 1) << bad << all;
        }
      }
  };
  bad_is_nan(tigon::cosine_soft<float>{1});
  bad_is_nan(tigon::jsd_soft<float, tigon::simd::jensen_shannon<float>>(tigon::simd::jensen_shannon<float>(0.5), 1));
}

// A row's gradient sums to 0, whatever the log-sums were rounded by: near the teacher that shows, an error of the whole
// row beside differences that are a hundredth of the probabilities.
TEST(rows_of_logits, have_gradients_that_sum_to_zero) {
  using B = usual_backend;
  constexpr std::size_t n = 64, vocab = 1001;
  for (const double beta : {0.0, 0.1, 0.5, 0.9, 1.0})
    tigon::simd::with_divergence<float>(beta, [&](auto divergence) {
      guarded<float> z = random_vector<float>(n * vocab, 5), t = random_vector<float>(n * vocab, 6);
      for (std::size_t k = 0; k < n * vocab; ++k) z[k] *= 3, t[k] = z[k] + t[k] / 100;
      std::vector<double> of_soft(n);
      tigon::detail::distillation_rows<float> rows{of_soft.data(), nullptr, 1, 0, vocab, vocab};
      rows.gradient = true;
      tigon::default_context().workspace().expect("test", 1 << 16);
      tigon::kernel_for<tigon::op::distillation, B>::template forward<B, float, std::int64_t>(
          matrix_view(z.data(), n, vocab), matrix_view(t.data(), n, vocab), nullptr,
          tigon::jsd_soft<float, decltype(divergence)>(divergence, 1), rows, tigon::default_context());
      for (std::size_t i = 0; i < n; ++i) {
        double sum = 0, size = 0;
        for (std::size_t j = 0; j < vocab; ++j) sum += z[i * vocab + j], size += std::abs(z[i * vocab + j]);
        ASSERT_GT(size, 0) << i;
        ASSERT_LE(std::abs(sum), 1e-6 * size) << "beta " << beta << ", row " << i;
      }
    });
}

/// The doors, which are the same for every backend: refused before the first write.
class distillation_doors : public testing::Test {
 protected:
  using view = matrix_view<float>;
  using floats = std::span<float>;
  struct arguments {
    view x, w, tx, tw;
    floats tbias;
    std::span<const std::int64_t> target;
    tigon::distillation_losses<float> losses;
    view dx, dw;
    options opt;
    double beta;
    floats bias, dbias;
    double upstream = 1;
    tigon::linear_layer<float> student() const { return {x, w, bias}; }
    tigon::linear_layer<float> teacher() const { return {tx, tw, tbias}; }
    tigon::linear_gradients<float> gradients() const { return {dx, dw, dbias}; }
    options with_upstream() const {
      options of = opt;
      of.upstream = upstream;
      return of;
    }
  };
  using change_of = std::function<void(arguments&)>;

  TIGON_TEST_NOINLINE void refuses_jsd(tigon::error_code code, const std::string& part, const change_of& change) {
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_jsd_distillation_forward<small_chunks>(a.student(), a.teacher(), a.target, a.losses,
                                                                     a.gradients(), {a.with_upstream(), a.beta});
        },
        code, "fused_linear_jsd_distillation_forward: " + part, p.dx, p.dw, p.dbias, p.loss, p.soft, p.hard, m.all));
  }
  TIGON_TEST_NOINLINE void refuses_all(tigon::error_code code, const std::string& part, const change_of& change) {
    refuses_jsd(code, part, change);
    arguments a = good;
    change(a);
    const auto refused = [&](const char* name, const auto& call) {
      EXPECT_TRUE(refuses(call, code, name + (": " + part), p.dx, p.dw, p.dbias, p.loss, p.soft, p.hard, m.all))
          << name;
    };
    refused("fused_linear_jsd_distillation_backward", [&] {
      tigon::fused_linear_jsd_distillation_backward<small_chunks>(a.student(), a.teacher(), a.target, a.upstream,
                                                                  a.gradients(), {a.opt, a.beta});
    });
    refused("fused_linear_cosine_distillation_forward", [&] {
      tigon::fused_linear_cosine_distillation_forward<small_chunks>(a.student(), a.teacher(), a.target, a.losses,
                                                                    a.gradients(), {a.with_upstream(), a.beta});
    });
    refused("fused_linear_jsd_backward", [&] {
      tigon::fused_linear_jsd_backward(
          a.student(), a.teacher(), a.target, a.upstream, a.gradients(),
          {a.beta, a.opt.temperature, a.opt.ignore_index, a.opt.padding, a.opt.denominator});
    });
  }

  auto each() { return std::bind_front(&distillation_doors::refuses_all, this); }

  problem<float> p{{3, 4, 4, 6, 1}, {"", which::jsd, 0.5, true, 0, {}}};
  overlapping_memory m{p.of_layer};
  const arguments good{p.x.view(),  p.w.view(),  p.tx.view(), p.tw.view(), p.tbias, p.target, {p.loss, p.soft, p.hard},
                       p.dx.view(), p.dw.view(), {},          0.5,         p.bias,  p.dbias};
};

TEST_F(distillation_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  refuse_wrong_layers(p.of_layer, each());
  refuses_all(shape, "teacher.x is 2 x 4; expected 3 x 4", [](auto& a) { a.tx.rows = 2; });
  refuses_all(shape, "teacher.w is 6 x 3; expected 6 x 4", [](auto& a) { a.tw.cols = 3; });
  refuses_all(stride, "teacher.w is of row stride 3", [](auto& a) { a.tw.row_stride = 3; });
  refuses_all(shape, "teacher.w is 5 x 4; expected at least the student's 6 rows", [](auto& a) { a.tw.rows = 5; });
  refuses_all(shape, "teacher.bias is of 5 elements; expected 6", [](auto& a) { a.tbias = a.tbias.first(5); });
  refuses_all(shape, "target is of 2 elements; expected 3", [](auto& a) { a.target = a.target.first(2); });
  refuses_jsd(shape, "target is of 0 elements; expected 3", [](auto& a) { a.target = {}; });
  refuses_jsd(shape, "loss is of 0 elements; expected 1", [](auto& a) { a.losses.loss = {}; });
  refuses_jsd(shape, "soft is of 2 elements; expected 1", [&](auto& a) { a.losses.soft = m.classes.first(2); });
  refuses_jsd(shape, "hard is of 2 elements; expected 1", [&](auto& a) { a.losses.hard = m.classes.first(2); });
}

TEST_F(distillation_doors, refuse_wrong_numbers_and_labels) {
  using enum tigon::error_code;
  for (const double bad : {0.0, -1.0, 1e31, nan, inf})
    refuses_all(argument, "temperature is", [=](auto& a) { a.opt.temperature = bad; });
  refuses_all(argument, "beta is", [](auto& a) { a.beta = nan; });
  for (const double bad : {-0.1, 1.1}) refuses_jsd(argument, "beta is", [=](auto& a) { a.beta = bad; });
  refuses_all(argument, "denominator is", [](auto& a) { a.opt.denominator = -1; });
  refuses_all(argument, "upstream is", [](auto& a) { a.upstream = inf; });
  refuses_jsd(argument, "weight_hard is", [](auto& a) { a.opt.weight_hard = nan; });
  refuses_jsd(argument, "weight_soft is", [](auto& a) { a.opt.weight_soft = -inf; });
  for (const double bad : {-1.0, 1e-40, nan, inf}) {
    refuses_jsd(argument, "softcap is", [=](auto& a) { a.opt.softcap = bad; });
    refuses_jsd(argument, "teacher_softcap is", [=](auto& a) { a.opt.teacher_softcap = bad; });
  }
  for (const std::int64_t bad : {-1, 6}) {
    p.target[1] = bad;
    refuses_jsd(index, "target[1] is " + std::to_string(bad) + "; expected at least 0 and below 6", [](auto&) {});
  }
  p.target[1] = 0;
  EXPECT_TIGON_ERROR(tigon::fused_linear_cosine_distillation_forward(
                         tigon::linear_layer{good.x, good.w.rows_from(0, 5)}, good.teacher(), good.target, good.losses,
                         {good.dx, good.dw.rows_from(0, 5)}),
                     argument, "padding is neg_inf; expected zero_logit or drop_teacher", p.dx, p.dw, p.loss);
}

TEST_F(distillation_doors, refuse_overlaps) {
  using enum tigon::error_code;
  refuse_overlapping_layers(m, each());
  refuses_all(alias, "dx overlaps teacher.x", [&](auto& a) { a.tx = a.dx = m.of_rows; });
  refuses_all(alias, "dw overlaps teacher.w", [&](auto& a) { a.tw = a.dw = m.of_classes; });
  refuses_all(alias, "dbias overlaps teacher.bias", [&](auto& a) { a.tbias = a.dbias = m.classes; });
  refuses_jsd(alias, "loss overlaps teacher.x", [&](auto& a) { a.tx = m.of_rows, a.losses.loss = m.one; });
  refuses_jsd(alias, "loss overlaps dw", [&](auto& a) { a.dw = m.of_classes, a.losses.loss = m.one; });
  refuses_jsd(alias, "soft overlaps loss", [&](auto& a) { a.losses.loss = a.losses.soft = m.one; });
  refuses_jsd(alias, "hard overlaps soft", [&](auto& a) { a.losses.hard = a.losses.soft = m.one; });
}

}  // namespace

// A linear layer in front of a loss with room for its gradients, and what every fused linear loss is checked for.
#ifndef TIGON_TESTS_SUPPORT_LINEAR_PROBLEM_HPP
#define TIGON_TESTS_SUPPORT_LINEAR_PROBLEM_HPP

#include <cmath>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "errors.hpp"
#include "guarded.hpp"
#include "problem.hpp"
#include "scratch.hpp"
#include "threads.hpp"
#include "throws.hpp"

namespace tigon::test {

struct linear_sizes {
  std::size_t rows, hidden, vocab, padding = 0;
  friend std::ostream& operator<<(std::ostream& out, linear_sizes s) {
    return out << s.rows << " rows of " << s.hidden << ", " << s.vocab << " classes, padding " << s.padding;
  }
};

/// A layer in f64, all logits at once.
struct whole_layer {
  std::vector<double> x, w, bias;  ///< bias may be empty
  std::size_t rows = 0, hidden = 0, vocab = 0;
  double softcap = 0;

  double product(std::size_t i, std::size_t j) const {
    double sum = bias.empty() ? 0 : bias[j];
    for (std::size_t h = 0; h < hidden; ++h) sum += x[i * hidden + h] * w[j * hidden + h];
    return sum;
  }
  TIGON_TEST_NOINLINE std::vector<double> logits() const {
    std::vector<double> z(rows * vocab);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < vocab; ++j)
        z[i * vocab + j] = softcap == 0 ? product(i, j) : softcap * std::tanh(product(i, j) / softcap);
    return z;
  }
  /// The derivative of a logit by what it is the cap of.
  double slope(std::size_t i, std::size_t j) const {
    return softcap == 0 ? 1 : 1 / std::pow(std::cosh(product(i, j) / softcap), 2);
  }
  /// log softmax of all logits over a temperature, with every class as its own point of reference.
  TIGON_TEST_NOINLINE std::vector<double> log_probs(double temperature = 1) const {
    std::vector<double> z = logits(), out(z.size());
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < vocab; ++j) {
        long double others = 0;
        for (std::size_t k = 0; k < vocab; ++k)
          if (k != j) others += std::exp((long double)(z[i * vocab + k] - z[i * vocab + j]) / temperature);
        out[i * vocab + j] = static_cast<double>(-std::log1p(others));
      }
    return out;
  }
};

/// Gradients of a layer.
struct layer_gradients {
  std::vector<double> dx, dw, dbias;

  explicit layer_gradients(const whole_layer& of)
      : dx(of.rows * of.hidden), dw(of.vocab * of.hidden), dbias(of.vocab) {}
  /// Adds what u = d loss / d log p at `column` of `row` makes of them.
  TIGON_TEST_NOINLINE void add(const whole_layer& of, const std::vector<double>& log_probs, std::size_t row,
                               std::int64_t column, double u) {
    for (std::size_t j = 0; j < of.vocab; ++j) {
      const double log_p = log_probs[row * of.vocab + j];
      const double d =
          u * of.slope(row, j) * (static_cast<std::int64_t>(j) == column ? -std::expm1(log_p) : -std::exp(log_p));
      dbias[j] += d;
      for (std::size_t h = 0; h < of.hidden; ++h) {
        dx[row * of.hidden + h] += d * of.w[j * of.hidden + h];
        dw[j * of.hidden + h] += d * of.x[row * of.hidden + h];
      }
    }
  }
};

/// What a door is given: nothing where a buffer is empty.
template <class T>
std::span<T> given(guarded<T>& buffer) {
  return buffer.size() == 0 ? std::span<T>() : std::span<T>(buffer);
}

/// Every buffer at a guard page, gradients full of canaries or of what they are added to; all strides are different
/// where there is padding.
template <class T>
struct linear_problem {
  linear_sizes of_layer;
  gradient dparams;
  guarded_matrix<T> x, w, dx, dw;
  guarded<T> bias, dbias;

  TIGON_TEST_NOINLINE linear_problem(linear_sizes s, bool biased, gradient mode, guard side = guard::behind)
      : of_layer(s),
        dparams(mode),
        x(random_matrix<T>({s.rows, s.hidden, s.padding}, 1, side)),
        w(random_matrix<T>({s.vocab, s.hidden, 2 * s.padding}, 2, side, {.deviation = 0.4})),
        dx(s.rows, s.hidden, 3 * s.padding, side),
        dw(s.vocab, s.hidden, 4 * s.padding, side),
        bias(random_vector<T>(biased ? s.vocab : 0, 3, side)),
        dbias(bias.size(), side) {
    clear_gradients();
  }

  TIGON_TEST_NOINLINE void clear_gradients() {
    dx.clear(), dw.clear(), dbias.clear();
    if (dparams == gradient::accumulate)
      dw.assign(normal_values(of_layer.vocab * of_layer.hidden, 7)), dbias.assign(normal_values(dbias.size(), 8));
  }
  linear_layer<T> head() const { return {x, w, {bias.size() == 0 ? nullptr : bias.data(), bias.size()}}; }
  linear_gradients<T> gradients() { return {dx.view(), dw.view(), given(dbias), dparams}; }
  whole_layer layer() const { return {x.f64(), w.f64(), bias.f64(), of_layer.rows, of_layer.hidden, of_layer.vocab}; }
  /// What the gradients are added to in f64; to be computed before the call.
  TIGON_TEST_NOINLINE layer_gradients before() const {
    layer_gradients out(whole_layer{{}, {}, {}, of_layer.rows, of_layer.hidden, of_layer.vocab});
    out.dbias.resize(dbias.size());
    if (dparams == gradient::accumulate) out.dw = dw.f64(), out.dbias = dbias.f64();
    return out;
  }
};

/// Adds what the gradient d of logit j of row i makes of a layer's.
inline void add_logit_gradient(layer_gradients& to, const whole_layer& of, std::size_t i, std::size_t j, double d) {
  if (!to.dbias.empty()) to.dbias[j] += d;
  for (std::size_t h = 0; h < of.hidden; ++h) {
    to.dx[i * of.hidden + h] += d * of.w[j * of.hidden + h];
    to.dw[j * of.hidden + h] += d * of.x[i * of.hidden + h];
  }
}

/// dx, dw and dbias of p, and that their padding was left alone; `want` has what it calls the same.
template <class P, class Want>
TIGON_TEST_NOINLINE void expect_layer_gradients(const P& p, const Want& want, double bound, comparison with = {}) {
  with.may_be_empty = true;
  EXPECT_TRUE(close(p.dx.f64(), want.dx, bound, with)) << "dx";
  EXPECT_TRUE(close(p.dw.f64(), want.dw, bound, with)) << "dw";
  EXPECT_TRUE(close(p.dbias.f64(), want.dbias, bound, with)) << "dbias";
  EXPECT_TRUE(p.dx.padding_intact() && p.dw.padding_intact());
}

/// make() is a problem; forward with some gradients alone leaves the others as they are, and changes no other bit.
template <class B, class Make>
void expect_gradients_may_be_left_out(Make make) {
  const auto before = make();
  auto full = make();
  full.template forward<B>();
  using M = decltype(full.dx.view());
  for (int some = 0; some < 8; ++some) {
    SCOPED_TRACE(some);
    auto p = make();
    const bool dx = some & 1, dw = some & 2, db = some & 4;
    p.template forward<B>(dx ? p.dx.view() : M{}, dw ? p.dw.view() : M{},
                          db ? given(p.dbias) : decltype(given(p.dbias)){});
    EXPECT_EQ(p.results(), full.results());
    EXPECT_EQ(bits_of(p.dx), bits_of(dx ? full.dx : before.dx));
    EXPECT_EQ(bits_of(p.dw), bits_of(dw ? full.dw : before.dw));
    EXPECT_EQ(bits_of(p.dbias), bits_of(db ? full.dbias : before.dbias));
  }
}

/// p.clear() makes all outputs as they were, p.bits() are theirs.
template <class B, class P>
testing::AssertionResult same_forward_for_any_threads(P& p) {
  return same_bits_for_any_threads([&](context& ctx) {
    p.clear();
    p.template forward<B>(ctx);
    return p.bits();
  });
}

/// The door `name` refuses a workspace a byte smaller than it names before it writes any of p.bits(), and one of that
/// size is enough.
template <class P>
TIGON_TEST_NOINLINE void expect_takes_its_workspace(const std::string& name, const P& p,
                                                    const std::function<std::size_t(context&)>& bytes_of,
                                                    const std::function<void(context&)>& call) {
  for (const std::size_t threads : {1u, 3u})
    with_workspace_of(
        64,
        [&](context& of_size) {
          const std::size_t bytes = bytes_of(of_size);
          const auto before = p.bits();
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call, threads), workspace, name + ": workspace is of");
          EXPECT_TRUE(p.bits() == before) << name << " was refused after something was written";
          with_workspace_of(bytes, call, threads);
        },
        threads);
}

/// The shapes of x, w, bias and of their gradients, of a call whose layer is of sizes s.
/// refuses(code, part, change) expects that the call is refused with that code and sentence after change(arguments).
template <class Refuses>
void refuse_wrong_layers(linear_sizes s, Refuses refuses) {
  using enum error_code;
  const auto text = [](std::size_t rows, std::size_t cols) {
    return std::to_string(rows) + " x " + std::to_string(cols);
  };
  const std::string stride_text = " is of row stride " + std::to_string(s.hidden - 1);
  refuses(shape, "vocab is 0; expected at least 1", [](auto& a) { a.w.rows = 0; });
  refuses(shape, "x is a null pointer", [](auto& a) { a.x.data = nullptr; });
  refuses(stride, "x" + stride_text, [](auto& a) { a.x.row_stride = a.x.cols - 1; });
  refuses(stride, "w" + stride_text, [](auto& a) { a.w.row_stride = a.w.cols - 1; });
  refuses(shape, "w is " + text(s.vocab, s.hidden - 1) + "; expected " + text(s.vocab, s.hidden),
          [](auto& a) { --a.w.cols; });
  refuses(shape, "dx is " + text(s.rows - 1, s.hidden) + "; expected " + text(s.rows, s.hidden),
          [](auto& a) { --a.dx.rows; });
  refuses(shape, "dw is " + text(s.vocab, s.hidden - 1) + "; expected " + text(s.vocab, s.hidden),
          [](auto& a) { --a.dw.cols; });
  const std::string elements =
      " is of " + std::to_string(s.vocab - 1) + " elements; expected " + std::to_string(s.vocab);
  refuses(shape, "bias" + elements, [](auto& a) { a.bias = a.bias.first(a.bias.size() - 1); });
  refuses(shape, "dbias" + elements, [](auto& a) { a.dbias = a.dbias.first(a.dbias.size() - 1); });
}

/// Memory for two arguments at once, of the shapes of a layer of sizes s.
struct overlapping_memory {
  explicit overlapping_memory(linear_sizes s)
      : all(std::max(s.rows, s.vocab) * std::max<std::size_t>(s.hidden, 1)),
        of_rows(all.data(), s.rows, s.hidden),
        of_classes(all.data(), s.vocab, s.hidden),
        classes(std::span<float>(all).first(s.vocab)),
        one(classes.first(1)) {
    all.assign(std::vector<double>(all.size(), 1.0));
  }
  guarded<float> all;
  matrix_view<float> of_rows, of_classes;
  std::span<float> classes, one;
};

/// A gradient of the layer in the memory of something else of it.
template <class Refuses>
void refuse_overlapping_layers(const overlapping_memory& m, Refuses refuses) {
  constexpr auto alias = error_code::alias;
  refuses(alias, "dx overlaps x", [&](auto& a) { a.x = a.dx = m.of_rows; });
  refuses(alias, "dx overlaps w", [&](auto& a) { a.w = m.of_classes, a.dx = m.of_rows; });
  refuses(alias, "dx overlaps dw", [&](auto& a) { a.dw = m.of_classes, a.dx = m.of_rows; });
  refuses(alias, "dw overlaps x", [&](auto& a) { a.x = m.of_rows, a.dw = m.of_classes; });
  refuses(alias, "dw overlaps w", [&](auto& a) { a.w = a.dw = m.of_classes; });
  refuses(alias, "dx overlaps bias", [&](auto& a) { a.bias = m.classes, a.dx = m.of_rows; });
  refuses(alias, "dx overlaps dbias", [&](auto& a) { a.dbias = m.classes, a.dx = m.of_rows; });
  refuses(alias, "dw overlaps bias", [&](auto& a) { a.bias = m.classes, a.dw = m.of_classes; });
  refuses(alias, "dw overlaps dbias", [&](auto& a) { a.dbias = m.classes, a.dw = m.of_classes; });
  refuses(alias, "dbias overlaps x", [&](auto& a) { a.x = m.of_rows, a.dbias = m.classes; });
  refuses(alias, "dbias overlaps w", [&](auto& a) { a.w = m.of_classes, a.dbias = m.classes; });
  refuses(alias, "dbias overlaps bias", [&](auto& a) { a.bias = a.dbias = m.classes; });
}

/// Loss and gradients in f32 as near to the reference as golden sets ask for, without the original's own error in the
/// bar (tests/golden/README.md).
template <class P, class Reference>
TIGON_TEST_NOINLINE void expect_golden_bar(const P& p, const std::vector<double>& loss,
                                           const std::vector<double>& wanted_loss, const Reference& wanted) {
  constexpr double bar = 2.4e-7;
  EXPECT_LE(measure(loss, wanted_loss).rel_l2, bar) << "loss";
  EXPECT_LE(measure(p.dx.f64(), wanted.dx).rel_l2, bar) << "dx";
  EXPECT_LE(measure(p.dw.f64(), wanted.dw).rel_l2, bar) << "dw";
  if (p.dbias.size() == 0) return;
  EXPECT_LE(measure(p.dbias.f64(), wanted.dbias).rel_l2, bar) << "dbias";
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_LINEAR_PROBLEM_HPP

// Fuzzing of operators on rows without parameters, and of dyt.
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/sparsemax.hpp>
#include <tigon/ops/swiglu_fused.hpp>

#include "problem.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;

/// Rows without special values are points of the simplex, as far as errors below the bound allow.
void expect_simplex(const any_problem& p, const argument& y, double bound, const std::vector<bool>& wild) {
  if (p.is_faulty()) return;
  const double each = any_problem::size_of_terms({&y}) * static_cast<double>(y.cols());
  for (std::size_t i = 0; i < y.rows(); ++i) {
    if (wild[i]) continue;
    long double sum = 0;  // 1772 equal f64 sum to 1 + 4e-14 in f64
    for (std::size_t j = 0; j < y.cols(); ++j) {
      const double part = y.got(i * y.cols() + j);
      if (!(part >= 0)) p.fail("a probability is below 0");
      sum += part;
    }
    if (!(std::abs(sum - 1) <= bound * (1 + each)))
      p.fail("probabilities of a row have the sum " + std::to_string(sum));
  }
}

template <class P>
void softmax(P& p) {
  using T = typename P::element;
  constexpr bounds most{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
  constexpr bounds of_dx{.f32 = 1e-6, .bf16 = 1e-6, .f16 = 1e-6, .f64 = 2e-15};  // and one rounding
  const std::size_t rows = p.some_rows(), cols = p.some_cols(p.in.one_in(16) ? 3000 : 300);
  const tigon::softmax_options opt{.scale = p.in.pick({1.0, 0.125, 2.0, 1e-3})};
  auto &x = p.filled(p.matrix("x", rows, cols)), &dy = p.filled(p.matrix("dy", rows, cols));
  auto &y = p.matrix("y", rows, cols), &dx = p.matrix("dx", rows, cols);
  p.call({&y}, [&](auto s) { tigon::softmax_forward<typename decltype(s)::backend>(x.at(s), y.at(s), opt, s.ctx); });
  p.compare(y, {.bound = most.of<T>(), .of = {&x}});
  expect_simplex(p, y, most.of<T>(), x.wild);
  y.hand_over();
  auto& to = p.in_place(dx, {&dy, &y});
  // dx = scale y_j (dy_j - sum y dy), which cancels where one y is nearly 1.
  std::vector<double> terms(to.size());
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < cols; ++j) sum += y.wanted(i * cols + j) * std::abs(dy.wanted(i * cols + j));
    for (std::size_t k = i * cols; k < (i + 1) * cols; ++k)
      terms[k] = opt.scale * y.wanted(k) * (std::abs(dy.wanted(k)) + sum);
  }
  p.call({&to}, [&](auto s) {
    tigon::softmax_backward<typename decltype(s)::backend>(dy.at(s), y.at(s), to.at(s), opt, s.ctx);
  });
  p.compare(to, {.bound = of_dx.of<T>(), .of = {&x, &dy}, .terms = terms});
}

template <class P>
void sparsemax(P& p) {
  using T = typename P::element;
  constexpr bounds most{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};
  const std::size_t rows = p.some_rows(), cols = p.some_cols();
  auto &x = p.filled(p.matrix("x", rows, cols)), &dy = p.filled(p.matrix("dy", rows, cols));
  auto &y = p.matrix("y", rows, cols), &dx = p.matrix("dx", rows, cols);
  p.call({&y}, [&](auto s) { tigon::sparsemax_forward<typename decltype(s)::backend>(x.at(s), y.at(s), {}, s.ctx); });
  p.compare(y, {.bound = most.of<T>(), .of = {&x}});
  expect_simplex(p, y, most.of<T>(), x.wild);
  y.hand_over();
  auto& to = p.in_place(dx, {&dy, &y});
  const double terms = p.size_of_terms({&dy});
  p.call({&to}, [&](auto s) {
    tigon::sparsemax_backward<typename decltype(s)::backend>(dy.at(s), y.at(s), to.at(s), {}, s.ctx);
  });
  p.compare(to, {.bound = most.of<T>(), .scale = terms, .of = {&x, &dy}});
}

template <class P>
void sparsemax_along_an_axis(P& p) {
  using T = typename P::element;
  constexpr bounds of_y{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-16};
  constexpr bounds most{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};
  const std::size_t outer = p.some_rows(5), axis = p.in.between(1, p.in.one_in(4) ? 300 : 20), inner = p.some_cols(70);
  const auto make = [&](const char* name) -> auto& { return p.heads(name, 1, outer, axis, inner); };
  auto &x = p.filled(make("x"), 0, 1, false), &dy = p.filled(make("dy"), 0, 1, false), &y = make("y"), &dx = make("dx");
  const auto view = [](auto& of, auto s) {
    const auto h = of.heads(s);
    using E = std::remove_pointer_t<decltype(h.data)>;
    return tigon::axis_view<E>(h.data, h.heads, h.seq_len, h.head_dim, h.head_stride, h.seq_stride);
  };
  p.call({&y}, [&](auto s) {
    using S = decltype(s);
    tigon::sparsemax_forward<typename S::backend, typename S::element>(view(x, s), view(y, s), {}, s.ctx);
  });
  p.compare(y, {.bound = of_y.of<T>()});
  y.hand_over();
  auto& to = p.in_place(dx, {&dy, &y});
  const double terms = p.size_of_terms({&dy});
  p.call({&to}, [&](auto s) {
    using S = decltype(s);
    tigon::sparsemax_backward<typename S::backend, typename S::element>(view(dy, s), view(y, s), view(to, s), {},
                                                                        s.ctx);
  });
  p.compare(to, {.bound = most.of<T>(), .scale = terms});
}

/// Gates: forward(gate, up, y), backward(dy, gate, up, dgate, dup).
/// `tail`: of |up|, the size of which an absolute error stays below the bound where a gate is far below 0.
template <class P, class Forward, class Backward>
void gate_of(P& p, double bound, double tail, Forward forward, Backward backward) {
  const std::size_t rows = p.some_rows(), cols = p.some_cols();
  auto &gate = p.filled(p.matrix("gate", rows, cols)), &up = p.filled(p.matrix("up", rows, cols));
  auto &dy = p.filled(p.matrix("dy", rows, cols)), &y = p.matrix("y", rows, cols);
  auto &dgate = p.matrix("dgate", rows, cols), &dup = p.matrix("dup", rows, cols);
  p.call({&y}, [&](auto s) { forward(s, gate.at(s), up.at(s), y.at(s)); });
  p.compare(y, {.bound = bound, .scale = tail * p.size_of_terms({&up}), .of = {&gate, &up}});
  const double terms = p.size_of_terms({&dy, &up}), of_dy = tail * p.size_of_terms({&dy});
  auto& over = p.in_place(dgate, {&gate, &dy, &up});
  p.call({&over, &dup}, [&](auto s) { backward(s, dy.at(s), gate.at(s), up.at(s), over.at(s), dup.at(s)); });
  p.compare(over, {.bound = bound, .scale = terms, .of = {&gate, &up, &dy}});
  p.compare(dup, {.bound = bound, .scale = of_dy, .of = {&gate, &up, &dy}});
}

tigon::swiglu_options some_swiglu(source& in) {
  tigon::swiglu_options opt;
  if (in.one_in(2)) {
    opt.gate_multiplier = in.pick({1.0, 0.5, 1.5}), opt.down_multiplier = in.pick({1.0, 0.25, -2.0});
    opt.limit = in.pick({std::numeric_limits<double>::infinity(), 7.0, 0.75});
    opt.slope = in.pick({1.0, 1.702}), opt.up_offset = in.pick({0.0, 1.0});
  }
  return opt;
}

constexpr bounds swiglu_bound{.f32 = 6e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};

template <class P>
void swiglu(P& p) {
  const tigon::swiglu_options opt = some_swiglu(p.in);
  gate_of(
      p, swiglu_bound.of<typename P::element>(), 0,
      [&](auto s, auto gate, auto up, auto y) {
        tigon::swiglu_forward<typename decltype(s)::backend>(gate, up, y, opt, s.ctx);
      },
      [&](auto s, auto dy, auto gate, auto up, auto dgate, auto dup) {
        tigon::swiglu_backward<typename decltype(s)::backend>(dy, gate, up, dgate, dup, opt, s.ctx);
      });
}

template <class P>
void swiglu_fused(P& p) {
  const tigon::swiglu_options opt = some_swiglu(p.in);
  const tigon::gate_layout layout = p.in.pick({tigon::gate_layout::halves, tigon::gate_layout::interleaved});
  const double bound = swiglu_bound.of<typename P::element>();
  const std::size_t rows = p.some_rows(), cols = p.some_cols(150);
  auto &both = p.filled(p.matrix("gate_up", rows, 2 * cols)), &dy = p.filled(p.matrix("dy", rows, cols));
  auto &y = p.matrix("y", rows, cols), &dboth = p.matrix("dgate_up", rows, 2 * cols);
  p.call({&y}, [&](auto s) {
    tigon::swiglu_fused_forward<typename decltype(s)::backend>(both.at(s), y.at(s), layout, opt, s.ctx);
  });
  p.compare(y, {.bound = bound, .of = {&both}});
  const double terms = p.size_of_terms({&dy});
  auto& to = p.in_place(dboth, {&both});
  p.call({&to}, [&](auto s) {
    tigon::swiglu_fused_backward<typename decltype(s)::backend>(dy.at(s), both.at(s), to.at(s), layout, opt, s.ctx);
  });
  p.compare(to, {.bound = bound, .scale = terms, .of = {&both, &dy}});
}

template <class P>
void geglu(P& p) {
  constexpr bounds most{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};
  const tigon::geglu_options opt{.form = p.in.pick({tigon::gelu_form::tanh, tigon::gelu_form::erf})};
  gate_of(
      p, most.of<typename P::element>(), 0.05,
      [&](auto s, auto gate, auto up, auto y) {
        tigon::geglu_forward<typename decltype(s)::backend>(gate, up, y, opt, s.ctx);
      },
      [&](auto s, auto dy, auto gate, auto up, auto dgate, auto dup) {
        tigon::geglu_backward<typename decltype(s)::backend>(dy, gate, up, dgate, dup, opt, s.ctx);
      });
}

template <class P>
void relu_squared(P& p) {
  constexpr bounds most{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-15};
  constexpr bounds from_y{.f32 = 2e-7, .bf16 = 6e-3, .f16 = 8e-4, .f64 = 1e-15};
  using T = typename P::element;
  const tigon::relu_squared_options opt{.from_y = p.in.one_in(2)};
  const std::size_t rows = p.some_rows(), cols = p.some_cols();
  auto &x = p.filled(p.matrix("x", rows, cols)), &dy = p.filled(p.matrix("dy", rows, cols));
  auto &y = p.matrix("y", rows, cols), &dx = p.matrix("dx", rows, cols);
  p.call({&y},
         [&](auto s) { tigon::relu_squared_forward<typename decltype(s)::backend>(x.at(s), y.at(s), opt, s.ctx); });
  p.compare(y, {.bound = most.of<T>(), .of = {&x}});
  y.hand_over();
  auto& kept = opt.from_y ? y : x;
  auto& to = p.in_place(dx, {&dy, &kept});
  p.call({&to}, [&](auto s) {
    tigon::relu_squared_backward<typename decltype(s)::backend>(dy.at(s), kept.at(s), to.at(s), opt, s.ctx);
  });
  p.compare(to, {.bound = opt.from_y ? from_y.of<T>() : most.of<T>(), .of = {&x, &dy}});
}

template <class P>
void dyt(P& p) {
  using T = typename P::element;
  // And one rounding; in bf16 the tanh is off by 1.1e-4 of it.
  constexpr bounds forward{.f32 = 1e-6, .bf16 = 1.5e-4, .f16 = 1e-6, .f64 = 2e-15};
  constexpr bounds backward{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
  constexpr bounds of_parameters{.f32 = 7e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
  constexpr bounds of_dalpha{.f32 = 1e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2.5e-15};  // summed in f64
  const std::size_t rows = p.some_rows(), cols = p.some_cols();
  const bool biased = p.in.one_in(2);
  auto &x = p.filled(p.matrix("x", rows, cols)), &dy = p.filled(p.matrix("dy", rows, cols));
  auto &alpha = p.vector("alpha", 1), &gamma = p.filled(p.vector("gamma", cols), 1, 0.5, false);
  alpha.set(0, p.in.pick({0.5, 1.0, 2.0, -0.75, 1e-3, 0.0}));
  auto& beta = p.filled(p.vector("beta", biased ? cols : 0), 0, 1, false);
  auto &y = p.matrix("y", rows, cols), &dx = p.matrix("dx", rows, cols);
  auto &dalpha = p.vector("dalpha", 1), &dgamma = p.vector("dgamma", cols),
       &dbeta = p.vector("dbeta", biased ? cols : 0);
  p.call({&y}, [&](auto s) {
    const auto b = biased ? beta.vec(s) : decltype(beta.vec(s))();
    tigon::dyt_forward<typename decltype(s)::backend>(x.at(s), alpha.vec(s), gamma.vec(s), b, y.at(s), {}, s.ctx);
  });
  // Of gamma t and beta, which may cancel.
  std::vector<double> both(y.size());
  for (std::size_t k = 0; k < both.size(); ++k)
    both[k] = std::abs(gamma.wanted(k % cols) * std::tanh(alpha.wanted(0) * x.wanted(k))) +
              (biased ? std::abs(beta.wanted(k % cols)) : 0);
  p.compare(y, {.bound = forward.of<T>(), .of = {&x}, .terms = both});
  const double terms = std::sqrt(static_cast<double>(rows)) * p.size_of_terms({&dy});
  const double all_terms =
      std::sqrt(static_cast<double>(cols)) * terms * p.size_of_terms({&x}) * p.size_of_terms({&gamma});
  auto& to = p.in_place(dx, {&dy, &x});
  p.call({&to, &dalpha, &dgamma, &dbeta}, [&](auto s) {
    const auto db = biased ? dbeta.vec(s) : decltype(dbeta.vec(s))();
    tigon::dyt_backward<typename decltype(s)::backend>(dy.at(s), x.at(s), alpha.vec(s), gamma.vec(s),
                                                       tigon::dyt_gradients{to.at(s), dalpha.vec(s), dgamma.vec(s), db},
                                                       {}, s.ctx);
  });
  p.compare(to, {.bound = backward.of<T>(), .of = {&x, &dy}});
  p.compare(dalpha, {.bound = of_dalpha.of<T>(), .scale = all_terms});
  p.compare(dgamma, {.bound = of_parameters.of<T>(), .scale = terms});
  if (biased) p.compare(dbeta, {.bound = of_parameters.of<T>(), .scale = terms});
}

constexpr target all[] = {
    TIGON_FUZZ_TARGET(softmax),      TIGON_FUZZ_TARGET(sparsemax),    TIGON_FUZZ_TARGET(sparsemax_along_an_axis),
    TIGON_FUZZ_TARGET(swiglu),       TIGON_FUZZ_TARGET(swiglu_fused), TIGON_FUZZ_TARGET(geglu),
    TIGON_FUZZ_TARGET(relu_squared), TIGON_FUZZ_TARGET(dyt)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }

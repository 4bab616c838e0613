// Fuzzing of the norms and of attn_res.
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/rms_norm.hpp>

#include "problem.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;
using tigon::absent;

// What gradients of parameters are sums of: of so many rows, with terms twice as large as dy.
double sum_of(std::size_t rows, double dy) { return 2 * std::sqrt(static_cast<double>(rows)) * dy; }

/// What an element of dx is a sum of: rstd times w + offset times dy, for the largest rstd.
double gradient_size(const argument& rstd, const argument& w, double offset, const argument& dy) {
  double largest = 0;
  for (std::size_t i = 0; i < rstd.size(); ++i)
    if (std::isfinite(rstd.wanted(i))) largest = std::max(largest, rstd.wanted(i));
  return largest * (any_problem::size_of_terms({&w}) + offset) * any_problem::size_of_terms({&dy});
}

tigon::gradient some_mode(source& in) { return in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate}); }
tigon::rms_norm_options some_rms_norm(source& in) {
  tigon::rms_norm_options opt{.eps = in.pick({1e-6, 1e-5, 1e-3}), .offset = in.pick({0.0, 1.0})};
  opt.casting = in.pick({tigon::casting::llama, tigon::casting::gemma, tigon::casting::none});
  opt.dw = some_mode(in);
  return opt;
}

/// Gradients that are added to begin with numbers.
template <class P, class... G>
void begin(P& p, tigon::gradient mode, G&... of) {
  if (mode == tigon::gradient::accumulate) (p.fill(of, 0, 1, false), ...);
}

/// Bounds of dx and of gradients of parameters, and the sizes of what they are sums of. In f32 and f64 bounds are three
/// times what was measured: contracts state larger ones, of the results alone.
struct gradient_bound {
  bounds of_dx, of_parameters;
  double dx, parameters;
};

/// Rows that are normalised: x and dy, and what comes of them.
template <class P>
struct rows_of_norm {
  using T = typename P::element;
  P& p;
  std::size_t rows, cols;
  twin<T>&x, &dy, &y, &dx;
  twin<typename P::A>& rstd;
  std::vector<twin<T>*> over{&dy, &x};       ///< in whose place dx may be
  std::vector<const argument*> of{&x, &dy};  ///< on whose rows those of dx depend

  rows_of_norm(P& problem, std::size_t r, std::size_t c, std::size_t saved, double mean_of_x = 0)
      : p(problem),
        rows(r),
        cols(c),
        x(p.filled(p.matrix("x", rows, cols), mean_of_x)),
        dy(p.filled(p.matrix("dy", rows, cols))),
        y(p.matrix("y", rows, cols)),
        dx(p.matrix("dx", rows, cols)),
        rstd(p.template vector<typename P::A>("rstd", saved)) {}

  /// call(side, dx) makes dx and the gradients of parameters.
  template <class F>
  void backward(gradient_bound most, std::vector<argument*> parameters, F call) const {
    auto& to = p.in_place(dx, over);
    std::vector<argument*> outputs = parameters;
    outputs.push_back(&to);
    p.call(outputs, [&](auto s) { call(s, to.at(s)); });
    p.compare(to, {.bound = most.of_dx.template of<T>(), .scale = most.dx, .of = of});
    for (const argument* gradient : parameters)
      p.compare(*gradient, {.bound = most.of_parameters.template of<T>(), .scale = most.parameters});
  }
  /// The bound of a norm whose gradients of parameters are sums of so many rows.
  gradient_bound sizes(bounds of_dx, bounds of_parameters, const argument& w, std::size_t of_rows,
                       double offset = 0) const {
    return {of_dx, of_parameters, gradient_size(rstd, w, offset, dy),
            sum_of(of_rows, any_problem::size_of_terms({&dy}))};
  }
};

template <class P>
void rms_norm(P& p) {
  using T = typename P::element;
  constexpr bounds forward{.f32 = 4e-7, .bf16 = 6e-3, .f16 = 8e-4, .f64 = 2e-15};
  constexpr bounds of_rstd{.f32 = 2.5e-7, .bf16 = 2.5e-7, .f16 = 2.5e-7, .f64 = 5e-16};
  constexpr bounds of_dx{.f32 = 1e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 8e-16};
  constexpr bounds of_dw{.f32 = 1e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};
  const std::size_t rows = p.some_rows();
  const rows_of_norm<P> n(p, rows, p.some_cols(), rows);
  const tigon::rms_norm_options opt = some_rms_norm(p.in);
  auto &w = p.filled(p.vector("w", n.cols), 1, 0.5, false), &dw = p.vector("dw", n.cols);
  begin(p, opt.dw, dw);
  p.call({&n.y, &n.rstd}, [&](auto s) {
    tigon::rms_norm_forward<typename decltype(s)::backend>(n.x.at(s), w.vec(s), n.y.at(s), n.rstd.vec(s), opt, s.ctx);
  });
  p.compare(n.y, {.bound = forward.of<T>(), .of = {&n.x}});
  if (!p.is_wild()) p.compare(n.rstd, {.bound = of_rstd.of<T>()});
  n.rstd.hand_over();
  n.backward(n.sizes(of_dx, of_dw, w, rows, opt.offset), {&dw}, [&](auto s, auto dx) {
    tigon::rms_norm_backward<typename decltype(s)::backend>(n.dy.at(s), n.x.at(s), w.vec(s), n.rstd.vec(s), dx,
                                                            dw.vec(s), opt, s.ctx);
  });
}

template <class P>
void fused_add_rms_norm(P& p) {
  using T = typename P::element;
  constexpr bounds forward{.f32 = 4e-7, .bf16 = 6e-3, .f16 = 8e-4, .f64 = 2e-15};
  constexpr bounds of_y{.f32 = 8e-7, .bf16 = 1.2e-2, .f16 = 1.6e-3, .f64 = 7e-16};
  constexpr bounds of_dx{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-15};
  constexpr bounds of_dw{.f32 = 1e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};
  const std::size_t rows = p.some_rows();
  rows_of_norm<P> n(p, rows, p.some_cols(), rows);
  const tigon::fused_add_rms_norm_options opt = some_rms_norm(p.in);
  auto &r = p.filled(p.matrix("r", rows, n.cols)), &ds = p.filled(p.matrix("ds", rows, n.cols));
  auto &w = p.filled(p.vector("w", n.cols), 1, 0.5, false), &dw = p.vector("dw", n.cols);
  auto& sum = p.in_place(p.matrix("s", rows, n.cols), {&n.x, &r});
  n.over = {&n.dy, &ds}, n.of = {&n.x, &r, &n.dy, &ds};
  begin(p, opt.dw, dw);
  p.call({&n.y, &sum, &n.rstd}, [&](auto s) {
    tigon::fused_add_rms_norm_forward<typename decltype(s)::backend>(n.x.at(s), r.at(s), w.vec(s), n.y.at(s), sum.at(s),
                                                                     n.rstd.vec(s), opt, s.ctx);
  });
  p.compare(sum, {.bound = forward.of<T>(), .scale = 1, .of = {&n.x, &r}});
  // The norm is that of the rounded sum: below the rounding of 16 bits nothing is known of y.
  p.compare(n.y, {.bound = of_y.of<T>(), .of = {&n.x, &r}});
  n.rstd.hand_over(), sum.hand_over();
  n.backward(n.sizes(of_dx, of_dw, w, rows, opt.offset), {&dw}, [&](auto s, auto dx) {
    tigon::fused_add_rms_norm_backward<typename decltype(s)::backend>(
        n.dy.at(s), ds.at(s), sum.at(s), w.vec(s), n.rstd.vec(s), tigon::fused_add_rms_norm_gradients{dx, dw.vec(s)},
        opt, s.ctx);
  });
}

template <class P>
void layer_norm(P& p) {
  using T = typename P::element;
  constexpr bounds forward{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};
  constexpr bounds of_dx{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-15};
  constexpr bounds of_parameters{.f32 = 7e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 3e-16};
  const std::size_t rows = p.some_rows();
  const rows_of_norm<P> n(p, rows, p.some_cols(), rows, p.in.pick({0.0, 0.0, 2.0, 30.0}));
  const tigon::layer_norm_options opt{.eps = p.in.pick({1e-6, 1e-5, 1e-3}), .dparams = some_mode(p.in)};
  auto &w = p.filled(p.vector("w", n.cols), 1, 0.5, false), &b = p.filled(p.vector("b", n.cols), 0, 1, false);
  auto &dw = p.vector("dw", n.cols), &db = p.vector("db", n.cols);
  auto& mean = p.template vector<typename P::A>("mean", rows);
  begin(p, opt.dparams, dw, db);
  p.call({&n.y, &mean, &n.rstd}, [&](auto s) {
    tigon::layer_norm_forward<typename decltype(s)::backend>(n.x.at(s), w.vec(s), b.vec(s), n.y.at(s), mean.vec(s),
                                                             n.rstd.vec(s), opt, s.ctx);
  });
  p.compare(n.y, {.bound = forward.of<T>(), .scale = 1, .of = {&n.x}});
  mean.hand_over(), n.rstd.hand_over();
  // In f64 the reference does not make up for the same rounding of the mean.
  n.backward(n.sizes(of_dx, of_parameters, w, rows), {&dw, &db}, [&](auto s, auto dx) {
    tigon::layer_norm_backward<typename decltype(s)::backend>(
        n.dy.at(s), n.x.at(s), w.vec(s), mean.vec(s), n.rstd.vec(s), tigon::norm_gradients{dx, dw.vec(s), db.vec(s)},
        opt, s.ctx);
  });
}

template <class P>
void group_norm(P& p) {
  using T = typename P::element;
  constexpr bounds forward{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1.2e-15};
  constexpr bounds of_dx{.f32 = 6e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-15};
  constexpr bounds of_parameters{.f32 = 5e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-16};
  const std::size_t batch = p.in.below(4), groups = p.in.between(1, 4), channels = groups * p.in.between(1, 3);
  rows_of_norm<P> n(p, batch * channels, p.some_cols(200), batch * groups);
  const tigon::group_norm_options opt{
      .groups = groups, .channels = channels, .eps = p.in.pick({1e-6, 1e-5, 1e-3}), .dparams = some_mode(p.in)};
  auto &w = p.filled(p.vector("w", channels), 1, 0.5, false), &b = p.filled(p.vector("b", channels), 0, 1, false);
  auto &dw = p.vector("dw", channels), &db = p.vector("db", channels);
  auto& mean = p.template vector<typename P::A>("mean", batch * groups);
  n.of = {};  // a group is several rows
  p.gaps_change_bits = true;
  begin(p, opt.dparams, dw, db);
  p.call({&n.y, &mean, &n.rstd}, [&](auto s) {
    tigon::group_norm_forward<typename decltype(s)::backend>(n.x.at(s), w.vec(s), b.vec(s), n.y.at(s), mean.vec(s),
                                                             n.rstd.vec(s), opt, s.ctx);
  });
  p.compare(n.y, {.bound = forward.of<T>(), .scale = 1});
  mean.hand_over(), n.rstd.hand_over();
  n.backward(n.sizes(of_dx, of_parameters, w, batch * n.cols), {&dw, &db}, [&](auto s, auto dx) {
    tigon::group_norm_backward<typename decltype(s)::backend>(
        n.dy.at(s), n.x.at(s), w.vec(s), mean.vec(s), n.rstd.vec(s), tigon::norm_gradients{dx, dw.vec(s), db.vec(s)},
        opt, s.ctx);
  });
}

template <class P>
void modulated_rms_norm(P& p) {
  using T = typename P::element;
  constexpr bounds forward{.f32 = 1e-6, .bf16 = 1e-2, .f16 = 2e-3, .f64 = 8e-16};
  constexpr bounds of_dx{.f32 = 1e-6, .bf16 = 2e-2, .f16 = 3e-3, .f64 = 1.5e-15};
  constexpr bounds of_parameters{.f32 = 1e-6, .bf16 = 2e-2, .f16 = 3e-3, .f64 = 1e-14};
  const std::size_t groups = p.in.below(4), of_group = p.in.between(1, 4), rows = groups * of_group;
  const rows_of_norm<P> n(p, rows, p.some_cols(200), rows);
  tigon::modulated_rms_norm_options opt{.eps = p.in.pick({1e-6, 1e-3}), .offset = p.in.pick({0.0, 1.0})};
  opt.group_rows = of_group, opt.casting = p.in.pick({tigon::casting::llama, tigon::casting::none});
  opt.dw = opt.dscale = some_mode(p.in);
  auto& w = p.filled(p.vector("w", n.cols), 1, 0.5, false);
  auto &scale = p.filled(p.matrix("scale", groups, n.cols), 0, 0.5, false),
       &shift = p.filled(p.matrix("shift", groups, n.cols), 0, 1, false);
  auto &dscale = p.matrix("dscale", groups, n.cols), &dshift = p.matrix("dshift", groups, n.cols);
  auto& dw = p.vector("dw", n.cols);
  begin(p, opt.dw, dw, dscale, dshift);
  p.call({&n.y, &n.rstd}, [&](auto s) {
    tigon::modulated_rms_norm_forward<typename decltype(s)::backend>(n.x.at(s), w.vec(s), scale.at(s), shift.at(s),
                                                                     n.y.at(s), n.rstd.vec(s), opt, s.ctx);
  });
  p.compare(n.y, {.bound = forward.of<T>(), .scale = 1, .of = {&n.x}});
  n.rstd.hand_over();
  n.backward(n.sizes(of_dx, of_parameters, w, of_group, opt.offset), {&dw, &dscale, &dshift}, [&](auto s, auto dx) {
    tigon::modulated_rms_norm_backward<typename decltype(s)::backend>(
        n.dy.at(s), n.x.at(s), w.vec(s), scale.at(s), n.rstd.vec(s),
        tigon::modulated_rms_norm_gradients{dx, dw.vec(s), dscale.at(s), dshift.at(s)}, opt, s.ctx);
  });
}

template <class P>
void poly_norm(P& p) {
  using T = typename P::element;
  constexpr bounds forward{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4.5e-15};
  constexpr bounds of_dx{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
  constexpr bounds of_parameters{.f32 = 1e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 6e-16};
  const std::size_t rows = p.some_rows();
  const rows_of_norm<P> n(p, rows, p.some_cols(), 3 * rows);
  const tigon::poly_norm_options opt{.eps = p.in.pick({1e-6, 1e-3}), .dparams = some_mode(p.in)};
  auto &w = p.filled(p.vector("w", 3), 0.3, 0.2, false), &b = p.filled(p.vector("b", 1), 0, 1, false);
  auto &dw = p.vector("dw", 3), &db = p.vector("db", 1);
  begin(p, opt.dparams, dw, db);
  p.call({&n.y, &n.rstd}, [&](auto s) {
    tigon::poly_norm_forward<typename decltype(s)::backend>(n.x.at(s), w.vec(s), b.vec(s), n.y.at(s), n.rstd.vec(s),
                                                            opt, s.ctx);
  });
  p.compare(n.y, {.bound = forward.of<T>(), .scale = 1, .of = {&n.x}});
  n.rstd.hand_over();
  const double of_dy = p.size_of_terms({&n.dy});
  double size = 0;  // of the terms of dx, which cancel in rows that are constant
  for (std::size_t i = 0; i < n.rstd.size(); ++i) {
    const double of_power = n.rstd.wanted(i) * (i % 3 == 2 ? 1 : i % 3 == 1 ? 8 : 48);
    if (std::isfinite(of_power)) size = std::max(size, of_power * of_dy);
  }
  n.backward({of_dx, of_parameters, size, sum_of(rows * n.cols, of_dy)}, {&dw, &db}, [&](auto s, auto dx) {
    tigon::poly_norm_backward<typename decltype(s)::backend>(
        n.dy.at(s), n.x.at(s), w.vec(s), n.rstd.vec(s), tigon::norm_gradients{dx, dw.vec(s), db.vec(s)}, opt, s.ctx);
  });
}

template <class P>
void attn_res(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds forward{.f32 = 4e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-14};
  constexpr bounds of_dv{.f32 = 1.4e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1.6e-15};
  constexpr bounds of_parameters{.f32 = 7e-7, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 8e-16};
  const std::size_t blocks = p.in.between(1, 6), rows = p.some_rows(6), cols = p.some_cols(200);
  const tigon::attn_res_options opt{.eps = p.in.pick({1e-6, 1e-3}), .dparams = some_mode(p.in)};
  auto &v = p.filled(p.matrix("v", blocks * rows, cols), 0, 1, false),
       &dy = p.filled(p.matrix("dy", rows, cols), 0, 1, false);
  auto &query = p.filled(p.vector("w_query", cols), 0, 0.5, false),
       &norm = p.filled(p.vector("w_norm", cols), 1, 0.3, false);
  auto &y = p.matrix("y", rows, cols), &dv = p.matrix("dv", blocks * rows, cols);
  auto &dquery = p.vector("dw_query", cols), &dnorm = p.vector("dw_norm", cols);
  auto &alpha = p.template vector<A>("alpha", rows * blocks), &rstd = p.template vector<A>("rstd", rows * blocks);
  begin(p, opt.dparams, dquery, dnorm);
  const auto blocks_of = [&](auto m) {
    using E = std::remove_pointer_t<decltype(m.data)>;
    return tigon::blocks_view<E>{nullptr, m.data, blocks, rows, m.cols, m.row_stride, rows * m.row_stride};
  };
  p.call({&y, &alpha, &rstd}, [&](auto s) {
    tigon::attn_res_forward<typename decltype(s)::backend>(blocks_of(v.at(s)), query.vec(s), norm.vec(s), y.at(s),
                                                           alpha.vec(s), rstd.vec(s), opt, s.ctx);
  });
  // The relative error of a weight is the error of its score, a sum in f32 (f64) of parts of the row.
  double score = 0;
  for (std::size_t k = 0; k < v.rows(); ++k) {
    double terms = 0;
    for (std::size_t j = 0; j < cols; ++j) terms += std::abs(v.wanted(k * cols + j) * query.wanted(j) * norm.wanted(j));
    score = std::max(score, terms * rstd.wanted(k % rows * blocks + k / rows));
  }
  const double of_score = (std::same_as<A, float> ? forward.f32 : forward.of<double>()) * std::max(0.0, score / 64 - 1);
  p.compare(y, {.bound = forward.of<T>() + of_score, .scale = p.size_of_terms({&v})});  // blocks may cancel
  alpha.hand_over(), rstd.hand_over();
  double largest_rstd = 0;
  for (std::size_t i = 0; i < rstd.size(); ++i) largest_rstd = std::max(largest_rstd, rstd.wanted(i));
  // A row's da is a sum of dy v; dv has it times rstd and what the query is made of.
  const double of_dy = p.size_of_terms({&dy}), of_da = std::sqrt(static_cast<double>(cols)) * of_dy;
  const double of_query = largest_rstd * p.size_of_terms({&v}) * p.size_of_terms({&query}) * p.size_of_terms({&norm});
  const double of_parameters_terms = sum_of(rows * blocks, p.stretch() * (of_dy + of_da));
  p.call({&dv, &dquery, &dnorm}, [&](auto s) {
    tigon::attn_res_backward<typename decltype(s)::backend>(
        dy.at(s), blocks_of(v.at(s)), query.vec(s), norm.vec(s), {alpha.vec(s), rstd.vec(s)},
        tigon::attn_res_gradients{blocks_of(dv.at(s)), dquery.vec(s), dnorm.vec(s)}, opt, s.ctx);
  });
  p.compare(dv, {.bound = of_dv.of<T>(), .scale = of_dy + of_da * of_query});
  p.compare(dquery, {.bound = of_parameters.of<T>(), .scale = of_parameters_terms});
  p.compare(dnorm, {.bound = of_parameters.of<T>(), .scale = of_parameters_terms});
}

constexpr target all[] = {
    TIGON_FUZZ_TARGET(rms_norm),   TIGON_FUZZ_TARGET(fused_add_rms_norm), TIGON_FUZZ_TARGET(layer_norm),
    TIGON_FUZZ_TARGET(group_norm), TIGON_FUZZ_TARGET(modulated_rms_norm), TIGON_FUZZ_TARGET(poly_norm),
    TIGON_FUZZ_TARGET(attn_res)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }

// Fuzzing of the gated MLP, whole, in tiles of tokens and split into experts, and of the order of the experts' tokens.
#include <tigon/ops/mlp.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/moe_routing.hpp>
#include <tigon/ops/tiled_mlp.hpp>

#include "layers.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;

// Measured as forward and backward of layers.hpp are.
constexpr bounds of_inner_biases{.f32 = 1e-6, .bf16 = 1e-2, .f16 = 4e-3, .f64 = 1e-15};
constexpr bounds of_last_bias{.f32 = 4e-7, .bf16 = 1e-2, .f16 = 1e-3, .f64 = 1e-15};

/// The arguments of mlp and tiled_mlp.
template <class P>
struct some_mlp {
  using T = typename P::element;
  P& p;
  std::size_t rows, hidden, n;
  tigon::mlp_options opt;
  bool biased;
  twin<T>&x, &dy, &wg, &wu, &wd, &bg, &bu, &bd;
  twin<T>&y, &dx, &dwg, &dwu, &dwd, &dbg, &dbu, &dbd;

  explicit some_mlp(P& of)
      : p(of),
        rows(p.some_rows(20)),
        hidden(p.some_cols(40)),
        n(p.some_cols(40)),
        opt{.gate = p.in.pick({tigon::mlp_gate::swiglu, tigon::mlp_gate::geglu}),
            .gate_multiplier = p.in.pick({1.0, 1.0, 0.5}),
            .down_multiplier = p.in.pick({1.0, 1.0, 2.0}),
            .weights = p.in.pick({tigon::transpose::no, tigon::transpose::yes}),
            .dw = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate})},
        biased(p.in.one_in(3)),
        x(p.filled(p.matrix("x", rows, hidden), 0, 1, false)),
        dy(p.filled(p.matrix("dy", rows, hidden), 0, 1, false)),
        wg(weight("wg", n, hidden)),
        wu(weight("wu", n, hidden)),
        wd(weight("wd", hidden, n)),
        bg(p.filled(p.vector("bg", biased ? n : 0), 0, 0.3, false)),
        bu(p.filled(p.vector("bu", biased ? n : 0), 0, 0.3, false)),
        bd(p.filled(p.vector("bd", biased ? hidden : 0), 0, 0.3, false)),
        y(p.matrix("y", rows, hidden)),
        dx(p.matrix("dx", rows, hidden)),
        dwg(gradient("dwg", n, hidden)),
        dwu(gradient("dwu", n, hidden)),
        dwd(gradient("dwd", hidden, n)),
        dbg(p.vector("dbg", biased ? n : 0)),
        dbu(p.vector("dbu", biased ? n : 0)),
        dbd(p.vector("dbd", biased ? hidden : 0)) {
    p.note_options(static_cast<int>(opt.gate), opt.gate_multiplier, opt.down_multiplier, static_cast<int>(opt.weights),
                   static_cast<int>(opt.dw), biased);
    if (opt.dw == tigon::gradient::accumulate)
      for (argument* g : {&dwg, &dwu, &dwd, &dbg, &dbu, &dbd}) p.fill(*g, 0, 1, false);
  }
  twin<T>& gradient(const char* name, std::size_t out, std::size_t in) {
    const bool turned = opt.weights == tigon::transpose::yes;
    return p.matrix(name, turned ? in : out, turned ? out : in);
  }
  twin<T>& weight(const char* name, std::size_t out, std::size_t in) {
    return p.filled(gradient(name, out, in), 0, 1 / (p.stretch() * std::sqrt(static_cast<double>(in))), false);
  }
  template <class S>
  auto weights(S s) {
    tigon::mlp_weights<typename S::element> w{wg.at(s), wu.at(s), wd.at(s)};
    if (biased) w.gate_bias = bg.vec(s), w.up_bias = bu.vec(s), w.down_bias = bd.vec(s);
    return w;
  }
  template <class S>
  auto gradients(S s) {
    tigon::mlp_weights<typename S::element> w{dwg.at(s), dwu.at(s), dwd.at(s)};
    if (biased) w.gate_bias = dbg.vec(s), w.up_bias = dbu.vec(s), w.down_bias = dbd.vec(s);
    return w;
  }
  void compare_forward(const mlp_roots& of) {
    if (!of.fits(y)) return;
    p.compare(y, {.bound = p.stretch() * mlp_forward_bound.of<T>(),
                  .scale = opt.down_multiplier * p.size_of_terms({&x}),
                  .roots = of.y});
  }
  /// Before the calls, which overwrite what gradients are added to, and dx perhaps x or dy.
  mlp_roots roots() const {
    mlp_roots of;
    if (opt.dw == tigon::gradient::accumulate) {
      of.add_terms(of.dgate, dwg), of.add_terms(of.dup, dwu), of.add_terms(of.ddown, dwd);
      of.add_terms(of.dgate_bias, dbg), of.add_terms(of.dup_bias, dbu), of.add_terms(of.ddown_bias, dbd);
    }
    const places at{n, hidden, opt.weights == tigon::transpose::yes};
    const gated_layer<places> layer{hidden,
                                    n,
                                    wg,
                                    wu,
                                    wd,
                                    biased ? &bg : nullptr,
                                    biased ? &bu : nullptr,
                                    at,
                                    opt.gate,
                                    opt.gate_multiplier,
                                    opt.down_multiplier};
    double of_one = 0;
    for (std::size_t i = 0; i < rows; ++i) of.add(layer, x, dy, i, 1, of_one);
    of.take_roots();
    return of;
  }
  struct places {
    std::size_t n, hidden;
    bool turned;
    std::size_t gate(std::size_t l, std::size_t c) const { return turned ? c * n + l : l * hidden + c; }
    std::size_t up(std::size_t l, std::size_t c) const { return gate(l, c); }
    std::size_t down(std::size_t j, std::size_t l) const { return turned ? l * hidden + j : j * n + l; }
  };
  /// Of the terms of gradients; before the call that may put dx into the place of x or dy.
  struct gradient_sizes {
    double of_dy, sum;
  };
  gradient_sizes sizes() const {
    const double of_dy = opt.down_multiplier * p.size_of_terms({&dy});
    return {of_dy, of_dy * std::sqrt(static_cast<double>(rows + 1)) * std::max(1.0, p.size_of_terms({&x}))};
  }
  void compare_backward(argument& to, gradient_sizes sizes, const mlp_roots& of) {
    if (!of.fits(y)) return;
    p.compare(to, {.bound = p.stretch() * mlp_backward_bound.of<T>(), .scale = sizes.of_dy, .roots = of.dx});
    const auto compare = [&](const twin<T>& g, bounds most, const std::vector<double>& roots) {
      p.compare(g, {.bound = p.stretch() * most.of<T>(), .scale = 2 * sizes.sum, .roots = roots});
    };
    compare(dwg, mlp_backward_bound, of.dgate), compare(dwu, mlp_backward_bound, of.dup);
    compare(dwd, mlp_backward_bound, of.ddown);
    compare(dbg, of_inner_biases, of.dgate_bias), compare(dbu, of_inner_biases, of.dup_bias);
    compare(dbd, of_last_bias, of.ddown_bias);
  }
};

template <class P>
void mlp(P& p) {
  some_mlp<P> m(p);
  const mlp_roots of = m.roots();
  auto& saved = p.matrix("saved", m.rows, 3 * m.n);
  const bool again = p.in.one_in(3);
  p.call({&m.y, &saved}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::mlp_saved<E> kept{saved.at(s)};
    tigon::mlp_forward<typename S::backend, E>(m.x.at(s), m.weights(s), m.y.at(s), kept, m.opt, s.ctx);
  });
  m.compare_forward(of);
  auto& to = p.in_place(m.dx, {&m.dy, &m.x});
  const auto sizes = m.sizes();
  p.call({&to, &saved, &m.dwg, &m.dwu, &m.dwd, &m.dbg, &m.dbu, &m.dbd}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::mlp_saved<E> kept{saved.at(s), true};
    if (again)
      tigon::mlp_backward_recompute<typename S::backend, E>(m.dy.at(s), m.x.at(s), m.weights(s), to.at(s),
                                                            m.gradients(s), m.opt, s.ctx);
    else
      tigon::mlp_backward<typename S::backend, E>(m.dy.at(s), m.x.at(s), m.weights(s), kept, to.at(s), m.gradients(s),
                                                  m.opt, s.ctx);
  });
  m.compare_backward(to, sizes, of);
}

template <class P>
void tiled_mlp(P& p) {
  some_mlp<P> m(p);
  const mlp_roots of = m.roots();
  tigon::tiled_mlp_options opt{.mlp = m.opt};
  if (p.in.one_in(2)) opt.shards = p.in.between(1, 8);
  p.call({&m.y}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::tiled_mlp_forward<typename S::backend, E>(m.x.at(s), m.weights(s), m.y.at(s), opt, s.ctx);
  });
  m.compare_forward(of);
  auto& to = p.in_place(m.dx, {&m.dy, &m.x});
  const auto sizes = m.sizes();
  p.call({&to, &m.dwg, &m.dwu, &m.dwd, &m.dbg, &m.dbu, &m.dbd}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::tiled_mlp_backward<typename S::backend, E>(m.dy.at(s), m.x.at(s), m.weights(s), to.at(s), m.gradients(s),
                                                      opt, s.ctx);
  });
  m.compare_backward(to, sizes, of);
}

template <class P>
void moe_routing(P& p) {
  const std::size_t tokens = p.some_rows(60), k = p.in.below(4), experts = p.in.between(1, 9), pairs = tokens * k;
  auto& indices = some_choices(p, tokens, k, experts);
  auto &counts = p.template vector<std::int32_t>("counts", experts),
       &offsets = p.template vector<std::int32_t>("offsets", experts + 1);
  auto &gather = p.template vector<std::int32_t>("gather", pairs),
       &scatter = p.template vector<std::int32_t>("scatter", pairs);
  auto& positions = p.template vector<std::int32_t>("positions", pairs);
  p.call({&counts, &offsets, &gather, &scatter, &positions}, [&](auto s) {
    tigon::moe_routing_forward<typename decltype(s)::backend>(
        indices.at(s), experts,
        tigon::moe_order<std::int32_t>{counts.vec(s), offsets.vec(s), gather.vec(s), scatter.vec(s), positions.vec(s)},
        s.ctx);
  });
  p.expect_equal({&counts, &offsets, &gather, &scatter, &positions});
  if (p.is_faulty()) return;
  for (std::size_t q = 0; q < pairs; ++q) {
    const auto at = static_cast<std::size_t>(positions.got(q));
    if (at >= pairs || scatter.got(at) != static_cast<double>(q) || gather.got(at) != static_cast<double>(q / k))
      p.fail("no permutation");
  }
}

template <class P>
void moe(P& p) {
  some_moe<P> m(p);
  const mlp_roots of = m.roots();
  auto& saved = m.saved;
  p.call({&m.y, &saved}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::moe_saved<E> kept{saved.at(s)};
    tigon::moe_forward<typename S::backend, E>(m.x.at(s), m.choices(s), m.weights(s), m.y.at(s), kept, m.opt, s.ctx);
  });
  m.compare_forward(of);
  p.call({&m.dx, &m.dgate_up, &m.ddown, &m.drouting}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    const tigon::moe_saved<E> kept{saved.at(s), true};
    if (m.again)
      tigon::moe_backward_recompute<typename S::backend, E>(m.dy.at(s), m.x.at(s), m.choices(s), m.weights(s),
                                                            m.gradients(s), m.opt, s.ctx);
    else
      tigon::moe_backward<typename S::backend, E>(m.dy.at(s), m.x.at(s), m.choices(s), m.weights(s), kept,
                                                  m.gradients(s), m.opt, s.ctx);
  });
  m.compare_backward(of);
}

constexpr target all[] = {TIGON_FUZZ_TARGET(mlp), TIGON_FUZZ_TARGET(tiled_mlp), TIGON_FUZZ_TARGET(moe_routing),
                          TIGON_FUZZ_TARGET(moe)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }

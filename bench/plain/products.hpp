// What consists of products in elementary steps: the gated MLP and the mixture of experts. Everything between two steps
// is kept whole, in the element type.
#ifndef TIGON_BENCH_PLAIN_PRODUCTS_HPP
#define TIGON_BENCH_PLAIN_PRODUCTS_HPP

#include <tigon/gemm/gemm.hpp>

#include "plain/embedding.hpp"
#include "plain/gates.hpp"
#include "support/matrix.hpp"

#include <cstdint>
#include <vector>

namespace tigon_bench::passes {

/// c = a b^T, and its gradients: da = dc b, db = dc^T a.
template <class T>
void product_nt(tigon::context& ctx, in<T> a, in<T> b, out<T> c) {
  tigon::gemm<lanes>(a, b, c, {.b = tigon::transpose::yes}, ctx);
}
template <class T>
void product_nn(tigon::context& ctx, in<T> dc, in<T> b, out<T> da, double beta = 0) {
  tigon::gemm<lanes>(dc, b, da, {.beta = beta}, ctx);
}
template <class T>
void product_tn(tigon::context& ctx, in<T> dc, in<T> a, out<T> db) {
  tigon::gemm<lanes>(dc, a, db, {.a = tigon::transpose::yes}, ctx);
}

/// silu and its slope; with_gelu the tanh form of gelu.
template <class T>
void activate(tigon::context& ctx, bool with_gelu, in<T> a, in<T> b, out<T> c) {
  using gelu = tigon::detail::gelu<tigon::gelu_form::tanh, bits<T>>;
  if (with_gelu)
    gate_forward<T>(ctx, a, b, c, [](auto v) { return gelu::of(v); });
  else
    gate_forward<T>(ctx, a, b, c, [](auto v) { return tigon::detail::silu<bits<T>>(v); });
}
template <class T>
void activate_backward(tigon::context& ctx, bool with_gelu, in<T> dc, in<T> a, in<T> b, out<T> da, out<T> db) {
  using gelu = tigon::detail::gelu<tigon::gelu_form::tanh, bits<T>>;
  if (with_gelu)
    gate_backward<T>(
        ctx, dc, a, b, da, db, [](auto v) { return gelu::of(v); }, [](auto v) { return gelu::with_slope(v)[1]; });
  else
    gate_backward<T>(
        ctx, dc, a, b, da, db, [](auto v) { return tigon::detail::silu<bits<T>>(v); },
        [](auto v) { return tigon::detail::silu_and_slope<bits<T>>(v)[1]; });
}

/// The matrices of a gated MLP, or their gradients.
template <class T>
struct mlp_matrices {
  tigon::matrix_view<T> gate, up, down;
};

template <class T>
class mlp_steps {
 public:
  mlp_steps(std::size_t tokens, std::size_t intermediate, bool with_gelu, bool with_backward)
      : g_(tokens, intermediate), u_(tokens, intermediate), a_(tokens, intermediate), gelu_(with_gelu) {
    if (with_backward) dg_ = matrix<T>(tokens, intermediate), du_ = matrix<T>(tokens, intermediate);
    if (with_backward) da_ = matrix<T>(tokens, intermediate);
  }
  std::size_t bytes() const { return g_.bytes() + u_.bytes() + a_.bytes() + dg_.bytes() + du_.bytes() + da_.bytes(); }

  void forward(tigon::context& ctx, in<T> x, mlp_matrices<T> w, out<T> y) const {
    product_nt<T>(ctx, x, w.gate, g_.view());
    product_nt<T>(ctx, x, w.up, u_.view());
    activate<T>(ctx, gelu_, g_.view(), u_.view(), a_.view());
    product_nt<T>(ctx, a_.view(), w.down, y);
  }
  /// After forward.
  void backward(tigon::context& ctx, in<T> dy, in<T> x, mlp_matrices<T> w, out<T> dx, mlp_matrices<T> dw) const {
    product_nn<T>(ctx, dy, w.down, da_.view());
    product_tn<T>(ctx, dy, a_.view(), dw.down);
    activate_backward<T>(ctx, gelu_, da_.view(), g_.view(), u_.view(), dg_.view(), du_.view());
    product_tn<T>(ctx, dg_.view(), x, dw.gate);
    product_tn<T>(ctx, du_.view(), x, dw.up);
    product_nn<T>(ctx, dg_.view(), w.gate, dx);
    product_nn<T>(ctx, du_.view(), w.up, dx, 1);
  }

 private:
  matrix<T> g_, u_, a_, dg_, du_, da_;
  bool gelu_;
};

struct moe_sizes {
  std::size_t tokens, experts, choices, hidden, intermediate;
};

/// Experts one after the other: rows of their tokens are copied together, and results are added to those of the tokens.
template <class T>
class moe_steps {
 public:
  using A = tigon::accumulator_t<T>;

  moe_steps(moe_sizes of, bool with_backward)
      : experts_(of.experts),
        hidden_(of.hidden),
        inner_(of.intermediate),
        pairs_(of.tokens * of.choices),
        order_(pairs_) {
    x_ = matrix<T>(pairs_, hidden_), h_ = matrix<T>(pairs_, hidden_);
    gu_ = matrix<T>(pairs_, 2 * inner_), a_ = matrix<T>(pairs_, inner_);
    if (!with_backward) return;
    dh_ = matrix<T>(pairs_, hidden_), dx_ = matrix<T>(pairs_, hidden_);
    dgu_ = matrix<T>(pairs_, 2 * inner_), da_ = matrix<T>(pairs_, inner_);
  }
  std::size_t bytes() const {
    return x_.bytes() + gu_.bytes() + a_.bytes() + h_.bytes() + dh_.bytes() + da_.bytes() + dgu_.bytes() + dx_.bytes();
  }

  struct choices {
    in<std::int32_t> indices;
    in<T> weights;
  };
  struct matrices {
    in<T> gate_up, down;
    in<T> up_of(std::size_t e, std::size_t inner) const { return gate_up.rows_from(e * 2 * inner, 2 * inner); }
    in<T> down_of(std::size_t e, std::size_t hidden) const { return down.rows_from(e * hidden, hidden); }
  };

  void forward(tigon::context& ctx, in<T> x, choices of, matrices w, out<T> y) {
    const std::size_t k = of.indices.cols;
    each(ctx, y, same, tigon::constant(A(0)));
    route(of.indices);
    for_experts([&](std::size_t e, std::size_t first, std::size_t count) {
      const auto own = [=](const matrix<T>& m) { return m.view().rows_from(first, count); };
      take_rows<T>(ctx, x, own(x_), token(first, k));
      product_nt<T>(ctx, own(x_), w.up_of(e, inner_), own(gu_));
      activate<T>(ctx, false, own(gu_).cols_from(0, inner_), own(gu_).cols_from(inner_, inner_), own(a_));
      product_nt<T>(ctx, own(a_), w.down_of(e, hidden_), own(h_));
    });
    weigh(ctx, of.weights, h_.view(), x_.view());  // rows of x are copied again in backward
    for_experts([&](std::size_t, std::size_t first, std::size_t count) {
      add_rows<T, T>(ctx, x_.view().rows_from(first, count), y, token(first, k));
    });
  }
  /// After forward. dgate_up and ddown are those of all experts.
  struct gradients {
    out<T> dx, dgate_up, ddown, dweights;
  };
  void backward(tigon::context& ctx, in<T> dy, in<T> x, choices of, matrices w, gradients to) {
    const std::size_t k = of.indices.cols;
    each(ctx, to.dx, same, tigon::constant(A(0)));
    take_rows<T>(ctx, x, x_.view(), token(0, k));
    take_rows<T>(ctx, dy, dh_.view(), token(0, k));
    weight_gradient(ctx, to.dweights);
    weigh(ctx, of.weights, dh_.view(), dh_.view());
    for_experts([&](std::size_t e, std::size_t first, std::size_t count) {
      const auto own = [=](const matrix<T>& m) { return m.view().rows_from(first, count); };
      product_nn<T>(ctx, own(dh_), w.down_of(e, hidden_), own(da_));
      product_tn<T>(ctx, own(dh_), own(a_), to.ddown.rows_from(e * hidden_, hidden_));
      activate_backward<T>(ctx, false, own(da_), own(gu_).cols_from(0, inner_), own(gu_).cols_from(inner_, inner_),
                           own(dgu_).cols_from(0, inner_), own(dgu_).cols_from(inner_, inner_));
      product_tn<T>(ctx, own(dgu_), own(x_), to.dgate_up.rows_from(e * 2 * inner_, 2 * inner_));
      product_nn<T>(ctx, own(dgu_), w.up_of(e, inner_), own(dx_));
      add_rows<T, T>(ctx, own(dx_), to.dx, token(first, k));
    });
  }

 private:
  /// Pairs of a token and a choice, in the order of the experts.
  void route(in<std::int32_t> indices) {
    begin_.assign(experts_ + 1, 0);
    for (std::size_t p = 0; p < pairs_; ++p) ++begin_[expert(indices, p) + 1];
    for (std::size_t e = 0; e < experts_; ++e) begin_[e + 1] += begin_[e];
    std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t p = 0; p < pairs_; ++p) order_[next[expert(indices, p)]++] = p;
  }
  static std::size_t expert(in<std::int32_t> indices, std::size_t pair) {
    return static_cast<std::size_t>(indices.row(pair / indices.cols)[pair % indices.cols]);
  }
  /// Of row i after `first` the token.
  auto token(std::size_t first, std::size_t k) const {
    return [=, order = order_.data()](std::size_t i) { return order[first + i] / k; };
  }
  template <class F>
  void for_experts(F f) const {
    for (std::size_t e = 0; e < experts_; ++e)
      if (begin_[e + 1] != begin_[e] || !dh_.values.span().empty()) f(e, begin_[e], begin_[e + 1] - begin_[e]);
  }
  void weigh(tigon::context& ctx, in<T> weights, in<T> from, out<T> to) const {
    temporaries<A> own(ctx, 0, pairs_, 1);
    A* const s = own.numbers();
    for (std::size_t p = 0; p < pairs_; ++p) s[p] = static_cast<A>(weights.data[order_[p]]);
    each_with(ctx, to, static_cast<const A*>(s), scaled, from);
  }
  void weight_gradient(tigon::context& ctx, out<T> dweights) const {
    temporaries<A> own(ctx, 1, pairs_, hidden_);
    A* const s = own.numbers();
    each_and_sum(ctx, own.matrix(), s, product, in<T>(dh_.view()), in<T>(h_.view()));
    for (std::size_t p = 0; p < pairs_; ++p) dweights.data[order_[p]] = static_cast<T>(s[p]);
  }

  std::size_t experts_, hidden_, inner_, pairs_;
  std::vector<std::size_t> order_, begin_;
  matrix<T> x_, gu_, a_, h_, dh_, da_, dgu_, dx_;
};

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_PRODUCTS_HPP

#include <tigon/ops/multi_token_attention.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <algorithm>
#include <cmath>

namespace tigon_bench {
namespace {

struct mixing {
  std::size_t batch, len, inputs, outputs, taps;
  bool sparse;

  std::size_t padding() const { return taps / 2; }
  std::size_t planes_in() const { return batch * inputs; }
  std::size_t planes_out() const { return batch * outputs; }
  tigon::multi_token_attention_options options() const { return {.padding = padding(), .sparse = sparse}; }
};

/// The same as a framework without fusion runs it, each step a pass of its own: mask, softmax, a convolution with a
/// loop for each of its axes, mask; and back.
template <class B, class T>
class plain_mixing {
 public:
  using A = tigon::accumulator_t<T>;
  using planes = tigon::heads_view<T>;

  explicit plain_mixing(mixing of)
      : s_(of),
        z_(s_.planes_in() * s_.len, s_.len),
        p_(z_.rows, s_.len),
        mixed_(s_.planes_out() * s_.len, s_.len),
        dp_(z_.rows, s_.len) {}

  void forward(planes scores, planes w, std::span<const T> b, planes y, tigon::context& ctx) const {
    const std::size_t n = s_.len;
    const planes z = in(z_), p = in(p_), mixed = out(mixed_);
    for_planes(z, [&](std::size_t k, std::size_t c, std::size_t i) {
      for (std::size_t j = 0; j < n; ++j)
        z.at(k, c, i)[j] = j <= i ? scores.at(k, c, i)[j] : static_cast<T>(static_cast<A>(-1e4));
    });
    if (s_.sparse)
      tigon::sparsemax_forward<B, T>(z_.view(), p_.view(), {}, ctx);
    else
      tigon::softmax_forward<B, T>(z_.view(), p_.view(), {}, ctx);
    for_planes(mixed, [&](std::size_t k, std::size_t o, std::size_t i) {
      for (std::size_t j = 0; j < n; ++j) {
        A sum = static_cast<A>(b[o]);
        for_taps(i, j, [&](std::size_t c, std::size_t u, std::size_t v, std::size_t row, std::size_t column) {
          sum += static_cast<A>(w.at(o, c, u)[v]) * static_cast<A>(p.at(k, c, row)[column]);
        });
        mixed.at(k, o, i)[j] = static_cast<T>(sum);
      }
    });
    for_planes(y, [&](std::size_t k, std::size_t o, std::size_t i) {
      for (std::size_t j = 0; j < n; ++j) y.at(k, o, i)[j] = j <= i ? mixed.at(k, o, i)[j] : T();
    });
  }
  /// After forward.
  void backward(planes dy, planes w, tigon::multi_token_attention_gradients<T> to, tigon::context& ctx) const {
    const std::size_t n = s_.len;
    const planes p = in(p_), e = out(mixed_), dp = in(dp_);
    for_planes(e, [&](std::size_t k, std::size_t o, std::size_t i) {
      for (std::size_t j = 0; j < n; ++j) e.at(k, o, i)[j] = j <= i ? dy.at(k, o, i)[j] : T();
    });
    for_planes(dp, [&](std::size_t k, std::size_t c, std::size_t i) {
      for (std::size_t j = 0; j < n; ++j) {
        A sum(0);
        for (std::size_t o = 0; o < s_.outputs; ++o)
          for_taps_of_plane(i, j, [&](std::size_t u, std::size_t v, std::size_t row, std::size_t column) {
            sum +=
                static_cast<A>(w.at(o, c, s_.taps - 1 - u)[s_.taps - 1 - v]) * static_cast<A>(e.at(k, o, row)[column]);
          });
        dp.at(k, c, i)[j] = static_cast<T>(sum);
      }
    });
    for (std::size_t o = 0; o < s_.outputs; ++o) {
      A sum(0);
      for (std::size_t k = 0; k < s_.batch; ++k)
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t j = 0; j < n; ++j) sum += static_cast<A>(e.at(k, o, i)[j]);
      to.db[o] = static_cast<T>(sum);
      for (std::size_t c = 0; c < s_.inputs; ++c)
        for (std::size_t u = 0; u < s_.taps; ++u)
          for (std::size_t v = 0; v < s_.taps; ++v) to.dw.at(o, c, u)[v] = weight_gradient(p, e, o, c, u, v);
    }
    if (s_.sparse)
      tigon::sparsemax_backward<B, T>(dp_.view(), p_.view(), z_.view(), {}, ctx);
    else
      tigon::softmax_backward<B, T>(dp_.view(), p_.view(), z_.view(), {}, ctx);
    for_planes(to.dscores, [&](std::size_t k, std::size_t c, std::size_t i) {
      for (std::size_t j = 0; j < n; ++j) to.dscores.at(k, c, i)[j] = j <= i ? in(z_).at(k, c, i)[j] : T();
    });
  }
  std::size_t bytes() const {
    return z_.values.bytes() + p_.values.bytes() + mixed_.values.bytes() + dp_.values.bytes();
  }

 private:
  planes in(const matrix<T>& m) const { return planes::of_heads(m.view().data, s_.batch, s_.inputs, s_.len, s_.len); }
  planes out(const matrix<T>& m) const { return planes::of_heads(m.view().data, s_.batch, s_.outputs, s_.len, s_.len); }
  template <class F>
  static void for_planes(planes of, F f) {
    for (std::size_t k = 0; k < of.batch; ++k)
      for (std::size_t c = 0; c < of.heads; ++c)
        for (std::size_t i = 0; i < of.seq_len; ++i) f(k, c, i);
  }
  template <class F>
  void for_taps_of_plane(std::size_t i, std::size_t j, F f) const {
    for (std::size_t u = 0; u < s_.taps; ++u)
      for (std::size_t v = 0; v < s_.taps; ++v) {
        const std::size_t row = i + u - s_.padding(), column = j + v - s_.padding();  // wraps where there is none
        if (row < s_.len && column < s_.len) f(u, v, row, column);
      }
  }
  template <class F>
  void for_taps(std::size_t i, std::size_t j, F f) const {
    for (std::size_t c = 0; c < s_.inputs; ++c)
      for_taps_of_plane(
          i, j, [&](std::size_t u, std::size_t v, std::size_t row, std::size_t column) { f(c, u, v, row, column); });
  }
  T weight_gradient(planes p, planes e, std::size_t o, std::size_t c, std::size_t u, std::size_t v) const {
    A sum(0);
    for (std::size_t k = 0; k < s_.batch; ++k)
      for (std::size_t i = 0; i < s_.len; ++i) {
        const std::size_t row = i + u - s_.padding();
        if (row >= s_.len) continue;
        for (std::size_t j = 0; j < s_.len; ++j) {
          const std::size_t column = j + v - s_.padding();
          if (column < s_.len) sum += static_cast<A>(e.at(k, o, i)[j]) * static_cast<A>(p.at(k, c, row)[column]);
        }
      }
    return static_cast<T>(sum);
  }

  mixing s_;
  matrix<T> z_, p_, mixed_, dp_;
};

template <class B, class T>
plan multi_token_attention_plan(const request& r) {
  const bool plain = r.variant.starts_with("plain"), sparse = r.variant.ends_with("sparse");
  const mixing s{r.shape[0], r.shape[1], r.shape[2], r.shape[3], r.shape[4], sparse};
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  if (plain && r.threads != 1) throw unsupported("loops on one thread only");
  plan p;
  // Multiplications and additions of the convolution up to the diagonal; backward has two such.
  const double flops =
      static_cast<double>(s.planes_out() * s.inputs * s.taps * s.taps) * static_cast<double>(s.len * (s.len + 1));
  const limit_bound bound = std::same_as<T, double> ? limit_bound::fma_f64 : limit_bound::fma_f32;
  p.limits.push_back(limit_request::peak(bound, flops * ((forward ? 1 : 0) + (backward ? 2 : 0))));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const std::size_t in = s.planes_in() * s.len * s.len, out = s.planes_out() * s.len * s.len,
                      weights = s.outputs * s.inputs * s.taps * s.taps;
    const auto scores = uniform<T>(in, -2, 2, 1), w = uniform<T>(weights, -1, 1, 2),
               b = uniform<T>(s.outputs, -1, 1, 3), dy = uniform<T>(out, -1, 1, 4);
    const buffer<T> y(out), probs(plain ? 0 : in), dscores(backward ? in : 0), dw(weights), db(s.outputs);
    using planes = tigon::heads_view<T>;
    const auto plane_in = [=](const buffer<T>& m) {
      return planes::of_heads(m.data(), s.batch, s.inputs, s.len, s.len);
    };
    const auto plane_out = [=](const buffer<T>& m) {
      return planes::of_heads(m.data(), s.batch, s.outputs, s.len, s.len);
    };
    const auto taps = [=](const buffer<T>& m) {
      return planes::of_heads(m.data(), s.outputs, s.inputs, s.taps, s.taps);
    };
    const tigon::multi_token_attention_gradients<T> to{plane_in(dscores), taps(dw), db.span()};
    const std::size_t gradient_bytes = backward ? dscores.bytes() + dw.bytes() + db.bytes() : 0;
    if (plain) {
      const plain_mixing<B, T> all(s);
      const auto run_forward = [=, &ctx] { all.forward(plane_in(scores), taps(w), b.span(), plane_out(y), ctx); };
      if (!forward) run_forward();
      return {.run =
                  [=, &ctx] {
                    if (forward) run_forward();
                    if (backward) all.backward(plane_out(dy), taps(w), to, ctx);
                  },
              .restore = {},
              .output_bytes = all.bytes() + y.bytes() + gradient_bytes};
    }
    const auto run_forward = [=, &ctx] {
      tigon::multi_token_attention_forward<B, T>(plane_in(scores), taps(w), b.span(), plane_out(y), plane_in(probs),
                                                 s.options(), ctx);
    };
    if (!forward) run_forward();  // leaves probs
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if (backward)
                    tigon::multi_token_attention_backward<B, T>(plane_out(dy), taps(w), plane_in(probs), to,
                                                                s.options(), ctx);
                },
            .restore = {},
            .output_bytes = (forward ? y.bytes() + probs.bytes() : 0) + gradient_bytes};
  };
  return p;
}

}  // namespace

op_entry multi_token_attention() {
  const std::vector<std::size_t> shape{1, 1024, 4, 4, 3};
  return {.name = "multi_token_attention",
          .dims = "batch x seq_len x heads_in x heads_out x taps",
          .dtypes = all_dtypes(),
          .variants = {{"default", shape, {mode::forward, mode::backward, mode::full}},
                       {"sparse", shape, {mode::forward, mode::backward, mode::full}},
                       {"plain", shape, {mode::forward, mode::full}},
                       {"plain_sparse", shape, {mode::forward, mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return multi_token_attention_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench

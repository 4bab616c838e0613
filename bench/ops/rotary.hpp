// What the rotary operators share: q and k are turned, apart or in place. A Rotary has `rows(batch, seq_len)` and
// `cols(head_dim)` of its tables and forward<B>(q, k, cos, sin, q_out, k_out, ctx) and backward<B>, which call the
// doors; where B is `plain`, turn(x, cos, sin, y, sign, ctx) does, of q and of k.
#ifndef TIGON_BENCH_OPS_ROTARY_HPP
#define TIGON_BENCH_OPS_ROTARY_HPP

#include "plain/provider.hpp"
#include "plain/rotary.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"
#include "support/registry.hpp"

#include <cmath>
#include <string>

namespace tigon_bench {

template <class Rotary, class B, class T>
plan rotary_plan(const request& r) {
  const std::size_t batch = r.shape[0], seq_len = r.shape[1], heads = r.shape[2], kv_heads = r.shape[3],
                    head_dim = r.shape[4];
  const std::size_t q_size = batch * seq_len * heads * head_dim, k_size = batch * seq_len * kv_heads * head_dim;
  const bool in_place = r.variant == "in_place";
  // q and k are one stream of their common size.
  const auto one = limit_request::stream(1, 1, (q_size + k_size) * sizeof(T), in_place);
  plan p;
  p.limits.push_back(one);
  if (r.direction == mode::full) p.limits.push_back(one);
  p.set_up = [=, direction = r.direction](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto q = uniform<T>(q_size, -2, 2, 1), k = uniform<T>(k_size, -2, 2, 2);
    const auto q_out = in_place ? q : buffer<T>(q_size), k_out = in_place ? k : buffer<T>(k_size);
    const matrix<A> cos(Rotary::rows(batch, seq_len), Rotary::cols(head_dim)), sin(cos.rows, cos.cols);
    Rotary::fill(cos.view(), sin.view(), head_dim);
    // The layout that a projection leaves: the heads of a token lie together. A rotation keeps lengths, so in place
    // nothing has to be restored.
    const auto tokens = [=](const buffer<T>& b, std::size_t h) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, h, head_dim);
    };
    return {.run =
                [=, &ctx] {
                  if constexpr (std::same_as<B, plain>) {
                    for (const mode way : {mode::forward, mode::backward}) {
                      if (direction != way && direction != mode::full) continue;
                      const A sign(way == mode::forward ? 1 : -1);
                      Rotary::turn(tokens(q, heads), cos.view(), sin.view(), tokens(q_out, heads), sign, ctx);
                      Rotary::turn(tokens(k, kv_heads), cos.view(), sin.view(), tokens(k_out, kv_heads), sign, ctx);
                    }
                  } else {
                    if (direction != mode::backward)
                      Rotary::template forward<B>(tokens(q, heads), tokens(k, kv_heads), cos.view(), sin.view(),
                                                  tokens(q_out, heads), tokens(k_out, kv_heads), ctx);
                    if (direction != mode::forward)
                      Rotary::template backward<B>(tokens(q, heads), tokens(k, kv_heads), cos.view(), sin.view(),
                                                   tokens(q_out, heads), tokens(k_out, kv_heads), ctx);
                  }
                },
            .restore = {},
            .output_bytes = in_place ? 0 : q_out.bytes() + k_out.bytes()};
  };
  return p;
}

/// The angle of position s and pair j.
inline double rotary_angle(std::size_t s, std::size_t j, std::size_t head_dim) {
  return static_cast<double>(s) * std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
}

/// Halves paired: a table of cosines and one of sines.
struct rotary_halves {
  static std::size_t cols(std::size_t head_dim) { return head_dim / 2; }
  template <class A>
  static void fill(tigon::matrix_view<A> cos, tigon::matrix_view<A> sin, std::size_t head_dim) {
    for (std::size_t s = 0; s < cos.rows; ++s)
      for (std::size_t j = 0; j < cos.cols; ++j) {
        const double angle = rotary_angle(s, j, head_dim);
        cos.row(s)[j] = static_cast<A>(std::cos(angle)), sin.row(s)[j] = static_cast<A>(std::sin(angle));
      }
  }
};

template <class Rotary>
op_entry rotary_entry(const std::string& name, extents usual) {
  const std::vector<mode> modes{mode::forward, mode::backward, mode::full};
  return with_plain({.name = name,
                     .dims = "batch x seq_len x heads x kv_heads x head_dim",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", usual, modes}, {"in_place", usual, modes}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return rotary_plan<Rotary, B, T>(r); });
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_ROTARY_HPP

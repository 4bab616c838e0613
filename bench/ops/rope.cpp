#include <tigon/ops/rope.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cmath>

namespace tigon_bench {
namespace {

template <class B, class T>
plan rope_plan(const request& r) {
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
    const matrix<A> cos(seq_len, head_dim / 2), sin(seq_len, head_dim / 2);
    for (std::size_t s = 0; s < seq_len; ++s)
      for (std::size_t j = 0; j < head_dim / 2; ++j) {
        const double angle =
            static_cast<double>(s) * std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
        cos.view().row(s)[j] = static_cast<A>(std::cos(angle));
        sin.view().row(s)[j] = static_cast<A>(std::sin(angle));
      }
    // The layout that a projection leaves: the heads of a token lie together. A rotation keeps lengths, so in place
    // nothing has to be restored.
    const auto tokens = [=](const buffer<T>& b, std::size_t h) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, h, head_dim);
    };
    return {.run =
                [=, &ctx] {
                  if (direction != mode::backward)
                    tigon::rope_forward<B, T>(tokens(q, heads), tokens(k, kv_heads), cos.view(), sin.view(),
                                              tokens(q_out, heads), tokens(k_out, kv_heads), {}, ctx);
                  if (direction != mode::forward)
                    tigon::rope_backward<B, T>(tokens(q, heads), tokens(k, kv_heads), cos.view(), sin.view(),
                                               tokens(q_out, heads), tokens(k_out, kv_heads), {}, ctx);
                },
            .restore = {},
            .output_bytes = in_place ? 0 : q_out.bytes() + k_out.bytes()};
  };
  return p;
}

}  // namespace

op_entry rope() {
  const std::vector<mode> modes{mode::forward, mode::backward, mode::full};
  return {.name = "rope",
          .dims = "batch x seq_len x heads x kv_heads x head_dim",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1, 2048, 32, 32, 128}, modes}, {"in_place", {1, 2048, 32, 32, 128}, modes}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return rope_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench

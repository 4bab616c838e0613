// Preference losses: what their benchmarks share.
#ifndef TIGON_BENCH_OPS_PREFERENCE_HPP
#define TIGON_BENCH_OPS_PREFERENCE_HPP

#include <tigon/losses/parts/sequence.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"
#include "support/unsupported.hpp"

#include <cstdint>
#include <string>

namespace tigon_bench {

/// Everything that a loss on sequences is called with.
template <class T>
struct preference_case {
  using A = tigon::accumulator_t<T>;
  matrix<T> x, w, dx, dw, ref_x, ref_w;
  buffer<T> bias, dbias;
  buffer<std::int32_t> labels;
  buffer<A> loss;
  std::size_t sequences;

  tigon::matrix_view<const std::int32_t> target() const { return {labels.data(), sequences, x.rows / sequences}; }
  tigon::linear_layer<T> layer() const { return {x.view(), w.view(), bias.span()}; }
  tigon::linear_gradients<T> gradients() const { return {dx.view(), dw.view(), dbias.span()}; }
  tigon::reference_model<T> reference() const {
    if (ref_w.rows == 0) return {};
    return {.layer = {ref_x.view(), ref_w.view(), bias.span()}};
  }
};

/// Loss and all gradients in one call, of sequences as long as `length` tokens or as a few tokens allow. The limit is
/// that of the products of tokens, hidden and vocab: three, one for a reference, and the part of one that makes logits
/// again, because those of a group of sequences did not fit into a chunk.
template <class B, class T, class Call>
plan preference_plan(const request& r, std::size_t length, std::size_t ends, bool reference, Call call) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  while (length > 1 && tokens % (ends * length) != 0) length /= 2;
  if (tokens % ends != 0) throw unsupported("pairs need an even number of tokens");
  const std::size_t chunk =
      tigon::detail::chunk_rows<B, tigon::accumulator_t<T>>(tokens, hidden, vocab, tigon::default_context());
  const std::size_t chunks = (ends * length + chunk - 1) / chunk;
  const double products = (reference ? 5.0 : 4.0) - 1 / static_cast<double>(chunks);
  const double flops =
      products * 2 * static_cast<double>(tokens) * static_cast<double>(hidden) * static_cast<double>(vocab);
  plan p;
  p.limits.push_back(product_peak<T>(flops));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const std::size_t other = reference ? hidden : 0;
    const preference_case<T> c{uniform_matrix<T>(tokens, hidden, -1, 1, 1),
                               uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2),
                               matrix<T>(tokens, hidden),
                               matrix<T>(vocab, hidden),
                               uniform_matrix<T>(reference ? tokens : 0, other, -1, 1, 3),
                               uniform_matrix<T>(reference ? vocab : 0, other, -0.05, 0.05, 4),
                               uniform<T>(vocab, -0.1, 0.1, 5),
                               buffer<T>(vocab),
                               uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 6),
                               buffer<A>(1),
                               tokens / length};
    return {.run = [=, &ctx] { call(c, ctx); }, .restore = {}, .output_bytes = 0};  // memory: beside the gradients
  };
  return p;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_PREFERENCE_HPP

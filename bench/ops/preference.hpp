// Preference losses: what their benchmarks share.
#ifndef TIGON_BENCH_OPS_PREFERENCE_HPP
#define TIGON_BENCH_OPS_PREFERENCE_HPP

#include <tigon/losses/sequence/sequence_kernel.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "plain/linear_losses.hpp"
#include "plain/sequences.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"
#include "support/unsupported.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  tigon::linear_gradients<T> gradients() const {
    if (dx.rows == 0) return {};
    return {dx.view(), dw.view(), dbias.span()};
  }
  tigon::reference_model<T> reference() const {
    if (ref_w.rows == 0) return {};
    return {.layer = {ref_x.view(), ref_w.view(), bias.span()}};
  }

  std::shared_ptr<passes::logit_steps<T>> steps;
  buffer<A> logp, ref_logp;
  /// The same in elementary steps, by a function as passes::of_pairs and of_sequences make them.
  template <class F>
  void in_steps(tigon::context& ctx, F f) const {
    const tigon::vector_view<const T> b{bias.data(), bias.size()};
    const passes::linear<T> policy{x.view(), w.view(), b, dx.view(), dw.view(), {dbias.data(), dbias.size()}},
        other{ref_x.view(), ref_w.view(), b, {}, {}, {}};
    passes::linear_token_loss<T, A>(ctx, policy, other, labels.span(), *steps, {logp.span(), ref_logp.span()},
                                    loss.data(), f);
  }
};

/// Loss and all gradients in one call, or the loss alone, of sequences as long as `length` tokens or as a few tokens
/// allow. The limit is that of the products of tokens, hidden and vocab: three, one for a reference, and the part of
/// one that makes logits again, because those of a group of sequences did not fit into a chunk.
template <class B, class T, class Call>
plan preference_plan(const request& r, std::size_t length, std::size_t ends, bool reference, Call call) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  while (length > 1 && tokens % (ends * length) != 0) length /= 2;
  if (tokens % ends != 0) throw unsupported("pairs need an even number of tokens");
  const bool trained = has_backward(r.direction);
  double products = (trained ? 3 : 1) + (reference ? 1 : 0);
  if constexpr (!std::same_as<B, plain>) {
    const std::size_t chunk =
        tigon::detail::chunk_rows<B, tigon::accumulator_t<T>>(tokens, hidden, vocab, tigon::default_context());
    const std::size_t chunks = (ends * length + chunk - 1) / chunk;
    if (trained) products += 1 - 1 / static_cast<double>(chunks);
  }
  plan p;
  p.limits.push_back(product_peak<T>(linear_flops(products, r)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const std::size_t other = reference ? hidden : 0;
    const preference_case<T> c{uniform_matrix<T>(tokens, hidden, -1, 1, 1),
                               uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2),
                               matrix<T>(trained ? tokens : 0, hidden),
                               matrix<T>(trained ? vocab : 0, hidden),
                               uniform_matrix<T>(reference ? tokens : 0, other, -1, 1, 3),
                               uniform_matrix<T>(reference ? vocab : 0, other, -0.05, 0.05, 4),
                               uniform<T>(vocab, -0.1, 0.1, 5),
                               buffer<T>(trained ? vocab : 0),
                               uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 6),
                               buffer<A>(1),
                               tokens / length,
                               steps_for<B, passes::logit_steps<T>>(tokens, vocab),
                               buffer<A>(std::same_as<B, plain> ? tokens : 0),
                               buffer<A>(std::same_as<B, plain> && reference ? tokens : 0)};
    // Memory: beside the gradients.
    return {.run = [=, &ctx] { call(c, ctx); }, .restore = {}, .output_bytes = bytes_of(c.steps)};
  };
  return p;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_PREFERENCE_HPP

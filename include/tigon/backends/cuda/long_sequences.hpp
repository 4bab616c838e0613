// Losses on a GPU of sequences that are longer than a chunk of logits: each token's gradient is kept before its factor,
// which is one number of the sequence, is known. So logits are computed once.
#ifndef TIGON_BACKENDS_CUDA_LONG_SEQUENCES_HPP
#define TIGON_BACKENDS_CUDA_LONG_SEQUENCES_HPP

#include <tigon/backends/cuda/linear.hpp>
#include <tigon/backends/cuda/selective_log_softmax.hpp>
#include <tigon/backends/cuda/sequence_tokens.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/sequence/sequence_kernel.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// u[i] = 1
template <class A>
struct no_factor {
  A* u;
  TIGON_DEVICE_INLINE void operator()(std::size_t i) const { u[i] = A(1); }
};
/// The factors of sequences: the u of their tokens, which is the same for all that count. A block has a sequence.
template <class A>
__global__ void __launch_bounds__(256) put_factors(const __grid_constant__ tigon::detail::sequence_tokens<A> of,
                                                   std::size_t begin, product_factor<A>* to) {
  const std::size_t first = (begin + blockIdx.x) * of.length;
  double place = -1;
  for (std::size_t k = threadIdx.x; k < of.length && place < 0; k += blockDim.x)
    if (of.column[first + k] != -1) place = static_cast<double>(k);
  place = first_wrong(place);
  if (threadIdx.x != 0) return;
  const A u = place < 0 ? A(0) : of.u[first + static_cast<std::size_t>(place)];
  to[blockIdx.x] = {u, A(0), A(1)};
}

/// Rows of a layer, as kernel<op::fused_linear_preference>::log_probabilities wants them.
template <layer_types T>
struct rows_of_layer {
  using X = input_t<T>;
  using W = weight_t<T>;
  linear_layer<T> of;
  std::size_t begin, n;
  matrix_view<const X> rows() const { return of.x.rows_from(begin, n); }
  matrix_view<const W> w() const { return of.w; }
  std::span<const W> bias() const { return of.bias; }
};

/// Groups whose tokens have the factor of their sequence, and one column each.
template <backend B, layer_types T>
class long_sequences {
 public:
  using A = accumulator_t<T>;
  using layer_type = linear_chunks<B, T>;
  using D = typename layer_type::D;

  /// Whether the gradients of a group are kept: it is longer than a chunk, and they take no more than four times the
  /// bytes of a chunk's logits.
  static bool keep(std::size_t rows, std::size_t hidden, std::size_t vocab, const context& ctx) {
    const std::size_t chunk = tigon::detail::chunk_rows<B, A>(rows, hidden, vocab, ctx);
    return rows > chunk && workspace::product(rows, sizeof(D)) <= 4 * workspace::product(chunk, sizeof(A));
  }
  /// Bytes of such a call beside those of its tokens, with a bias.
  static std::size_t bytes(std::size_t groups, std::size_t ends, std::size_t length, std::size_t hidden,
                           std::size_t vocab, parameters of, const context& ctx) {
    const std::size_t rows = workspace::product(ends, length);
    if (!keep(rows, hidden, vocab, ctx)) return 0;
    return workspace::bytes_for<A>(rows_of_chunk(length, rows, hidden, vocab, ctx), vocab) +
           workspace::bytes_for<D>(rows, vocab) + workspace::bytes_for<product_factor<A>>(ends) +
           workspace::bytes_for<A>(vocab) + layer_type::bytes(hidden, vocab, chunks(groups, ends, length), of);
  }

  long_sequences(workspace::frame& frame, const tigon::detail::sequence_call<T>& call, context& ctx)
      : call_(call),
        ctx_(ctx),
        chunk_(rows_of_chunk(call.tokens.length, rows_of_group(), call.head.x.cols, call.head.w.rows, ctx)),
        logits_(frame.template take<A>(chunk_ * call.head.w.rows), chunk_, call.head.w.rows),
        kept_(frame.template take<D>(rows_of_group() * call.head.w.rows), rows_of_group(), call.head.w.rows),
        factors_(frame.template take<product_factor<A>>(call.tokens.ends)),
        other_(frame, call.reference, {}, chunks(call.tokens.groups, call.tokens.ends, call.tokens.length), ctx),
        policy_(frame, call.head, call.out, chunks(call.tokens.groups, call.tokens.ends, call.tokens.length), ctx) {}

  void run() {
    const auto& t = call_.tokens;
    for (std::size_t group = 0; group < t.groups; ++group) {
      for (std::size_t end = 0; end < t.ends; ++end)
        tigon::detail::for_chunks(t.length, chunk_, [&](std::size_t begin, std::size_t n) {
          make_logps(group * t.ends + end, begin, kept_.rows_from(end * t.length + begin, n));
        });
      call_.coefficients(group, 1);
      launch(ctx_, put_factors<A>, dim3(blocks(t.ends)), dim3(256), t, group * t.ends, factors_);
      for (std::size_t end = 0; end < t.ends; ++end)
        policy_.backward(t.first_row(group * t.ends + end), kept_.rows_from(end * t.length, t.length), factors_ + end);
    }
    policy_.finish();
  }

 private:
  static chunks_of_rows chunks(std::size_t groups, std::size_t ends, std::size_t length) {
    const std::size_t sequences = workspace::product(groups, ends);
    return {length, sequences, workspace::product(sequences, length), true};
  }
  /// A sequence in chunks of equal size.
  static std::size_t rows_of_chunk(std::size_t length, std::size_t rows, std::size_t hidden, std::size_t vocab,
                                   const context& ctx) {
    const std::size_t chunk = tigon::detail::chunk_rows<B, A>(rows, hidden, vocab, ctx);
    return tigon::detail::ceil_div(length, tigon::detail::ceil_div(length, chunk));
  }
  std::size_t rows_of_group() const { return call_.tokens.ends * call_.tokens.length; }

  /// Log-probabilities of tokens [begin, begin + d.rows) of sequence s; their gradient goes to d.
  void make_logps(std::size_t s, std::size_t begin, matrix_view<D> d) {
    using rows_of_logits = kernel_for<op::selective_log_softmax, B>;
    const auto& t = call_.tokens;
    const std::size_t k = s * t.length + begin, row = t.first_row(s) + begin;
    const matrix_view<A> z(logits_.data, d.rows, logits_.cols);
    const auto of = [&](const layer_type& layer, const linear_layer<T>& head, double* logp) {
      layer.logits(row, z);
      tigon::detail::cap_logits<B, A>(z, call_.softcap, ctx_);
      kernel_for<op::fused_linear_preference, B>::log_probabilities(rows_of_layer<T>{head, row, d.rows}, z,
                                                                    call_.temperature, call_.softcap, t.column + k,
                                                                    t.lse + k, logp + k, ctx_);
    };
    if (t.reference_logp != nullptr) of(other_, call_.reference, t.reference_logp);
    of(policy_, call_.head, t.logp);
    for_each_of(ctx_, d.rows, no_factor<A>{t.u + k});
    const selected_gradient<A> each{t.column + k, t.u + k};
    if (call_.softcap == 0)
      rows_of_logits::template backward<B, A>(z, t.lse + k, each, {}, call_.temperature, d, ctx_);
    else
      rows_of_logits::template backward_of_capped<B, A>(call_.softcap, z, t.lse + k, {each, {}}, call_.temperature, d,
                                                        ctx_);
  }

  const tigon::detail::sequence_call<T>& call_;
  context& ctx_;
  std::size_t chunk_;
  matrix_view<A> logits_;
  matrix_view<D> kept_;
  product_factor<A>* factors_;
  layer_type other_, policy_;
};

/// detail::sequence_kernel where all tokens of a sequence that count have one u.
struct sequence_kernel : tigon::detail::sequence_kernel {
  template <backend B, layer_types T>
  static void forward(const tigon::detail::sequence_call<T>& call, context& ctx) {
    const auto& t = call.tokens;
    if (!call.out.any() || t.second_column != nullptr ||
        !long_sequences<B, T>::keep(t.ends * t.length, call.head.x.cols, call.head.w.rows, ctx))
      return tigon::detail::sequence_kernel::forward<B, T>(call, ctx);
    workspace::frame frame(ctx.workspace());
    long_sequences<B, T>(frame, call, ctx).run();
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_LONG_SEQUENCES_HPP

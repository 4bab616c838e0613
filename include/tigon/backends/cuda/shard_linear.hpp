// A linear layer whose classes are split over ranks, each of which is a GPU, in front of a loss: as
// losses/ranks/shard_linear.hpp has it. Shares of dx are added in the order of ranks, by a kernel, so that all have the
// same bits.
#ifndef TIGON_BACKENDS_CUDA_SHARD_LINEAR_HPP
#define TIGON_BACKENDS_CUDA_SHARD_LINEAR_HPP

#include <tigon/backends/cuda/linear.hpp>
#include <tigon/backends/cuda/tokens.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/ranks/shard_linear.hpp>

#include <algorithm>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// dx[k] = the sum of all ranks' shares, in the order of ranks; columns without gaps in `shares`, those of a rank
/// `apart` elements behind those before.
template <class A, class X>
struct add_shares {
  const A* shares;
  std::size_t apart, cols, begin;  ///< begin: the first element of dx
  unsigned ranks;
  matrix_view<X> dx;
  TIGON_DEVICE_INLINE void operator()(std::size_t k) const {
    A sum(0);
    for (unsigned r = 0; r < ranks; ++r) sum += shares[r * apart + k];
    const std::size_t at = begin + k;
    dx.row(at / cols)[at % cols] = as_element<X>(sum);
  }
};
/// Elements of a rank that are gathered at a time.
inline constexpr std::size_t most_shares = std::size_t{1} << 22;
constexpr std::size_t shares_at_a_time(std::size_t elements) {
  return std::clamp<std::size_t>(elements, 1, most_shares);
}

/// dx = the sum over ranks of `share`, which has no gaps; `gathered` has memory for shares_at_a_time elements of every
/// rank.
template <class A, class X>
void sum_in_rank_order(communicator_ref comm, matrix_view<A> share, A* gathered, matrix_view<X> dx, context& ctx) {
  const std::size_t n = share.rows * share.cols, block = shares_at_a_time(n), ranks = comm.size();
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t some = std::min(block, n - begin);
    comm::all_gather<A>(comm, {share.data + begin, some}, std::span(gathered, ranks * some));
    for_each_of(ctx, some, add_shares<A, X>{gathered, some, share.cols, begin, static_cast<unsigned>(ranks), dx});
  }
}

/// linear_chunks on a rank's classes. dx is the sum of all ranks' shares, in f32 (f64 for f64), in their order.
template <class B, layer_types T>
class linear_shard_chunks {
 public:
  using layer_type = linear_chunks<B, T>;
  using A = typename layer_type::A;
  using X = typename layer_type::X;
  using D = typename layer_type::D;

  linear_shard_chunks(workspace::frame& frame, const tigon::detail::linear_shard_loss<T>& of, context& ctx)
      : of_(of),
        ctx_(ctx),
        shared_(of.comm.size() != 1 && of.out.dx.data != nullptr),
        layer_(frame, of.head, {shared_ ? matrix_view<X>{} : of.out.dx, of.out.dw, of.out.dbias, of.out.mode},
               chunks_of(of.kept.n, of.chunk.rows), ctx) {
    if (!shared_) return;
    const std::size_t n = of.chunk.rows * of.head.x.cols;
    share_ = frame.template take<A>(n), gathered_ = frame.template take<A>(of.comm.size() * shares_at_a_time(n));
  }
  static std::size_t bytes(tigon::detail::layer_extents of, std::size_t ranks, std::size_t chunk, parameters trained) {
    const std::size_t n = workspace::product(chunk, of.hidden);
    return linear_chunks<B, T>::bytes(of.hidden, of.vocab, chunks_of(of.rows, chunk), trained) +
           (ranks == 1 ? 0 : workspace::bytes_for<A>(n) + workspace::bytes_for<A>(ranks, shares_at_a_time(n)));
  }

  void logits(std::size_t begin, matrix_view<A> z) const { layer_.logits(begin, z); }
  matrix_view<D> gradient_of(matrix_view<A> z) const { return layer_.gradient_of(z); }
  /// All ranks together where dx is wanted.
  void backward(std::size_t begin, matrix_view<D> d) {
    layer_.backward(begin, d);
    const std::size_t hidden = of_.head.x.cols;
    if (!shared_ || hidden == 0) return;
    const matrix_view<A> share(share_, d.rows, hidden);
    kernel_for<op::gemm, B>::template forward<B, D, weight_t<T>, A>(d, {of_.head.w}, {}, share, no_epilogue{}, {},
                                                                    ctx_);
    launch(ctx_, clear_rows_without_share<D, A>, dim3(blocks(d.rows)), dim3(256), matrix_view<const D>(d), share,
           factor_of_rows<D>());
    sum_in_rank_order<A, X>(of_.comm, share, gathered_, of_.out.dx.rows_from(begin, d.rows), ctx_);
  }
  void finish() { layer_.finish(); }

 private:
  const tigon::detail::linear_shard_loss<T>& of_;
  context& ctx_;
  bool shared_;  ///< dx
  layer_type layer_;
  A *share_ = nullptr, *gathered_ = nullptr;
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_SHARD_LINEAR_HPP

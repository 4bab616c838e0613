// A linear layer whose classes are split over ranks, in front of a loss: what ranks tell one another, and the layer a
// chunk of rows at a time.
#ifndef TIGON_LOSSES_RANKS_SHARD_LINEAR_HPP
#define TIGON_LOSSES_RANKS_SHARD_LINEAR_HPP

#include <tigon/losses/linear/kept_linear.hpp>
#include <tigon/losses/ranks/vocab_parallel_cross_entropy_options.hpp>

#include <bit>

namespace tigon {
inline namespace TIGON_ABI {

/// A rank's part of a linear layer: x of all tokens, the same on every rank, and w [cols, hidden] and bias [cols] of
/// the classes [shard.first, shard.first + cols) of shard.vocab. A shard may be empty: w of 0 rows.
template <layer_types T>
struct linear_shard {
  linear_layer<T> layer{};
  vocab_shard shard{};
};
template <class T>
linear_shard(linear_layer<T>, vocab_shard) -> linear_shard<T>;

}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {

/// FNV-1a over the bits of numbers.
struct number_hash {
  std::uint64_t value = 0xcbf29ce484222325u;
  void add(std::uint64_t number) { value = (value ^ number) * 0x100000001b3u; }
  void add(double number) { add(std::bit_cast<std::uint64_t>(number)); }
};
/// Of numbers that the host reads.
template <class B, class A>
std::uint64_t hash_of_numbers(const A* numbers, std::size_t n) {
  number_hash hash;
  if constexpr (host_memory<B>)
    for (std::size_t i = 0; i < n; ++i) hash.add(static_cast<double>(numbers[i]));
  return hash.value;
}

/// What ranks exchange before they write: where their shards are, and numbers that are equal on all of them.
template <std::size_t N>
struct linear_shard_record {
  std::size_t first, cols;
  std::uint64_t equal[N];
};
/// A number that has to be equal on all ranks, and its name in errors.
struct equal_number {
  const char* name;
  std::uint64_t value;

  equal_number(const char* of, std::uint64_t number) : name(of), value(number) {}
  equal_number(const char* of, double number) : name(of), value(std::bit_cast<std::uint64_t>(number)) {}
  equal_number(const char* of, std::int64_t number) : name(of), value(static_cast<std::uint64_t>(number)) {}
};

/// The numbers of the layer itself.
inline constexpr std::size_t of_every_layer = 7;
template <class A, class I>
struct equal_numbers {
  equal_number all[of_every_layer];

  template <layer_types T>
  equal_numbers(const linear_shard<T>& of, std::span<const I> target, std::size_t chunk, bool dx)
      : all{{"rows", std::uint64_t{of.layer.x.rows}},
            {"hidden", std::uint64_t{of.layer.x.cols}},
            {"vocab", std::uint64_t{of.shard.vocab}},
            {"type", element_number<input_t<T>>() << 32 | element_number<weight_t<T>>()},
            {"rows of a chunk", std::uint64_t{chunk}},
            {"the choice of dx", std::uint64_t{dx}},
            {"target", hash_of(target)}} {}

 private:
  static std::uint64_t hash_of(std::span<const I> target) {
    number_hash hash;
    for (const I t : target) hash.add(static_cast<std::uint64_t>(t));
    return hash.value;
  }
};

/// All ranks come here. check() throws where this rank finds a mistake, which is then the error of all; so is another
/// number than on rank 0, and shards that are not the vocabulary. Returns the records of all ranks, or as comm::agree.
template <class Layer, std::size_t M, class Check>
std::vector<linear_shard_record<of_every_layer + M>> agree_on_shards(std::string_view op, communicator_ref comm,
                                                                     vocab_shard shard, std::size_t cols,
                                                                     const Layer& layer, const equal_number (&own)[M],
                                                                     const Check& check) {
  using record = linear_shard_record<of_every_layer + M>;
  const auto number = [&](std::size_t k) -> const equal_number& {
    return k < of_every_layer ? layer.all[k] : own[k - of_every_layer];
  };
  record mine{shard.first, cols, {}};
  for (std::size_t k = 0; k < of_every_layer + M; ++k) mine.equal[k] = number(k).value;
  auto ranks = comm::agree(comm, mine, check);
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (std::size_t k = 0; k < of_every_layer + M; ++k)
      if (ranks[r].equal[k] != ranks[0].equal[k]) fail_of_ranks(op, number(k).name, r);
  if (ranks.size() == comm.size()) expect_order_of_shards(op, std::span<const record>(ranks), shard.vocab);
  return ranks;
}

/// Declares what the public functions read of a rank's layer and of labels of the whole vocabulary.
template <class B, layer_types T>
void declare_linear_shard(arguments& args, std::string_view op, const linear_shard<T>& of) {
  args.at_least_one("vocab", of.shard.vocab);
  const std::size_t cols = of.layer.w.rows;
  declare_layer<B>(args, op, of.layer, of.layer.x.rows, cols);
  if (cols > of.shard.vocab || of.shard.first > of.shard.vocab - cols)
    fail_argument(error_code::shape, op, "shard",
                  std::to_string(cols) + " classes from " + std::to_string(of.shard.first) + " on",
                  "to end within the vocab of " + std::to_string(of.shard.vocab));
}

/// The columns of a rank.
struct shard_columns {
  std::size_t first = 0, cols = 0;
};

/// What a loss over a split vocabulary reads and writes on one rank.
template <layer_types T>
struct linear_shard_loss {
  communicator_ref comm;
  const shard_columns* shards;  ///< of all ranks
  std::size_t vocab;
  kept_chunk chunk;
  linear_layer<T> head;
  linear_gradients<T> out;
  chosen_rows kept;  ///< rows that count: labels and results are of them, in their order

  shard_columns own() const { return shards[comm.rank()]; }
};
/// Of all ranks; where one knows its own record alone, others have none.
template <class Record>
std::vector<shard_columns> columns_of(const std::vector<Record>& records, communicator_ref comm) {
  std::vector<shard_columns> out(comm.size(), shard_columns{});
  const bool all = records.size() == comm.size();
  for (std::size_t r = 0; r < records.size(); ++r) out[all ? r : comm.rank()] = {records[r].first, records[r].cols};
  return out;
}

/// Rows of a chunk, equal on all ranks, however uneven their shards: those of an even one.
template <class A>
std::size_t shard_chunk_rows(const chunk_tuning& by, std::size_t rows, std::size_t hidden, std::size_t vocab,
                             std::size_t ranks, const context& ctx) {
  return chunk_rows<A>(by, rows, hidden, gemm_detail::ceil_div(vocab, ranks), ctx, 1);
}

/// Bytes of a row on each rank where shards are even.
template <layer_types T>
constexpr kept_bytes bytes_of_shard_row(std::size_t hidden, std::size_t vocab, std::size_t ranks) {
  return bytes_of_row<T>(hidden, gemm_detail::ceil_div(vocab, ranks));
}
/// Rows of a chunk of those that count, the same on all ranks.
template <layer_types T>
kept_chunk shard_chunk_of(chosen_rows kept, std::size_t chunk, const linear_shard<T>& of, std::size_t ranks, bool dx) {
  const matrix_view<const input_t<T>> x = of.layer.x;
  return chunk_of<T>(kept, chunk, x.rows, bytes_of_shard_row<T>(x.cols, of.shard.vocab, ranks), dx);
}

/// Numbers that each rank has for the rows of a chunk: number k of row i of rank r is of(r, i, n)[k * n] of n rows.
template <class A>
class rank_numbers {
 public:
  rank_numbers(workspace::frame& frame, communicator_ref comm, std::size_t numbers, std::size_t chunk)
      : comm_(comm),
        numbers_(numbers),
        mine_(frame.template take<A>(numbers * chunk)),
        all_(comm.size() == 1 ? mine_ : frame.template take<A>(comm.size() * numbers * chunk)) {}
  static std::size_t bytes(std::size_t ranks, std::size_t numbers, std::size_t chunk) {
    return workspace::bytes_for<A>(numbers, chunk) + (ranks == 1 ? 0 : workspace::bytes_for<A>(ranks, numbers, chunk));
  }

  A* mine() const { return mine_; }
  void gather(std::size_t n) const {
    if (comm_.size() == 1) return;
    comm::all_gather<A>(comm_, {mine_, numbers_ * n}, std::span(all_, comm_.size() * numbers_ * n));
  }
  const A* all() const { return all_; }
  /// From one rank to the next.
  std::size_t step(std::size_t n) const { return numbers_ * n; }

 private:
  communicator_ref comm_;
  std::size_t numbers_;
  A *mine_, *all_;
};

/// kept_linear on a rank's classes; dx is the sum of all ranks' shares, added up in f32 (f64 for f64) in the order of
/// ranks and rounded once: the same bits on every rank, whatever carries them.
template <class B, layer_types T>
class shard_linear {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;

  shard_linear(workspace::frame& frame, const linear_shard_loss<T>& of, context& ctx)
      : comm_(of.comm),
        head_(of.head),
        dx_(of.comm.size() == 1 ? matrix_view<X>{} : of.out.dx),
        kept_(of.kept),
        cut_(of.chunk.cut),
        ctx_(ctx),
        layer_(frame, of.head,
               {dx_.data == nullptr ? of.out.dx : matrix_view<X>{}, of.out.dw, of.out.dbias, of.out.mode}, of.kept,
               of.chunk, of.out.dx, ctx) {
    if (dx_.data == nullptr) return;
    const std::size_t n = of.chunk.rows * of.head.x.cols;
    share_ = frame.template take<A>(n), sum_ = frame.template take<A>(n);
    gathered_ = {frame.template take<A>(comm_.size() * block(n)), comm_.size() * block(n)};
  }

  void logits(std::size_t begin, matrix_view<A> z) { layer_.logits(begin, z); }

  /// All ranks together where dx is wanted.
  void backward(std::size_t begin, matrix_view<A> d) {
    layer_.backward(begin, d);
    if (dx_.data == nullptr) return;
    const matrix_view<A> share(share_, d.rows, head_.x.cols);
    const std::size_t n = share.rows * share.cols;
    if (n == 0) return;
    linear_product<B>(d, head_.w, head_.packed.gradient, share, in_vector<A>{}, {.cut_as = {.rows = cut_}}, ctx_);
    clear_rows_without_share(d, share);
    std::fill(sum_, sum_ + n, A(0));
    comm::reduce_in_rank_order<A>(comm_, {share_, n}, std::span(sum_, n), gathered_, [](A a, A b) { return a + b; });
    round_sums<row_backend<B>, A, X, A>(dx_.rows_from(begin, d.rows), {sum_, d.rows, share.cols}, false, ctx_);
  }

  void finish() {
    layer_.finish();
    put_chosen<B>(dx_, kept_, ctx_);
  }

  /// Bytes that it takes for the classes of one of so many ranks, with all gradients and a bias, or with that of x
  /// alone, and nothing packed; and of_chunk(n), what the loss takes for a chunk of n rows.
  template <class OfChunk>
  static std::size_t bytes(layer_extents of, std::size_t vocab, std::size_t ranks, std::size_t chunk,
                           const context& ctx, parameters trained, const OfChunk& of_chunk) {
    const std::size_t between =
        std::max(simd::scratch_workspace<B, A>(of.vocab, 1, ctx),
                 gemm_workspace<B, A, weight_t<T>, A>(chunk, of.hidden, of.vocab, ctx.executor().workers()));
    const auto sums = [=](std::size_t n) {
      const std::size_t elements = workspace::product(n, of.hidden);
      return ranks == 1 ? 0 : 2 * workspace::bytes_for<A>(elements) + workspace::bytes_for<A>(ranks, block(elements));
    };
    return kept_linear_workspace<B, T>(of, chunk, bytes_of_shard_row<T>(of.hidden, vocab, ranks), ctx, between, trained,
                                       [&](std::size_t n) { return of_chunk(n) + sums(n); });
  }

 private:
  /// Elements of a rank that are gathered at a time.
  static constexpr std::size_t block(std::size_t elements) {
    return std::clamp<std::size_t>(elements, 1, std::size_t{1} << 18);
  }

  communicator_ref comm_;
  linear_layer<T> head_;
  matrix_view<X> dx_;
  chosen_rows kept_;
  std::size_t cut_;
  context& ctx_;
  kept_linear<B, T> layer_;
  A *share_ = nullptr, *sum_ = nullptr;
  std::span<A> gathered_;
};

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_SHARD_LINEAR_HPP

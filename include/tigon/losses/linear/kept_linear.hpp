// A linear layer in front of a loss whose labels say which rows count: the others are not multiplied.
#ifndef TIGON_LOSSES_LINEAR_KEPT_LINEAR_HPP
#define TIGON_LOSSES_LINEAR_KEPT_LINEAR_HPP

#include <tigon/losses/linear/gathered_linear.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// The rows whose label is not ignore_index, and their labels one behind the other: those of the caller where all
/// count.
template <class I>
class kept_labels {
 public:
  kept_labels(workspace::frame& frame, std::span<const I> labels, std::size_t all, std::int64_t ignore_index)
      : rows_(all), labels_(labels) {
    const auto ignored = [=](I label) { return static_cast<std::int64_t>(label) == ignore_index; };
    if (std::none_of(labels.begin(), labels.end(), ignored)) return;
    auto* row = frame.template take<std::size_t>(all);
    I* kept = frame.template take<I>(all);
    std::size_t n = 0;
    for (std::size_t i = 0; i < all; ++i)
      if (!ignored(labels[i])) row[n] = i, kept[n++] = labels[i];
    rows_ = {row, n}, labels_ = {kept, n};
  }
  /// Of a backend whose memory the host does not read, all rows count: its kernels leave ignored ones out.
  template <class B>
  static kept_labels of(workspace::frame& frame, std::span<const I> labels, std::size_t all,
                        std::int64_t ignore_index) {
    if constexpr (host_memory<B>)
      return kept_labels(frame, labels, all, ignore_index);
    else
      return kept_labels(labels, all);
  }
  /// Bytes that it takes, with so many numbers a row by of_kept().
  template <class A>
  static constexpr std::size_t bytes(std::size_t rows, std::size_t numbers) {
    return workspace::bytes_for<std::size_t>(rows) + workspace::bytes_for<std::int64_t>(rows) +
           numbers * workspace::bytes_for<A>(rows);
  }

  chosen_rows rows() const { return rows_; }
  std::span<const I> labels() const { return labels_; }
  /// One number for all rows, or those of the rows that count.
  template <class A>
  std::span<const A> of_kept(workspace::frame& frame, std::span<const A> numbers) const {
    if (rows_.all() || numbers.size() <= 1) return numbers;
    A* kept = frame.template take<A>(numbers.size());
    for (std::size_t k = 0; k < rows_.n; ++k) kept[k] = numbers[rows_.row[k]];
    return {kept, rows_.n};
  }

 private:
  kept_labels(std::span<const I> labels, std::size_t all) : rows_(all), labels_(labels) {}

  chosen_rows rows_;
  std::span<const I> labels_;
};

/// Rows of logits that exist at a time, and the rows of a chunk of all rows, as which products are cut: the bits of a
/// row do not depend on which others count.
struct kept_chunk {
  std::size_t rows, cut;
};

/// Bytes of a row: of its logits, of x, and of what else is gathered.
struct kept_bytes {
  std::size_t logits, x, others = 0;

  /// What takes memory for a chosen row: x is gathered where dx will be, if that is wanted.
  constexpr std::size_t gathered(bool dx) const { return others + (dx ? 0 : x); }
};

/// Of a chunk of all rows, so many chosen ones that what is gathered has room where the logits of the others were; at
/// least 64, and so many that no more sums of chunks are needed than of all rows.
constexpr std::size_t gathered_chunk(std::size_t chunk, std::size_t rows, kept_bytes row, bool dx) {
  constexpr std::size_t step = 32;
  const std::size_t gathered = row.gathered(dx);
  if (gathered == 0) return chunk;
  const std::size_t room = workspace::product(chunk, row.logits) / (row.logits + gathered);
  return std::min(chunk, std::max({room / step * step, 2 * step, gemm_detail::ceil_div(rows, simd::plain_rows)}));
}
template <layer_types T>
constexpr kept_chunk chunk_of(chosen_rows kept, std::size_t chunk, std::size_t rows, kept_bytes row, bool dx) {
  if constexpr (is_in_f64<T>) return {kept.n, kept.n};
  return {kept.all() ? chunk : gathered_chunk(chunk, rows, row, dx), chunk};
}
/// For one layer of `vocab` classes.
template <layer_types T>
constexpr kept_bytes bytes_of_row(std::size_t hidden, std::size_t vocab) {
  return {workspace::product(vocab, sizeof(accumulator_t<T>)), workspace::product(hidden, sizeof(input_t<T>))};
}

/// chunked_linear on rows that are chosen: rows [begin, begin + n) are those of them. Others are not read, and their dx
/// is 0. Where all rows are chosen they are multiplied where they are. Else x is gathered where dx of the same rows
/// will be, the first rows of dx, or without dx in the workspace; dx goes to its places at the end.
template <class B, layer_types T>
class kept_linear {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;

  /// `room`: rows of dx, where that is wanted.
  kept_linear(workspace::frame& frame, linear_layer<T> head, linear_gradients<T> out, chosen_rows kept,
              kept_chunk chunk, matrix_view<X> room, context& ctx)
      : from_(head.x),
        kept_(kept),
        dx_(out.dx),
        ctx_(ctx),
        in_workspace_(!kept.all() && room.data == nullptr),
        x_(kept.all()      ? matrix_view<X>{}
           : in_workspace_ ? matrix_view<X>(frame.template take<X>(chunk.rows * head.x.cols), chunk.rows, head.x.cols)
                           : room),
        layer_(frame, {kept.all() ? head.x : matrix_view<const X>(x_), head.w, head.bias, head.packed}, out, chunk.cut,
               gemm_detail::ceil_div(kept.n, chunk.rows), ctx) {}

  void logits(std::size_t begin, matrix_view<A> z) const {
    if (!kept_.all())
      gather_rows<row_backend<B>, A>(from_, kept_.row + begin, x_.rows_from(place_of(begin), z.rows), ctx_);
    layer_.logits(place_of(begin), z);
  }
  void backward(std::size_t begin, matrix_view<A> d) { layer_.backward(place_of(begin), d); }
  void finish() {
    layer_.finish();
    put_chosen<B>(dx_, kept_, ctx_);
  }

 private:
  std::size_t place_of(std::size_t begin) const { return in_workspace_ ? 0 : begin; }

  matrix_view<const X> from_;
  chosen_rows kept_;
  matrix_view<X> dx_;
  context& ctx_;
  bool in_workspace_;
  matrix_view<X> x_;
  chunked_linear<B, T> layer_;
};

/// The extents of a layer.
struct layer_extents {
  std::size_t rows, hidden, vocab;
};

/// Bytes that kept_linear takes by chunks of `chunk` of all rows, whichever are chosen, with all gradients, those of x
/// alone or none, a bias and nothing packed; with what else is gathered of a row, and of_chunk(n), what the loss takes
/// for a chunk of n rows. `between`: bytes that it takes between the products, and gives back.
template <class B, layer_types T, class OfChunk>
std::size_t kept_linear_workspace(layer_extents of, std::size_t chunk, kept_bytes row, const context& ctx,
                                  std::size_t between, parameters trained, const OfChunk& of_chunk) {
  const auto layer = [&](std::size_t n) {
    return of_chunk(n) + chunked_linear_workspace<B, T>(of.hidden, of.vocab, chunk, gemm_detail::ceil_div(of.rows, n),
                                                        ctx, between, trained);
  };
  std::size_t most = layer(chunk);
  for (const bool dx : {true, false}) {
    const std::size_t n = gathered_chunk(chunk, of.rows, row, dx), arrays = 2;
    most = std::max(most, layer(n) + workspace::bytes_for<std::byte>(n, row.gathered(dx)) +
                              (row.gathered(dx) == 0 ? 0 : 2 * arrays * workspace::alignment));
  }
  return most;
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_LINEAR_KEPT_LINEAR_HPP

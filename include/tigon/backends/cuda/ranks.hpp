// Rows of logits whose columns are split over ranks, each of which is a GPU: what a rank makes of its part of a row and
// sends, and the gradient of its columns. Ranks are merged in their order, so that all have the same bits.
#ifndef TIGON_BACKENDS_CUDA_RANKS_HPP
#define TIGON_BACKENDS_CUDA_RANKS_HPP

#include <tigon/backends/cuda/labels.hpp>
#include <tigon/backends/cuda/powers.hpp>
#include <tigon/backends/cuda/tokens.hpp>
// Behind them: they say how these are compiled.
#include <tigon/comm/communicator.hpp>
#include <tigon/losses/softmax/partial_softmax.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// What a rank says of n rows, in memory of the device: number k of row i; columns of predicted tokens, if they are
/// wanted; and before them the sum of the weights of its classes.
template <class A>
struct rank_message {
  static constexpr std::size_t head = 16, column_bytes = sizeof(std::int64_t);
  std::byte* data = nullptr;
  std::size_t rows = 0;
  unsigned numbers = 0;

  TIGON_INLINE std::size_t before_columns() const {
    return (head + rows * numbers * sizeof(A) + column_bytes - 1) / column_bytes * column_bytes;
  }
  static std::size_t bytes(std::size_t rows, unsigned numbers, bool columns) {
    return tigon::detail::round_up(
        rank_message{nullptr, rows, numbers}.before_columns() + (columns ? rows * column_bytes : 0), head);
  }
  TIGON_DEVICE_INLINE double& weights() const { return *reinterpret_cast<double*>(data); }
  TIGON_DEVICE_INLINE A& number(unsigned k, std::size_t i) const {
    return reinterpret_cast<A*>(data + head)[k * rows + i];
  }
  TIGON_DEVICE_INLINE std::int64_t& column(std::size_t i) const {
    return reinterpret_cast<std::int64_t*>(data + before_columns())[i];
  }
};

/// The messages of all ranks.
template <class A>
struct rank_messages {
  rank_message<A> first;
  std::size_t apart;  ///< bytes from one to the next
  unsigned ranks;
  TIGON_DEVICE_INLINE rank_message<A> of(unsigned r) const {
    return {first.data + r * apart, first.rows, first.numbers};
  }
};

/// Memory for the messages of calls with up to `rows` rows.
template <class A>
class rank_gather {
 public:
  rank_gather(workspace::frame& frame, communicator_ref comm, std::size_t rows, unsigned numbers, bool columns)
      : comm_(comm), numbers_(numbers), columns_(columns) {
    const std::size_t bytes = rank_message<A>::bytes(rows, numbers, columns);
    mine_ = frame.template take<std::byte>(bytes);
    all_ = comm.size() == 1 ? mine_ : frame.template take<std::byte>(comm.size() * bytes);
  }
  static std::size_t workspace_bytes(std::size_t ranks, std::size_t rows, unsigned numbers, bool columns) {
    const std::size_t bytes = rank_message<A>::bytes(rows, numbers, columns);
    return workspace::bytes_for<std::byte>(bytes) + (ranks == 1 ? 0 : workspace::bytes_for<std::byte>(ranks, bytes));
  }
  rank_message<A> mine(std::size_t rows) const { return {mine_, rows, numbers_}; }
  /// Sends mine(rows); those of all are there for what comes behind it in the stream.
  rank_messages<A> gather(std::size_t rows) const {
    const std::size_t bytes = rank_message<A>::bytes(rows, numbers_, columns_), ranks = comm_.size();
    if (ranks != 1) comm_.all_gather({mine_, bytes}, {all_, ranks * bytes});
    return {{all_, rows, numbers_}, bytes, static_cast<unsigned>(ranks)};
  }

 private:
  communicator_ref comm_;
  unsigned numbers_;
  bool columns_;
  std::byte *mine_, *all_;
};

/// The sum of the weights of a rank's classes, without weights how many there are. One block.
template <class A>
__global__ void __launch_bounds__(1024) sum_class_weights(const A* weight, unsigned cols, rank_message<A> to) {
  double sum[1] = {0};
  for (unsigned j = threadIdx.x; j < cols; j += blockDim.x)
    sum[0] += weight == nullptr ? 1.0 : static_cast<double>(weight[j]);
  group<0>::reduce<add>(sum);
  if (threadIdx.x == 0) to.weights() = sum[0];
}

/// The label of a row, and its logit, where this rank has it.
template <class Z>
struct label_of_shard {
  unsigned column;
  bool counts, owned;
  Z own;
};
/// Labels of the whole vocabulary, of which this rank has `cols` classes from `first` on.
template <class I>
struct labels_of_shard {
  labels_of_rows<I> all;
  std::uint64_t first;
  unsigned cols;
  template <class Z>
  TIGON_DEVICE_INLINE label_of_shard<Z> of(I t, const Z* row) const {
    label_of_shard<Z> label;
    const std::uint64_t column = static_cast<std::uint64_t>(static_cast<std::int64_t>(t)) - first;
    label.counts = all.in_range(t), label.owned = label.counts && column < cols;
    label.column = label.owned ? static_cast<unsigned>(column) : 0;
    if (label.owned) label.own = row[label.column];
    return label;
  }
};

/// Rows of logits of which this rank has `cols` columns, and their labels, as each_row_of_logits reads them.
template <class Z, class I>
struct rows_of_shard {
  using element = Z;
  matrix_view<const Z> logits;
  unsigned cols;
  labels_of_shard<I> labels;

  TIGON_DEVICE_INLINE const Z* row_of(std::size_t i) const { return logits.row(i); }
  TIGON_DEVICE_INLINE I target_of(std::size_t i) const { return labels.all.target[i]; }
  TIGON_DEVICE_INLINE auto label_of(I target, std::size_t i) const { return labels.of(target, row_of(i)); }
  TIGON_DEVICE_INLINE no_state shared() const { return {}; }
};

/// Numbers of a message. Own is 0 on the ranks that do not have the label, so that all ranks' sum is the logit.
enum class number_of_rank : unsigned { top, rest, own, weighted, largest };

/// The part of a row that a rank has: its largest logit and the sum below it; with Weighted sum_j w_j (s_j - top); the
/// largest logit as it is and its column, where predicted tokens are wanted.
template <bool Capped, bool Weighted, class Z, class I>
struct reduction_of_shard : rows_of_shard<Z, I> {
  using rows_of_shard<Z, I>::logits, rows_of_shard<Z, I>::labels;
  static constexpr row_passes passes = row_passes::reduces;
  using A = accumulator_t<Z>;
  using V = simd::vec<simd::cuda, A>;
  using kind_type = tigon::detail::logits_kind<Capped, A>;

  const A* weight;  ///< of this rank's classes; null: 1
  rank_message<A> to;
  bool predicts;
  kind_type kind;
  tempered_powers<sizeof(Z) == 2 ? exponentials::rough : exponentials::fast, A> powers{1.0};

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride);
  }

  template <class Part, class Label>
  TIGON_DEVICE_INLINE void row(Part& part, std::size_t i, const Label& label, no_state) const {
    const auto put = [&](number_of_rank k, A v) { to.number(static_cast<unsigned>(k), i) = v; };
    lse_parts<A> parts{A(0), A(0)};
    A weighted[1] = {A(0)};
    if (label.counts) {
      if constexpr (Capped)
        parts = below_cap(part);
      else
        parts = lse_of_row<A>(part, powers);
      // Nothing but -inf, or no column at all: there is no mass.
      if (parts.top == std::numeric_limits<A>::lowest() && parts.rest == A(-1))
        parts.top = -std::numeric_limits<A>::infinity();
      if constexpr (Weighted) {
        const A top = parts.top == -std::numeric_limits<A>::infinity() ? std::numeric_limits<A>::lowest() : parts.top;
        const auto from = kind.from(top);
        part.each([&](unsigned j, const auto& e) {
          numbers_of<A>(e, [&](int u, A v) {
            const A w = weight == nullptr ? A(1) : weight[j + static_cast<unsigned>(u)];
            if (w != A(0)) weighted[0] += w * from.distance(V(v)).r;
          });
        });
        part.template reduce<add>(weighted);
      }
    }
    if (predicts) predict(part, i, label.counts);
    if (!part.first()) return;
    put(number_of_rank::top, parts.top), put(number_of_rank::rest, parts.rest);
    put(number_of_rank::own, label.owned ? static_cast<A>(label.own) : A(0));
    if constexpr (Weighted) put(number_of_rank::weighted, weighted[0]);
  }

 private:
  template <class Part>
  TIGON_DEVICE_INLINE lse_parts<A> below_cap(Part& part) const {
    const A top = largest_of_row<A>(part, std::numeric_limits<A>::lowest());
    const auto from = kind.from(top);
    A sum[2] = {A(0), A(0)};  // e^s but where it is 1, and how many are 1
    part.each([&](unsigned, const auto& e) {
      numbers_of<A>(e, [&](int, A v) {
        const A p = exponential(from.distance(V(v)).r);
        sum[0] += p == A(1) ? A(0) : p, sum[1] += p == A(1) ? A(1) : A(0);
      });
    });
    part.template reduce<add>(sum);
    return {top, sum[0] + (sum[1] - A(1))};
  }
  // The smallest column of the largest logit, in the whole vocabulary; -1: there is none.
  template <class Part>
  TIGON_DEVICE_INLINE void predict(Part& part, std::size_t i, bool counts) const {
    constexpr double none = -std::numeric_limits<double>::infinity();
    A top(0);
    double first[1] = {none};  // minus the column
    if (counts) {
      top = largest_of_row<A>(part, -std::numeric_limits<A>::infinity());
      part.each([&](unsigned j, const auto& e) {
        numbers_of<A>(e, [&](int u, A v) {
          if (v == top) first[0] = larger::join(first[0], -static_cast<double>(j + static_cast<unsigned>(u)));
        });
      });
      part.template reduce<larger>(first);
    }
    if (!part.first()) return;
    to.number(to.numbers - 1, i) = top;
    to.column(i) =
        first[0] == none ? -1 : static_cast<std::int64_t>(labels.first) + static_cast<std::int64_t>(-first[0]);
  }
};

/// What the ranks' numbers of a row make together; sums are in f64, in the order of ranks.
template <class A>
struct merged_row {
  lse_parts<double> parts{-std::numeric_limits<double>::infinity(), -1};
  A own = 0;
  std::int64_t predicted = -1;

  template <class Kind>
  TIGON_DEVICE_INLINE merged_row(const rank_messages<A>& all, std::size_t i, const Kind& kind, bool predicts) {
    A best(0);
    for (unsigned r = 0; r < all.ranks; ++r) {
      const rank_message<A> of = all.of(r);
      const auto number = [&](number_of_rank k) { return of.number(static_cast<unsigned>(k), i); };
      tigon::detail::add_part<A>(parts, {number(number_of_rank::top), number(number_of_rank::rest)}, kind);
      own += number(number_of_rank::own);
      if (!predicts) continue;
      const A largest = of.number(of.numbers - 1, i);
      if (const std::int64_t column = of.column(i); column >= 0 && (predicted < 0 || largest > best))
        best = largest, predicted = column;
    }
  }
  /// sum_j w_j (s_j - top) of one rank's classes.
  template <class Kind>
  static TIGON_DEVICE_INLINE double weighted(const rank_message<A>& of, std::size_t i, double top, const Kind& kind) {
    return tigon::detail::seen_from(of.number(static_cast<unsigned>(number_of_rank::weighted), i),
                                    of.number(static_cast<unsigned>(number_of_rank::top), i), top, kind, of.weights());
  }
};

/// The gradient of a row's logits: factor e^s - subtract w, and apart from that at the label. s is below `top`.
template <class A>
struct gradient_of_row {
  A top, factor, subtract, own;
};
/// Gradients of this rank's columns. Of: `of.row(i)` has a row's numbers without `own`, `of.own(i, logit)` that.
template <bool Capped, bool Weighted, class Z, class D, class I, class Of>
struct gradient_of_shard : rows_of_shard<Z, I> {
  using rows_of_shard<Z, I>::logits;
  static constexpr row_passes passes = sizeof(D) == sizeof(Z) ? row_passes::maps : row_passes::several;
  using A = accumulator_t<Z>;
  using V = simd::vec<simd::cuda, A>;

  matrix_view<D> dlogits;
  const A* weight;  ///< of this rank's classes; null: 1
  Of rows;
  tigon::detail::logits_kind<Capped, A> kind;
  tempered_powers<exponentials_for<D>, A> powers{1.0};

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride) &&
           gpu::begins_accesses<N>(dlogits.data, dlogits.row_stride);
  }

  template <class Part, class Label>
  TIGON_DEVICE_INLINE void row(Part& part, std::size_t i, const Label& label, no_state) const {
    if (!label.counts) return part.clear(dlogits.row(i));
    const gradient_of_row<A> of = rows.row(i);
    const auto from = kind.from(of.top);
    part.template arrive<D>();
    part.map(dlogits.row(i), [&](unsigned j, const auto& e) {
      return mapped<D>(e, [&](A v, int u) {
        A p;
        if constexpr (Capped)
          p = exponential(from.distance(V(v)).r);
        else
          p = powers.of(v - of.top);
        A d = p * of.factor;
        if constexpr (Weighted) d -= (weight == nullptr ? A(1) : weight[j + static_cast<unsigned>(u)]) * of.subtract;
        if constexpr (Capped) d *= from.both(V(v)).slope.r;
        return normal_product(d, A(1));
      });
    });
    if (label.owned && part.has(label.column))
      dlogits.row(i)[label.column] = as_element<D>(rows.own(i, static_cast<A>(label.own)));
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_RANKS_HPP

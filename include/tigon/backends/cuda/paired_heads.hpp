// Heads of q and of k on a GPU, each a row of a few lanes: the pairs of columns of a head, and the thread that has some
// of them.
#ifndef TIGON_BACKENDS_CUDA_PAIRED_HEADS_HPP
#define TIGON_BACKENDS_CUDA_PAIRED_HEADS_HPP

#include <tigon/backends/cuda/rotary.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/norm/rms_norm_program.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// n / by for n < 2^31, by a product.
struct divisor {
  unsigned by, shift = 0, factor;  ///< factor: 2^(31 + shift) / by, rounded up

  explicit divisor(std::size_t of) : by(static_cast<unsigned>(std::max<std::size_t>(of, 1))) {
    while ((std::uint64_t{1} << shift) < by) ++shift;
    factor = static_cast<unsigned>(((std::uint64_t{1} << (31 + shift)) + by - 1) / by);
  }
  TIGON_DEVICE_INLINE unsigned divides(unsigned n) const {
    return static_cast<unsigned>((std::uint64_t{n} * factor) >> (31 + shift));
  }
};

/// The columns of a head in pairs: those that are rotated, then the rest, the first half of it with the second. Of an
/// odd rest the last pair lacks its second column.
struct paired_columns {
  std::size_t dim, half, first, rest, other;
  bool neighbours;

  explicit paired_columns(std::size_t d, const tigon::detail::rotated_part& part)
      : dim(d),
        half(part.half()),
        first(part.first),
        rest(d - part.count),
        other(part.first == 0 ? part.count : 0),
        neighbours(part.pairs == rotary_pairs::neighbours) {}
  TIGON_INLINE std::size_t second_of_rest() const { return (rest + 1) / 2; }
  TIGON_INLINE std::size_t pairs() const { return half + second_of_rest(); }
  TIGON_DEVICE_INLINE bool rotated(std::size_t j) const { return j < half; }
  TIGON_DEVICE_INLINE bool side_by_side(std::size_t j) const { return neighbours && rotated(j); }
  /// The first column of pair j, and how far on the second is, of which there may be none.
  TIGON_DEVICE_INLINE std::size_t column(std::size_t j) const {
    return rotated(j) ? first + (neighbours ? 2 * j : j) : other + j - half;
  }
  TIGON_DEVICE_INLINE std::size_t apart(std::size_t j) const {
    return rotated(j) ? (neighbours ? std::size_t{1} : half) : second_of_rest();
  }
  TIGON_DEVICE_INLINE bool both(std::size_t j) const { return rotated(j) || j - half + second_of_rest() < rest; }
  /// Column `of` of pair j + k of a thread that has the pairs from j on.
  TIGON_DEVICE_INLINE std::size_t column_of(std::size_t j, unsigned k, bool second) const {
    const std::size_t u = column(j) + (side_by_side(j) ? 2 * k : k);
    return second ? u + apart(j) : u;
  }

  template <int P, class T>
  TIGON_DEVICE_INLINE column_pairs<P, T> load(const T* row, std::size_t j) const {
    column_pairs<P, T> c;
    if (P == 1 && !both(j)) {
      c.u[0] = static_cast<typename column_pairs<P, T>::A>(row[column(j)]), c.v[0] = 0;
    } else {
      c.load(row + column(j), apart(j), side_by_side(j));
    }
    return c;
  }
  template <int P, class T>
  TIGON_DEVICE_INLINE void store(const column_pairs<P, T>& c, T* row, std::size_t j) const {
    if (P == 1 && !both(j))
      row[column(j)] = as_element<T>(c.u[0]);
    else
      c.store(row + column(j), apart(j), side_by_side(j));
  }
  template <int P>
  bool divides() const {
    return half % P == 0 && first % P == 0 && rest % (2 * P) == 0 && other % P == 0;
  }
};

/// P pairs from j on of a thread that has no others, by two accesses.
template <int P>
struct pairs_of_thread {
  unsigned first, second;  ///< where the accesses begin
  bool interleaved, rotated;

  TIGON_DEVICE_INLINE pairs_of_thread(const paired_columns& columns, std::size_t j)
      : first(static_cast<unsigned>(columns.column(j))),
        interleaved(columns.side_by_side(j)),
        rotated(columns.rotated(j)) {
    second = first + (interleaved ? P : static_cast<unsigned>(columns.apart(j)));
  }
  template <class T>
  TIGON_DEVICE_INLINE void load(stored_pairs<P, T>& to, const T* row) const {
    to.a.load(row + first), to.b.load(row + second);
  }
  template <class T>
  TIGON_DEVICE_INLINE column_pairs<P, T> unpacked(const stored_pairs<P, T>& from) const {
    using A = accumulator_t<T>;
    column_pairs<P, T> c;
    const auto at = [&](int k) { return k < P ? from.a.template get<A>(k % P) : from.b.template get<A>(k % P); };
#pragma unroll
    for (int k = 0; k < P; ++k) {
      c.u[k] = interleaved ? at(2 * k) : at(k);
      c.v[k] = interleaved ? at(2 * k + 1) : at(P + k);
    }
    return c;
  }
};

/// The heads of q, or of k.
template <class T, class W>
struct normed_side {
  heads_view<const T> x, dy;
  heads_view<T> out;
  const W* w;  ///< null: ones
  accumulator_t<T> offset;
  std::size_t rows;
  divisor heads;

  TIGON_DEVICE_INLINE bool wanted(bool sums) const { return out.data != nullptr || sums; }
  template <int P>
  bool wide() const {
    return begins_accesses<P>(x) && begins_accesses<P>(dy) && begins_accesses<P>(out) && begins_accesses<P>(w, 0);
  }
};
template <class T, class W, class U>
struct normed_heads {
  using A = accumulator_t<T>;
  normed_side<T, W> side[2];
  paired_columns columns;
  angles_of_tables<U> angles;
  A eps;

  divisor seq_len;

  /// A row of a side.
  struct place {
    unsigned b, h, s, token;
  };
  TIGON_DEVICE_INLINE place of(const normed_side<T, W>& side_of, std::size_t row) const {
    const auto i = static_cast<unsigned>(row);
    const unsigned token = side_of.heads.divides(i), b = seq_len.divides(token);
    return {b, i - token * side_of.heads.by, token - b * seq_len.by, token};
  }
  /// offset + w of the pairs from j on.
  template <int P>
  TIGON_DEVICE_INLINE column_pairs<P, W> weights(const normed_side<T, W>& side_of, std::size_t j) const {
    column_pairs<P, W> g;
    if (side_of.w != nullptr)
      g = columns.load<P>(side_of.w, j);
    else
#pragma unroll
      for (int k = 0; k < P; ++k) g.u[k] = g.v[k] = 1;
    return g;
  }
  template <int P>
  TIGON_DEVICE_INLINE void rotate(column_pairs<P, T>& c, const place& of, std::size_t j, A sign) const {
    if (!columns.rotated(j)) return;
    A cs[P], zs[P];
    angles.template load<P>(token_place{of.token, of.b, of.s}, j, cs, zs);
    c.rotate(cs, zs, sign);
  }
};

/// A thread of a head: pairs lane P, ... of it, which it keeps where they are all; otherwise every pass reads them.
template <unsigned Lanes, int P, bool Kept, class T, class W, class U>
struct head_thread {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  using group = gpu::group<Lanes>;
  const normed_heads<T, W, U>& all;
  const normed_side<T, W>& side;
  typename normed_heads<T, W, U>::place at;
  const T* from;

  TIGON_DEVICE_INLINE head_thread(const normed_heads<T, W, U>& heads, const normed_side<T, W>& of, std::size_t i)
      : head_thread(heads, of, heads.of(of, i)) {}
  TIGON_DEVICE_INLINE head_thread(const normed_heads<T, W, U>& heads, const normed_side<T, W>& of,
                                  typename normed_heads<T, W, U>::place place)
      : all(heads), side(of), at(place), from(of.x.at(at.b, at.h, at.s)) {}
  static TIGON_DEVICE_INLINE std::size_t first_pair() { return group::lane() * std::size_t{P}; }
  /// f(j) for the pairs of this thread.
  template <class F>
  TIGON_DEVICE_INLINE void each(F f) const {
    const std::size_t pairs = all.columns.pairs();
    if constexpr (Kept) {
      if (first_pair() < pairs) f(first_pair());
    } else {
      for (std::size_t j = first_pair(); j < pairs; j += Lanes * std::size_t{P}) f(j);
    }
  }
  TIGON_DEVICE_INLINE column_pairs<P, T> columns_of(const T* row, std::size_t j) const {
    return all.columns.template load<P>(row, j);
  }
  /// 1 / rms of the head from its sum of squares, which is made again at another scale where it leaves the range.
  TIGON_DEVICE_INLINE A rstd(A squares) const {
    const tigon::detail::inverse_rms<A> rms{static_cast<A>(all.columns.dim), all.eps};
    typename tigon::detail::inverse_rms<A>::state state;
    while (rms.again(state, squares)) {
      A sum[1] = {0};
      each([&](std::size_t j) {
        const auto x = columns_of(from, j);
#pragma unroll
        for (int k = 0; k < P; ++k) sum[0] += rms.reduce(state, V(x.u[k])).r + rms.reduce(state, V(x.v[k])).r;
      });
      group::template reduce<add>(sum);
      squares = sum[0];
    }
    return rms.finish(state, squares);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_PAIRED_HEADS_HPP

// RMS norm of heads and their rotation on a GPU: a head is a row of a few lanes, each of which has pairs of columns that are
// rotated together.
#ifndef TIGON_BACKENDS_CUDA_QK_NORM_ROPE_HPP
#define TIGON_BACKENDS_CUDA_QK_NORM_ROPE_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/rotary.hpp>
#include <tigon/ops/rotary/qk_norm_rope_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// The columns of a head in pairs: those that are rotated, then the rest, the first half of it with the second. Of an odd rest
/// the last pair lacks its second column.
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

/// The heads of q, or of k.
template <class T, class W>
struct normed_side {
  heads_view<const T> x, dy;
  heads_view<T> out;
  const W* w;  ///< null: ones
  accumulator_t<T> offset;
  std::size_t rows;

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

  /// A row of a side.
  struct place {
    std::size_t b, h, s, token;
  };
  TIGON_DEVICE_INLINE place of(const normed_side<T, W>& side_of, std::size_t i) const {
    const std::size_t token = i / side_of.x.heads, b = token / side_of.x.seq_len;
    return {b, i - token * side_of.x.heads, token - b * side_of.x.seq_len, token};
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
  TIGON_DEVICE_INLINE void rotate(column_pairs<P, T>& c, std::size_t token, std::size_t j, A sign) const {
    if (!columns.rotated(j)) return;
    A cs[P], zs[P];
    angles.template load<P>(token, j, cs, zs);
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
      : all(heads), side(of), at(heads.of(of, i)), from(of.x.at(at.b, at.h, at.s)) {}
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

/// Threads of a block, which has a head for every `Lanes` of them.
inline constexpr unsigned threads_of_heads = 128;
template <unsigned Lanes, bool Kept>
constexpr unsigned head_threads = Kept ? threads_of_heads : Lanes;

template <unsigned Lanes, int P, bool Kept, casting C, class T, class W, class U>
__global__ void __launch_bounds__(threads_of_heads)
    norm_and_rotate_heads(const __grid_constant__ normed_heads<T, W, U> all) {
  using thread = head_thread<Lanes, P, Kept, T, W, U>;
  using A = accumulator_t<T>;
  using V = typename thread::V;
  using group = typename thread::group;
  const normed_side<T, W>& side = all.side[blockIdx.y];
  const std::size_t first = blockIdx.x * std::size_t{group::count()}, i = first + group::index();
  if (first >= side.rows) return;
  const bool here = i < side.rows;
  const thread head(all, side, here ? i : side.rows - 1);
  column_pairs<P, T> kept;
  A squares[1] = {0};
  head.each([&](std::size_t j) {
    kept = head.columns_of(head.from, j);
#pragma unroll
    for (int k = 0; k < P; ++k) squares[0] += kept.u[k] * kept.u[k] + kept.v[k] * kept.v[k];
  });
  group::template reduce<add>(squares);
  const A r = head.rstd(squares[0]);
  if (!here) return;
  head.each([&](std::size_t j) {
    if constexpr (!Kept) kept = head.columns_of(head.from, j);
    const auto g = all.template weights<P>(side, j);
    const auto norm = [&](A x, auto w) {
      return (tigon::detail::cast_normalised<C, T>(V(x) * V(r)) * (V(static_cast<A>(w)) + V(side.offset))).r;
    };
#pragma unroll
    for (int k = 0; k < P; ++k) kept.u[k] = norm(kept.u[k], g.u[k]), kept.v[k] = norm(kept.v[k], g.v[k]);
    all.rotate(kept, head.at.token, j, A(1));
    all.columns.store(kept, side.out.at(head.at.b, head.at.h, head.at.s), j);
  });
}

/// The gradients of a head that f32 does not hold; own: where its part of dw is added, or null.
template <unsigned Lanes, int P, bool Kept, class T, class W, class U, class Program>
TIGON_DEVICE_NOINLINE void head_in_f64(const normed_heads<T, W, U>& all, const normed_side<T, W>& side, std::size_t i,
                                       Program program, accumulator_t<T> r, accumulator_t<T>* own) {
  using thread = head_thread<Lanes, P, Kept, T, W, U>;
  using A = accumulator_t<T>;
  using D = simd::vec<simd::cuda, double>;
  const thread head(all, side, i);
  const T* const dy = side.dy.at(head.at.b, head.at.h, head.at.s);
  const auto gradient = [&](std::size_t j) {
    auto g = head.columns_of(dy, j);
    all.rotate(g, head.at.token, j, A(-1));
    return g;
  };
  double sums[3] = {0, 0, 0};
  head.each([&](std::size_t j) {
    const auto x = head.columns_of(head.from, j), g = gradient(j);
    const auto w = all.template weights<P>(side, j);
    const auto add_one = [&](double d, double u, double f) {
      const auto terms = program.reduce(r, D(d), D(u), D(f));
      for (int k = 0; k < 3; ++k) sums[k] += terms.v[k].r;
    };
    for (int k = 0; k < P; ++k) {
      add_one(g.u[k], x.u[k], w.u[k]);
      if (P > 1 || all.columns.both(j)) add_one(g.v[k], x.v[k], w.v[k]);
    }
  });
  thread::group::template reduce<add>(sums);
  const auto value = program.finish(std::array<double, 3>{sums[0], sums[1], sums[2]}, r);
  head.each([&](std::size_t j) {
    const auto x = head.columns_of(head.from, j), g = gradient(j);
    const auto w = all.template weights<P>(side, j);
    column_pairs<P, T> dx;
    for (int k = 0; k < P; ++k) {
      dx.u[k] = static_cast<A>(program.dx(value, D(g.u[k]), D(x.u[k]), D(w.u[k])).r);
      dx.v[k] = static_cast<A>(program.dx(value, D(g.v[k]), D(x.v[k]), D(w.v[k])).r);
      if (own == nullptr) continue;
      A* const u = own + all.columns.column_of(j, k, false);
      *u = static_cast<A>(program.dw(value, D(g.u[k]), D(x.u[k]), D(*u)).r);
      if (P == 1 && !all.columns.both(j)) continue;
      A* const v = own + all.columns.column_of(j, k, true);
      *v = static_cast<A>(program.dw(value, D(g.v[k]), D(x.v[k]), D(*v)).r);
    }
    if (side.out.data != nullptr) all.columns.store(dx, side.out.at(head.at.b, head.at.h, head.at.s), j);
  });
}

/// The heads of a task, and with partials their sums of dw: a row for every task of q, then of k.
template <unsigned Lanes, int P, bool Kept, casting C, class T, class W, class U>
__global__ void __launch_bounds__(head_threads<Lanes, Kept>, Kept ? 5 : 20)
    head_gradients(const __grid_constant__ normed_heads<T, W, U> all, std::size_t per_task, unsigned tasks_of_q,
                   accumulator_t<T>* partials, std::size_t stride) {
  using thread = head_thread<Lanes, P, Kept, T, W, U>;
  using A = accumulator_t<T>;
  using V = typename thread::V;
  using group = typename thread::group;
  const bool of_k = blockIdx.x >= tasks_of_q;
  const normed_side<T, W>& side = all.side[of_k];
  const std::size_t begin = (blockIdx.x - (of_k ? tasks_of_q : 0)) * per_task,
                    end = side.rows < begin + per_task ? side.rows : begin + per_task;
  A* const own = partials == nullptr ? nullptr : partials + blockIdx.x * stride;
  constexpr unsigned groups = head_threads<Lanes, Kept> / Lanes, most_rows = 64 * groups;
  __shared__ bool in_f64[most_rows];
  for (unsigned k = threadIdx.x; k < most_rows; k += blockDim.x) in_f64[k] = false;
  column_pairs<P, T> dw;
#pragma unroll
  for (int k = 0; k < P; ++k) dw.u[k] = dw.v[k] = 0;
  if (!Kept && own != nullptr)
    for (std::size_t j = threadIdx.x; j < all.columns.dim; j += blockDim.x) own[j] = 0;
  __syncthreads();
  const tigon::detail::rms_norm_gradient<C, T, A> program{static_cast<A>(all.columns.dim), side.offset, all.eps};
  for (std::size_t i = begin + group::index(); i < end; i += group::count()) {
    const thread head(all, side, i);
    const T* const dy = side.dy.at(head.at.b, head.at.h, head.at.s);
    column_pairs<P, T> x, g;
    const auto load = [&](std::size_t j) {
      x = head.columns_of(head.from, j), g = head.columns_of(dy, j);
      all.rotate(g, head.at.token, j, A(-1));
    };
    A sums[2] = {0, 0};
    head.each([&](std::size_t j) {
      load(j);
      const auto w = all.template weights<P>(side, j);
#pragma unroll
      for (int k = 0; k < P; ++k) {
        sums[0] += x.u[k] * x.u[k] + x.v[k] * x.v[k];
        sums[1] += g.u[k] * (static_cast<A>(w.u[k]) + side.offset) * x.u[k] +
                   g.v[k] * (static_cast<A>(w.v[k]) + side.offset) * x.v[k];
      }
    });
    group::template reduce<add>(sums);
    const A r = head.rstd(sums[0]);
    const auto value = program.finish(sums[1], r);
    if (program.in_f64(value)) {
      if (group::lane() == 0) in_f64[i - begin] = true;
      continue;
    }
    head.each([&](std::size_t j) {
      if constexpr (!Kept) load(j);
      const auto w = all.template weights<P>(side, j);
      column_pairs<P, T> dx;
#pragma unroll
      for (int k = 0; k < P; ++k) {
        dx.u[k] = program.dx(value, V(g.u[k]), V(x.u[k]), V(static_cast<A>(w.u[k]))).r;
        dx.v[k] = program.dx(value, V(g.v[k]), V(x.v[k]), V(static_cast<A>(w.v[k]))).r;
        if constexpr (Kept) {
          dw.u[k] = program.dw(value, V(g.u[k]), V(x.u[k]), V(dw.u[k])).r;
          dw.v[k] = program.dw(value, V(g.v[k]), V(x.v[k]), V(dw.v[k])).r;
        } else if (own != nullptr) {
          A* const u = own + all.columns.column_of(j, k, false);
          *u = program.dw(value, V(g.u[k]), V(x.u[k]), V(*u)).r;
          if (P == 1 && !all.columns.both(j)) continue;
          A* const v = own + all.columns.column_of(j, k, true);
          *v = program.dw(value, V(g.v[k]), V(x.v[k]), V(*v)).r;
        }
      }
      if (side.out.data != nullptr) all.columns.store(dx, side.out.at(head.at.b, head.at.h, head.at.s), j);
    });
  }
  if constexpr (Kept) {
    if (own != nullptr) {  // the groups of a block, in their order
      __shared__ A of_group[groups][Lanes * 2 * P];
#pragma unroll
      for (int k = 0; k < P; ++k) {
        of_group[group::index()][group::lane() * 2 * P + k] = dw.u[k];
        of_group[group::index()][group::lane() * 2 * P + P + k] = dw.v[k];
      }
      __syncthreads();
      for (unsigned e = threadIdx.x; e < Lanes * 2 * P; e += blockDim.x) {
        const std::size_t j = e / (2 * P) * std::size_t{P};
        const unsigned k = e % (2 * P);
        if (j >= all.columns.pairs() || (P == 1 && k == 1 && !all.columns.both(j))) continue;
        A sum(0);
        for (unsigned of = 0; of < groups; ++of) sum += of_group[of][e];
        own[all.columns.column_of(j, k % P, k >= P)] = sum;
      }
    }
  }
  __syncthreads();
  if (group::index() != 0) return;
  for (std::size_t i = begin; i < end; ++i) {
    if (!in_f64[i - begin]) continue;
    A sums[1] = {0};
    const thread head(all, side, i);
    head.each([&](std::size_t j) {
      const auto x = head.columns_of(head.from, j);
#pragma unroll
      for (int k = 0; k < P; ++k) sums[0] += x.u[k] * x.u[k] + x.v[k] * x.v[k];
    });
    group::template reduce<add>(sums);
    const A r = head.rstd(sums[0]);
    if (const auto wide = program.in_f64(program.finish(A(0), r)))
      head_in_f64<Lanes, P, Kept>(all, side, i, *wide, r, own);
  }
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::qk_norm_rope, backends::cuda> : kernel<op::qk_norm_rope, backends::generic> {
  template <backend B, element T, element W, element U>
  static void forward(inputs<T> x, weights<W> w, rope_tables<const U> tables, qk_heads<T> y, qk_norm_rope_options opt,
                      context& ctx) {
    const auto all = heads<T, W, U>(x, x, w, tables, y.q, y.k, opt);
    const std::size_t rows = std::max(all.side[0].rows, all.side[1].rows);
    if (rows == 0) return;
    with_rounding<T>(opt.casting, [&](auto rule) {
      with_lanes(all, [&]<unsigned Lanes, int P, bool Kept>() {
        constexpr unsigned threads = gpu::head_threads<Lanes, Kept>;
        gpu::launch(ctx, gpu::norm_and_rotate_heads<Lanes, P, Kept, rule.value, T, W, U>,
                    dim3(gpu::blocks(detail::ceil_div(rows, threads / Lanes)), 2), threads, all);
      });
    });
  }

  template <backend B, element T, element W, element U>
  static void backward(inputs<T> dy, inputs<T> x, weights<W> w, rope_tables<const U> tables, outputs<T, W> to,
                       qk_norm_rope_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const bool sums = to.dw_q.data != nullptr || to.dw_k.data != nullptr;
    auto all = heads<T, W, U>(dy, x, w, tables, to.dq, to.dk, opt);
    if (to.dq.data == nullptr && to.dw_q.data == nullptr) all.side[0].rows = 0;
    if (to.dk.data == nullptr && to.dw_k.data == nullptr) all.side[1].rows = 0;
    const std::size_t d = x.q.head_dim, stride = workspace::padded<A>(d);
    workspace::frame frame(ctx.workspace());
    A* partials = nullptr;
    std::size_t tasks[2] = {0, 0};
    with_rounding<T>(opt.casting, [&](auto rule) {
      with_lanes(all, [&]<unsigned Lanes, int P, bool Kept>() {
        constexpr unsigned threads = gpu::head_threads<Lanes, Kept>;
        const std::size_t rows = all.side[0].rows + all.side[1].rows;
        const std::size_t per_task = gpu::rows_of_task(rows, threads / Lanes, 6);
        for (const int of : {0, 1}) tasks[of] = detail::ceil_div(all.side[of].rows, per_task);
        if (tasks[0] + tasks[1] == 0) return;
        if (sums) partials = frame.template take<A>((tasks[0] + tasks[1]) * stride);
        gpu::launch(ctx, gpu::head_gradients<Lanes, P, Kept, rule.value, T, W, U>, gpu::blocks(tasks[0] + tasks[1]),
                    threads, all, per_task, static_cast<unsigned>(tasks[0]), partials, stride);
      });
    });
    const auto combine = [&](vector_view<W> dw, std::size_t first, std::size_t count) {
      if (dw)
        gpu::launch(ctx, gpu::add_tasks<A, W>, gpu::blocks(detail::ceil_div(d, gpu::columns_of_block)), 256,
                    static_cast<const A*>(partials + first * stride), count, stride, gpu::columns(d), dw.data,
                    std::size_t{0}, opt.dw == gradient::accumulate);
    };
    combine(to.dw_q, 0, tasks[0]), combine(to.dw_k, tasks[0], tasks[1]);
  }

 private:
  template <class T, class W, class U>
  static gpu::normed_heads<T, W, U> heads(inputs<T> dy, inputs<T> x, weights<W> w, rope_tables<const U> tables,
                                          heads_view<T> q_out, heads_view<T> k_out, qk_norm_rope_options opt) {
    using A = accumulator_t<T>;
    const std::size_t tokens = x.q.batch * x.q.seq_len;
    const auto offset = [&](in_vector<W> of) { return of ? static_cast<A>(opt.offset) : A(0); };
    return {
        {{x.q, dy.q, q_out, w.q.data, offset(w.q), tokens * x.q.heads},
         {x.k, dy.k, k_out, w.k.data, offset(w.k), tokens * x.k.heads}},
        gpu::paired_columns(x.q.head_dim, detail::rotated_part(x.q.head_dim, opt.rotary_dim, opt.columns, opt.pairs)),
        {tables.cos, tables.sin, x.q.seq_len, tables.cos.rows == x.q.seq_len},
        static_cast<A>(opt.eps)};
  }
  /// run<lanes of a head, pairs of a thread, whether these are all>()
  template <class T, class W, class U, class Run>
  static void with_lanes(const gpu::normed_heads<T, W, U>& all, Run run) {
    constexpr int N = static_cast<int>(gpu::access_bytes / sizeof(T));
    const bool wide = all.columns.template divides<N>() && all.side[0].template wide<N>() &&
                      all.side[1].template wide<N>() && all.angles.template wide<N>();
    const std::size_t threads = all.columns.pairs() / N;
    if (!wide)
      run.template operator()<32, 1, false>();
    else if (threads <= 4)
      run.template operator()<4, N, true>();
    else if (threads <= 8)
      run.template operator()<8, N, true>();
    else if (threads <= 16)
      run.template operator()<16, N, true>();
    else if (threads <= 32)
      run.template operator()<32, N, true>();
    else
      run.template operator()<32, N, false>();
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_QK_NORM_ROPE_HPP

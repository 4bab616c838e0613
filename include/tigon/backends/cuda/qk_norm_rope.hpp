// RMS norm of heads and their rotation on a GPU: a head is a row of a few lanes, each of which has pairs of columns
// that are rotated together.
#ifndef TIGON_BACKENDS_CUDA_QK_NORM_ROPE_HPP
#define TIGON_BACKENDS_CUDA_QK_NORM_ROPE_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/paired_heads.hpp>
#include <tigon/ops/rotary/qk_norm_rope_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

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
    all.rotate(kept, head.at, j, A(1));
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
    all.rotate(g, head.at, j, A(-1));
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

/// The sums of dw of the groups of a block, in their order, to a row of memory.
template <unsigned Lanes, int P, class A, class Columns>
TIGON_DEVICE_INLINE void store_dw(const Columns& columns, const column_pairs<P, A>& dw, A* own) {
  using group = gpu::group<Lanes>;
  constexpr unsigned groups = threads_of_heads / Lanes;
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
    if (j >= columns.pairs() || (P == 1 && k == 1 && !columns.both(j))) continue;
    A sum(0);
    for (unsigned of = 0; of < groups; ++of) sum += of_group[of][e];
    own[columns.column_of(j, k % P, k >= P)] = sum;
  }
}

/// The heads of a task that are marked, in f64, by the first group of the block.
template <unsigned Lanes, int P, bool Kept, class Program, class T, class W, class U>
TIGON_DEVICE_INLINE void add_heads_in_f64(const normed_heads<T, W, U>& all, const normed_side<T, W>& side,
                                          const Program& program, std::size_t begin, std::size_t end,
                                          const bool* marked, accumulator_t<T>* own) {
  using thread = head_thread<Lanes, P, Kept, T, W, U>;
  using A = accumulator_t<T>;
  if (thread::group::index() != 0) return;
  for (std::size_t i = begin; i < end; ++i) {
    if (!marked[i - begin]) continue;
    A sums[1] = {0};
    const thread head(all, side, i);
    head.each([&](std::size_t j) {
      const auto x = head.columns_of(head.from, j);
#pragma unroll
      for (int k = 0; k < P; ++k) sums[0] += x.u[k] * x.u[k] + x.v[k] * x.v[k];
    });
    thread::group::template reduce<add>(sums);
    const A r = head.rstd(sums[0]);
    if (const auto wide = program.in_f64(program.finish(A(0), r)))
      head_in_f64<Lanes, P, Kept>(all, side, i, *wide, r, own);
  }
}

/// What a thread has of a head in backward.
template <unsigned Lanes, int P, bool Kept, casting C, class T, class W, class U>
struct head_gradient : head_thread<Lanes, P, Kept, T, W, U> {
  using thread = head_thread<Lanes, P, Kept, T, W, U>;
  using A = accumulator_t<T>;
  using V = typename thread::V;
  using program = tigon::detail::rms_norm_gradient<C, T, A>;
  const T* dy;
  column_pairs<P, T> x, g;
  column_pairs<P, W> w;

  TIGON_DEVICE_INLINE head_gradient(const normed_heads<T, W, U>& heads, const normed_side<T, W>& of,
                                    typename normed_heads<T, W, U>::place place)
      : thread(heads, of, place), dy(of.dy.at(this->at.b, this->at.h, this->at.s)) {}
  TIGON_DEVICE_INLINE void load(std::size_t j) {
    x = this->columns_of(this->from, j), g = this->columns_of(dy, j), w = this->all.template weights<P>(this->side, j);
    this->all.rotate(g, this->at, j, A(-1));
  }
  /// Sums of x^2, and of g (offset + w) x.
  TIGON_DEVICE_INLINE void reduce(A (&sums)[2]) {
    this->each([&](std::size_t j) {
      if constexpr (!Kept) load(j);
      const A offset = this->side.offset;
#pragma unroll
      for (int k = 0; k < P; ++k) {
        sums[0] += x.u[k] * x.u[k] + x.v[k] * x.v[k];
        sums[1] +=
            g.u[k] * (static_cast<A>(w.u[k]) + offset) * x.u[k] + g.v[k] * (static_cast<A>(w.v[k]) + offset) * x.v[k];
      }
    });
    thread::group::template reduce<add>(sums);
  }
  /// Stores dx, and adds to dw: in registers, or to a row of memory.
  TIGON_DEVICE_INLINE void map(const program& p, const typename program::row& value, column_pairs<P, A>& dw, A* own) {
    this->each([&](std::size_t j) {
      if constexpr (!Kept) load(j);
      const auto& columns = this->all.columns;
      const auto add_to = [&](A& sum, A d, A u) { sum = p.dw(value, V(d), V(u), V(sum)).r; };
      column_pairs<P, T> dx;
#pragma unroll
      for (int k = 0; k < P; ++k) {
        dx.u[k] = p.dx(value, V(g.u[k]), V(x.u[k]), V(static_cast<A>(w.u[k]))).r;
        dx.v[k] = p.dx(value, V(g.v[k]), V(x.v[k]), V(static_cast<A>(w.v[k]))).r;
        if constexpr (Kept) {
          add_to(dw.u[k], g.u[k], x.u[k]), add_to(dw.v[k], g.v[k], x.v[k]);
        } else if (own != nullptr) {
          add_to(own[columns.column_of(j, k, false)], g.u[k], x.u[k]);
          if (P > 1 || columns.both(j)) add_to(own[columns.column_of(j, k, true)], g.v[k], x.v[k]);
        }
      }
      if (this->side.out.data != nullptr) columns.store(dx, this->side.out.at(this->at.b, this->at.h, this->at.s), j);
    });
  }
};

/// Heads whose pairs are kept, one after the other: x and dy of the next one are on their way while one is reduced. w
/// is read once.
template <unsigned Lanes, int P, casting C, class T, class W, class U>
class coming_heads {
 public:
  using gradient = head_gradient<Lanes, P, true, C, T, W, U>;

  TIGON_DEVICE_INLINE coming_heads(const normed_heads<T, W, U>& all, const normed_side<T, W>& side)
      : all_(all), side_(side), here_(gradient::first_pair() < all.columns.pairs()), pairs_(all.columns, first()) {
    w_ = all.template weights<P>(side, first());
  }
  TIGON_DEVICE_INLINE void bring(std::size_t i) {
    at_ = all_.of(side_, i);
    if (!here_) return;
    pairs_.load(x_, side_.x.at(at_.b, at_.h, at_.s)), pairs_.load(dy_, side_.dy.at(at_.b, at_.h, at_.s));
  }
  /// The one that was brought.
  TIGON_DEVICE_INLINE gradient head() const {
    gradient of(all_, side_, at_);
    if (!here_) return of;
    of.x = pairs_.unpacked(x_), of.g = pairs_.unpacked(dy_), of.w = w_;
    all_.rotate(of.g, at_, first(), accumulator_t<T>(-1));
    return of;
  }

 private:
  TIGON_DEVICE_INLINE std::size_t first() const { return here_ ? gradient::first_pair() : 0; }

  const normed_heads<T, W, U>& all_;
  const normed_side<T, W>& side_;
  bool here_;
  pairs_of_thread<P> pairs_;
  column_pairs<P, W> w_;
  typename normed_heads<T, W, U>::place at_;
  stored_pairs<P, T> x_, dy_;
};

/// The heads of a task, and with partials their sums of dw: a row for every task of q, then of k.
template <unsigned Lanes, int P, bool Kept, casting C, class T, class W, class U>
__global__ void __launch_bounds__(head_threads<Lanes, Kept>, Kept ? 4 : 20)
    head_gradients(const __grid_constant__ normed_heads<T, W, U> all, std::size_t per_task, unsigned tasks_of_q,
                   accumulator_t<T>* partials, std::size_t stride) {
  using A = accumulator_t<T>;
  using group = gpu::group<Lanes>;
  const bool of_k = blockIdx.x >= tasks_of_q;
  const normed_side<T, W>& side = all.side[of_k];
  const std::size_t begin = (blockIdx.x - (of_k ? tasks_of_q : 0)) * per_task,
                    end = side.rows < begin + per_task ? side.rows : begin + per_task;
  A* const own = partials == nullptr ? nullptr : partials + blockIdx.x * stride;
  constexpr unsigned most_rows = 64 * (head_threads<Lanes, Kept> / Lanes);
  __shared__ bool in_f64[most_rows];
  for (unsigned k = threadIdx.x; k < most_rows; k += blockDim.x) in_f64[k] = false;
  column_pairs<P, A> dw;
#pragma unroll
  for (int k = 0; k < P; ++k) dw.u[k] = dw.v[k] = 0;
  if (!Kept && own != nullptr)
    for (std::size_t j = threadIdx.x; j < all.columns.dim; j += blockDim.x) own[j] = 0;
  __syncthreads();
  using gradient = head_gradient<Lanes, P, Kept, C, T, W, U>;
  const typename gradient::program program{static_cast<A>(all.columns.dim), side.offset, all.eps};
  const auto take = [&](gradient head, std::size_t i) {
    A sums[2] = {0, 0};
    head.reduce(sums);
    const auto value = program.finish(sums[1], head.rstd(sums[0]));
    if (!program.in_f64(value))
      head.map(program, value, dw, own);
    else if (group::lane() == 0)
      in_f64[i - begin] = true;
  };
  std::size_t i = begin + group::index();
  if constexpr (Kept) {
    coming_heads<Lanes, P, C, T, W, U> heads(all, side);
    if (i < end) heads.bring(i);
    for (; i < end; i += group::count()) {
      const gradient head = heads.head();
      if (i + group::count() < end) heads.bring(i + group::count());
      take(head, i);
    }
  } else {
    for (; i < end; i += group::count()) take(gradient(all, side, all.of(side, i)), i);
  }
  if constexpr (Kept)
    if (own != nullptr) store_dw<Lanes>(all.columns, dw, own);
  __syncthreads();
  add_heads_in_f64<Lanes, P, Kept>(all, side, program, begin, end, in_f64, own);
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
      gpu::launch_add_tasks<A>(ctx, partials + first * stride, count, stride, 0, {1, d},
                               gpu::sums_of_tasks<W, 1>{{dw.data}, {0}, {opt.dw == gradient::accumulate}});
    };
    if (sums) combine(to.dw_q, 0, tasks[0]), combine(to.dw_k, tasks[0], tasks[1]);
  }

 private:
  template <class T, class W, class U>
  static gpu::normed_heads<T, W, U> heads(inputs<T> dy, inputs<T> x, weights<W> w, rope_tables<const U> tables,
                                          heads_view<T> q_out, heads_view<T> k_out, qk_norm_rope_options opt) {
    using A = accumulator_t<T>;
    const std::size_t tokens = x.q.batch * x.q.seq_len;
    const auto offset = [&](in_vector<W> of) { return of ? static_cast<A>(opt.offset) : A(0); };
    return {
        {{x.q, dy.q, q_out, w.q.data, offset(w.q), heads_of(tokens, x.q.heads), gpu::divisor(x.q.heads)},
         {x.k, dy.k, k_out, w.k.data, offset(w.k), heads_of(tokens, x.k.heads), gpu::divisor(x.k.heads)}},
        gpu::paired_columns(x.q.head_dim, detail::rotated_part(x.q.head_dim, opt.rotary_dim, opt.columns, opt.pairs)),
        {tables.cos, tables.sin, tables.cos.rows == x.q.seq_len},
        static_cast<A>(opt.eps),
        gpu::divisor(x.q.seq_len)};
  }
  /// Of so many tokens, so many that a divisor takes them.
  static std::size_t heads_of(std::size_t tokens, std::size_t heads) {
    return gpu::fitting(workspace::product(tokens, heads), "heads");
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

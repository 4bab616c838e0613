// Rotations of heads on a GPU: threads of a token read its row of the tables once, for all heads of q and of k.
#ifndef TIGON_BACKENDS_CUDA_ROTARY_HPP
#define TIGON_BACKENDS_CUDA_ROTARY_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/rotary/llama4_rope_kernel.hpp>
#include <tigon/ops/rotary/qwen2vl_mrope_kernel.hpp>
#include <tigon/ops/rotary/rope_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// Whether N elements may be accessed at any head.
template <int N, class T>
bool begins_accesses(const heads_view<T>& h) {
  return begins_accesses<N>(h.data, h.batch_stride) && begins_accesses<N>(h.data, h.head_stride) &&
         begins_accesses<N>(h.data, h.seq_stride);
}

/// A token, and where it is in its sequence.
struct token_place {
  unsigned token, b, s;
};

// Cosines and sines of the pairs j, ..., j + P - 1 of a token.

template <class U>
struct angles_of_tables {
  matrix_view<const U> cos, sin;
  bool shared;  ///< by all sequences

  template <int P>
  bool wide() const {
    return begins_accesses<P>(cos.data, cos.row_stride) && begins_accesses<P>(sin.data, sin.row_stride);
  }
  template <int P, class A>
  TIGON_DEVICE_INLINE void load(token_place at, std::size_t j, A (&c)[P], A (&z)[P]) const {
    const std::size_t row = shared ? at.s : at.token;
    elements<P, U> cs, zs;
    cs.load(cos.data + row * cos.row_stride + j), zs.load(sin.data + row * sin.row_stride + j);
#pragma unroll
    for (int u = 0; u < P; ++u) c[u] = cs.template get<A>(u), z[u] = zs.template get<A>(u);
  }
};
/// Both beside one another.
template <class U>
struct angles_of_pairs {
  matrix_view<const U> freqs;
  bool shared;

  template <int P>
  bool wide() const {
    return begins_accesses<2 * P>(freqs.data, freqs.row_stride);
  }
  template <int P, class A>
  TIGON_DEVICE_INLINE void load(token_place at, std::size_t j, A (&c)[P], A (&z)[P]) const {
    const U* const f = freqs.data + std::size_t{shared ? at.s : at.token} * freqs.row_stride + 2 * j;
    if constexpr (P == 1) {
      c[0] = static_cast<A>(f[0]), z[0] = static_cast<A>(f[1]);
    } else {
      elements<2 * P, U> e;
      e.load(f);
#pragma unroll
      for (int u = 0; u < P; ++u) c[u] = e.template get<A>(2 * u), z[u] = e.template get<A>(2 * u + 1);
    }
  }
};
/// Sections of pairs have tables of their own.
template <class U>
struct angles_of_sections {
  matrix_view<const U> cos, sin;
  std::size_t tokens, end_0, end_1;

  template <int P>
  bool wide() const {
    return begins_accesses<P>(cos.data, cos.row_stride) && begins_accesses<P>(sin.data, sin.row_stride);
  }
  TIGON_DEVICE_INLINE std::size_t section(std::size_t j) const { return j < end_0 ? 0 : j < end_1 ? 1 : 2; }
  template <int P, class A>
  TIGON_DEVICE_INLINE void load(token_place at, std::size_t j, A (&c)[P], A (&z)[P]) const {
    if (P > 1 && section(j) == section(j + P - 1)) {
      const std::size_t row = section(j) * tokens + at.token;
      elements<P, U> cs, zs;
      cs.load(cos.data + row * cos.row_stride + j), zs.load(sin.data + row * sin.row_stride + j);
#pragma unroll
      for (int u = 0; u < P; ++u) c[u] = cs.template get<A>(u), z[u] = zs.template get<A>(u);
      return;
    }
#pragma unroll
    for (int u = 0; u < P; ++u) {
      const std::size_t row = section(j + u) * tokens + at.token;
      c[u] = static_cast<A>(cos.data[row * cos.row_stride + j + u]);
      z[u] = static_cast<A>(sin.data[row * sin.row_stride + j + u]);
    }
  }
};

/// P pairs of columns of a head: P columns and their partners `half` columns on, or 2 P columns.
template <int P, class T>
struct column_pairs {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  A u[P], v[P];

  TIGON_DEVICE_INLINE void load(const T* from, std::size_t half, bool neighbours) {
    if (neighbours && P > 1) {
      elements<2 * P, T> e;
      e.load(from);
#pragma unroll
      for (int k = 0; k < P; ++k) u[k] = e.template get<A>(2 * k), v[k] = e.template get<A>(2 * k + 1);
    } else {
      elements<P, T> a, b;
      a.load(from), b.load(from + (neighbours ? 1 : half));
#pragma unroll
      for (int k = 0; k < P; ++k) u[k] = a.template get<A>(k), v[k] = b.template get<A>(k);
    }
  }
  TIGON_DEVICE_INLINE void store(T* to, std::size_t half, bool neighbours) const {
    if (neighbours && P > 1) {
      A all[2 * P];
#pragma unroll
      for (int k = 0; k < P; ++k) all[2 * k] = u[k], all[2 * k + 1] = v[k];
      elements<2 * P, T> e;
      e.set_all(all);
      e.store(to);
    } else {
      elements<P, T> a, b;
      a.set_all(u), b.set_all(v);
      a.store(to), b.store(to + (neighbours ? 1 : half));
    }
  }
  TIGON_DEVICE_INLINE void rotate(const A (&c)[P], const A (&z)[P], A sign) {
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const auto turned = tigon::detail::rotation()(V(u[k]), V(v[k]), V(c[k]), V(z[k] * sign));
      u[k] = turned.v[0].r, v[k] = turned.v[1].r;
    }
  }
};

/// The same as they lie in memory.
template <int P, class T>
struct stored_pairs {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  elements<P, T> a, b;

  static TIGON_DEVICE_INLINE std::size_t apart(std::size_t half, bool neighbours) { return neighbours ? P : half; }
  TIGON_DEVICE_INLINE void load(const T* from, std::size_t half, bool neighbours) {
    a.load(from), b.load(from + apart(half, neighbours));
  }
  TIGON_DEVICE_INLINE void rotate_to(T* to, std::size_t half, bool neighbours, const A (&c)[P], const A (&z)[P]) const {
    A first[P], second[P];
    const auto at = [&](int k) { return k < P ? a.template get<A>(k % P) : b.template get<A>(k % P); };
    const auto put = [&](int k, A value) { (k < P ? first : second)[k % P] = value; };
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const A u = neighbours ? at(2 * k) : at(k), v = neighbours ? at(2 * k + 1) : at(P + k);
      const auto turned = tigon::detail::rotation()(V(u), V(v), V(c[k]), V(z[k]));
      if (neighbours)
        put(2 * k, turned.v[0].r), put(2 * k + 1, turned.v[1].r);
      else
        put(k, turned.v[0].r), put(P + k, turned.v[1].r);
    }
    elements<P, T> x, y;
    x.set_all(first), y.set_all(second);
    x.store(to), y.store(to + apart(half, neighbours));
  }
};

/// Heads that are rotated: `half` pairs from column `first` on; `rest` columns from `other` on are copied.
template <class T>
struct heads_to_rotate {
  heads_view<const T> q, k;
  heads_view<T> q_out, k_out;
  std::size_t first, half, other, rest;
  bool neighbours;
  accumulator_t<T> sign;

  TIGON_DEVICE_INLINE unsigned heads() const { return static_cast<unsigned>(q.heads + k.heads); }
  TIGON_DEVICE_INLINE const T* from(token_place at, unsigned h) const {
    return h < q.heads ? q.at(at.b, h, at.s) : k.at(at.b, h - q.heads, at.s);
  }
  TIGON_DEVICE_INLINE T* to(token_place at, unsigned h) const {
    return h < q.heads ? q_out.at(at.b, h, at.s) : k_out.at(at.b, h - q.heads, at.s);
  }
};

/// Heads that a thread has on their way.
inline constexpr unsigned heads_at_once = 4;

/// Threads: along the pairs of a head, P each; over the heads; over tokens.
template <int P, class T, class Angles>
__global__ void __launch_bounds__(256)
    rotate_heads(const __grid_constant__ heads_to_rotate<T> all, const __grid_constant__ Angles angles) {
  using A = accumulator_t<T>;
  const unsigned token = blockIdx.x * blockDim.z + threadIdx.z, seq_len = static_cast<unsigned>(all.q.seq_len);
  if (token >= all.q.batch * all.q.seq_len) return;
  const token_place at{token, token / seq_len, token % seq_len};
  const unsigned step = blockDim.y, heads = all.heads();
  for (std::size_t j = threadIdx.x * std::size_t{P}; j < all.half; j += blockDim.x * std::size_t{P}) {
    A c[P], z[P];
    angles.template load<P>(at, j, c, z);
#pragma unroll
    for (int k = 0; k < P; ++k) z[k] *= all.sign;
    const std::size_t column = all.first + (all.neighbours ? 2 * j : j);
    for (unsigned h = threadIdx.y; h < heads; h += heads_at_once * step) {
      stored_pairs<P, T> pairs[heads_at_once];
#pragma unroll
      for (unsigned k = 0; k < heads_at_once; ++k)
        if (h + k * step < heads) pairs[k].load(all.from(at, h + k * step) + column, all.half, all.neighbours);
#pragma unroll
      for (unsigned k = 0; k < heads_at_once; ++k)
        if (h + k * step < heads) pairs[k].rotate_to(all.to(at, h + k * step) + column, all.half, all.neighbours, c, z);
    }
  }
  for (std::size_t j = threadIdx.x * std::size_t{P}; j < all.rest; j += blockDim.x * std::size_t{P})
    for (unsigned h = threadIdx.y; h < heads; h += step) {
      const T* const from = all.from(at, h);
      T* const to = all.to(at, h);
      if (from == to) break;
      elements<P, T> e;
      e.load(from + all.other + j);
      e.store(to + all.other + j);
    }
}

template <class T, class Angles>
void rotate(context& ctx, const heads_to_rotate<T>& all, const Angles& angles) {
  const std::size_t heads = all.q.heads + all.k.heads, tokens = all.q.batch * all.q.seq_len;
  if (heads == 0 || tokens == 0 || all.q.head_dim == 0) return;
  (void)fitting(tokens, "tokens");
  const auto run = [&](auto p) {
    const std::size_t vectors =
        std::max<std::size_t>(tigon::detail::ceil_div(std::max(all.half, all.rest), p.value), 1);
    const auto x = static_cast<unsigned>(std::min<std::size_t>(vectors, 256));
    const std::size_t passes = std::max<std::size_t>(tigon::detail::ceil_div(heads, 256 / x), heads_at_once);
    const auto y = static_cast<unsigned>(tigon::detail::ceil_div(heads, passes));
    const unsigned z = std::min(std::max(256 / (x * y), 1u), 64u);
    launch(ctx, rotate_heads<p.value, T, Angles>, dim3(blocks(tigon::detail::ceil_div(tokens, z))), dim3(x, y, z), all,
           angles);
  };
  // Pairs of a thread: 16 bytes of each of the two columns, or of neighbours.
  constexpr int N = static_cast<int>(access_bytes / sizeof(T));
  const auto divides = [&](std::size_t n) {
    return all.half % n == 0 && all.first % n == 0 && all.rest % n == 0 && all.other % n == 0;
  };
  const bool heads_wide = begins_accesses<N>(all.q) && begins_accesses<N>(all.k) && begins_accesses<N>(all.q_out) &&
                          begins_accesses<N>(all.k_out);
  if (heads_wide && divides(N) && angles.template wide<N>())
    run(std::integral_constant<int, N>());
  else
    run(std::integral_constant<int, 1>());
}

template <class T>
heads_to_rotate<T> heads_of(in_heads<T> q, in_heads<T> k, heads_view<T> q_out, heads_view<T> k_out,
                            const tigon::detail::rotated_part& part, double sign) {
  return {q,
          k,
          q_out,
          k_out,
          part.first,
          part.half(),
          part.first == 0 ? part.count : 0,
          q.head_dim - part.count,
          part.pairs == rotary_pairs::neighbours,
          static_cast<accumulator_t<T>>(sign)};
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::rope, backends::cuda> : kernel<op::rope, backends::generic> {
  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> q_out,
                      heads_view<T> k_out, rope_options opt, context& ctx) {
    rotate<T, U>(q, k, {cos, sin}, q_out, k_out, opt, 1, ctx);
  }
  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> dq,
                       heads_view<T> dk, rope_options opt, context& ctx) {
    rotate<T, U>(dq_out, dk_out, {cos, sin}, dq, dk, opt, -1, ctx);
  }
  template <class T, class U>
  static void rotate(in_heads<T> q, in_heads<T> k, detail::rotary_tables<U> tables, heads_view<T> q_out,
                     heads_view<T> k_out, rope_options opt, double sign, context& ctx) {
    const detail::rotated_part part(q.head_dim, opt.rotary_dim, opt.columns, opt.pairs);
    gpu::rotate(ctx, gpu::heads_of<T>(q, k, q_out, k_out, part, sign),
                gpu::angles_of_tables<U>{tables.cos, tables.sin, tables.cos.rows == q.seq_len});
  }
};

template <>
struct kernel<op::llama4_rope, backends::cuda> : kernel<op::llama4_rope, backends::generic> {
  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> freqs, heads_view<T> q_out, heads_view<T> k_out,
                      llama4_rope_options opt, context& ctx) {
    rotate<T, U>(q, k, freqs, q_out, k_out, opt, 1, ctx);
  }
  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> freqs, heads_view<T> dq, heads_view<T> dk,
                       llama4_rope_options opt, context& ctx) {
    rotate<T, U>(dq_out, dk_out, freqs, dq, dk, opt, -1, ctx);
  }
  template <class T, class U>
  static void rotate(in_heads<T> q, in_heads<T> k, in_matrix<U> freqs, heads_view<T> q_out, heads_view<T> k_out,
                     llama4_rope_options opt, double sign, context& ctx) {
    const detail::rotated_part part(q.head_dim, whole_head, rotary_columns::first, rotary_pairs::neighbours);
    gpu::rotate(ctx, gpu::heads_of<T>(q, k, q_out, k_out, part, sign),
                gpu::angles_of_pairs<U>{freqs, opt.freqs == rotary_table::shared});
  }
};

template <>
struct kernel<op::qwen2vl_mrope, backends::cuda> : kernel<op::qwen2vl_mrope, backends::generic> {
  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> q_out,
                      heads_view<T> k_out, qwen2vl_mrope_options opt, context& ctx) {
    rotate<T, U>(q, k, {cos, sin}, q_out, k_out, opt, 1, ctx);
  }
  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> dq,
                       heads_view<T> dk, qwen2vl_mrope_options opt, context& ctx) {
    rotate<T, U>(dq_out, dk_out, {cos, sin}, dq, dk, opt, -1, ctx);
  }
  template <class T, class U>
  static void rotate(in_heads<T> q, in_heads<T> k, detail::rotary_tables<U> tables, heads_view<T> q_out,
                     heads_view<T> k_out, qwen2vl_mrope_options opt, double sign, context& ctx) {
    const detail::rotated_part part(q.head_dim, whole_head, rotary_columns::first, rotary_pairs::halves);
    const std::size_t end = opt.sections[0];
    gpu::rotate(ctx, gpu::heads_of<T>(q, k, q_out, k_out, part, sign),
                gpu::angles_of_sections<U>{tables.cos, tables.sin, q.batch * q.seq_len, end, end + opt.sections[1]});
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_ROTARY_HPP

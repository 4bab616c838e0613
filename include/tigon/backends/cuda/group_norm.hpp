// GroupNorm on a GPU: forward a group is a row; backward a channel is, from whose sums those of its group are made.
#ifndef TIGON_BACKENDS_CUDA_GROUP_NORM_HPP
#define TIGON_BACKENDS_CUDA_GROUP_NORM_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/norm/group_norm_kernel.hpp>
#include <tigon/ops/norm/layer_norm_program.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// Operand and output: row i is the channels of group i, `size` rows of a matrix, one behind the other.
template <class T>
struct channels_of_groups {
  using element_type = std::remove_const_t<T>;
  matrix_view<T> m;
  std::size_t size;
  unsigned positions;

  channels_of_groups(matrix_view<T> matrix, std::size_t channels)
      : m(matrix), size(channels), positions(columns(matrix.cols)) {}
  TIGON_DEVICE_INLINE T* at(std::size_t i, std::size_t j) const {
    const unsigned column = static_cast<unsigned>(j), k = column / positions;
    return m.data + (i * size + k) * m.row_stride + (column - k * positions);
  }
  template <int N>
  bool wide() const {
    return positions % N == 0 && begins_accesses<N>(m.data, m.row_stride);
  }
};
template <class T>
constexpr rows::extents extents_of(const channels_of_groups<T>& x) {
  return {x.m.rows / x.size, x.size * x.m.cols};
}
template <class T>
struct operand<channels_of_groups<T>> {
  using element = std::remove_const_t<T>;
  static constexpr int per_column = 1;
  static constexpr bool has_rows = true, for_all_rows = false;
  static TIGON_DEVICE_INLINE const element* at(const channels_of_groups<T>& x, std::size_t i, std::size_t j) {
    return x.at(i, j);
  }
  template <int N>
  static bool wide(const channels_of_groups<T>& x) {
    return x.template wide<N>();
  }
};
template <class T>
struct output<channels_of_groups<T>> {
  using element = T;
  static constexpr int results = 1;
  template <int K, int N, class R>
  static TIGON_DEVICE_INLINE void put(const channels_of_groups<T>& y, std::size_t i, std::size_t j, const R (&r)[N]) {
    const matrix_view<T> one(y.at(i, j), 1, N);
    output<matrix_view<T>>::template put<K>(one, 0, 0, r);
  }
  template <int N>
  static bool wide(const channels_of_groups<T>& y) {
    return y.template wide<N>();
  }
};

/// Operand: a number for every `rows` rows, or for every channel of a group; where there is none, `otherwise`.
template <class W>
struct number_of_channel {
  using element_type = W;
  const W* p;
  unsigned groups, size, positions;
  float otherwise;
  // Divisions of 64 bits would take as long as the rest of a row.
  TIGON_DEVICE_INLINE auto value(std::size_t i, std::size_t j) const {
    using A = accumulator_t<W>;
    if (p == nullptr) return static_cast<A>(otherwise);
    return static_cast<A>(p[static_cast<unsigned>(i) % groups * size + static_cast<unsigned>(j) / positions]);
  }
};
template <class A>
struct number_of_rows {
  using element_type = A;
  const A* p;
  unsigned rows;
  TIGON_DEVICE_INLINE A value(std::size_t i, std::size_t) const { return p[static_cast<unsigned>(i) / rows]; }
};
template <class X>
struct operand_of_numbers {
  using element = typename X::element_type;
  static constexpr bool has_rows = false, for_all_rows = false;
  template <int N>
  static bool wide(const X&) {
    return true;
  }
};
template <class W>
struct operand<number_of_channel<W>> : operand_of_numbers<number_of_channel<W>> {};
template <class A>
struct operand<number_of_rows<A>> : operand_of_numbers<number_of_rows<A>> {};
/// N columns are of one channel: they are where N divides the positions, and elsewhere N is 1.
template <class X>
struct columns_of_numbers {
  decltype(std::declval<const X&>().value(0, 0)) number;
  TIGON_DEVICE_INLINE void load(const X& x, std::size_t i, std::size_t j) { number = x.value(i, j); }
  template <class V>
  TIGON_DEVICE_INLINE V get(int) const {
    return V(static_cast<typename V::value_type>(number));
  }
};
template <int N, class W>
struct columns_of<N, number_of_channel<W>> : columns_of_numbers<number_of_channel<W>> {};
template <int N, class A>
struct columns_of<N, number_of_rows<A>> : columns_of_numbers<number_of_rows<A>> {};

/// Sums of dy c, dy and c over a channel, c = x - mean.
struct sums_of_channel {
  template <class V>
  TIGON_INLINE simd::pack<V, 3> reduce(V dy, V x, V mean) const {
    const V c = x - mean;
    return {{dy * c, dy, c}};
  }
  template <class Sums>
  TIGON_INLINE std::array<double, 3> save(const Sums& s) const {
    return {static_cast<double>(s[0]), static_cast<double>(s[1]), static_cast<double>(s[2])};
  }
};

/// What backward has beside its matrices: sums of channels, and of each group two numbers of dx.
template <class W, class A>
struct group_gradients {
  const W* w;
  const A *mean, *rstd;
  double *product, *sum, *rest;
  A *slope, *level;
  A *dw_share, *db_share;  ///< null: nobody wants them
  std::size_t groups, size, positions;
  double eps;

  TIGON_DEVICE_INLINE double weight(std::size_t i, std::size_t k) const {
    return w == nullptr ? 1.0 : static_cast<double>(static_cast<A>(w[i % groups * size + k]));
  }
  /// Whether group i is computed in f64: of a few values, or such that A does not hold its products.
  TIGON_DEVICE_INLINE bool in_f64(std::size_t i) const {
    return size * positions <= kernel<op::group_norm, backends::generic>::narrow ||
           !tigon::detail::holds_products(rstd[i]);
  }
};
/// A thread for each group.
template <class W, class A>
__global__ void __launch_bounds__(128)
    finish_groups(const __grid_constant__ group_gradients<W, A> of, std::size_t count) {
  const std::size_t i = blockIdx.x * std::size_t{128} + threadIdx.x;
  if (i >= count || of.in_f64(i)) return;
  double product = 0, sum = 0, rest = 0;
  for (std::size_t k = 0; k < of.size; ++k) {
    const double w = of.weight(i, k);
    product += w * of.product[i * of.size + k], sum += w * of.sum[i * of.size + k], rest += of.rest[i * of.size + k];
  }
  const tigon::detail::group_norm_gradient<A> gradient(of.rstd[i], static_cast<double>(of.size * of.positions), product,
                                                       sum, rest);
  of.slope[i] = gradient.slope, of.level[i] = gradient.level;
  if (of.dw_share == nullptr) return;
  for (std::size_t k = 0; k < of.size; ++k) {
    const std::size_t c = i * of.size + k;
    of.dw_share[c] = static_cast<A>(gradient.dw(of.product[c], of.sum[c]));
    of.db_share[c] = static_cast<A>(of.sum[c]);
  }
}
/// dx of a row for every blockIdx.y-th; of groups in f64 nothing.
template <int N, class T, class W, class A>
__global__ void __launch_bounds__(128)
    gradients_of_channels(matrix_view<const T> dy, matrix_view<const T> x, matrix_view<T> dx,
                          const __grid_constant__ group_gradients<W, A> of) {
  using V = simd::vec<simd::cuda, A>;
  for (std::size_t c = blockIdx.y; c < x.rows; c += gridDim.y) {
    const std::size_t i = c / of.size;
    if (of.in_f64(i)) continue;
    const A mean = of.mean[i], scale = static_cast<A>(of.weight(i, c - i * of.size)) * of.rstd[i], slope = of.slope[i],
            level = of.level[i];
    const std::size_t step = gridDim.x * std::size_t{128} * N;
    for (std::size_t j = (blockIdx.x * std::size_t{128} + threadIdx.x) * N; j < x.cols; j += step) {
      elements<N, T> d, v, to;
      d.load(dy.data + c * dy.row_stride + j), v.load(x.data + c * x.row_stride + j);
      A result[N];
#pragma unroll
      for (int u = 0; u < N; ++u) {
        const V centred(v.template get<A>(u) - mean);
        result[u] = fma(V(d.template get<A>(u)), V(scale), fnma(centred, V(slope), V(-level))).r;
      }
      to.set_all(result);
      to.store(dx.data + c * dx.row_stride + j);
    }
  }
}
/// The groups in f64, a block for each.
template <class T, class W, class A>
__global__ void __launch_bounds__(128) groups_in_f64(matrix_view<const T> dy, matrix_view<const T> x, matrix_view<T> dx,
                                                     const __grid_constant__ group_gradients<W, A> of) {
  using V = simd::vec<simd::cuda, double>;
  const std::size_t i = blockIdx.x;
  if (!of.in_f64(i)) return;
  const double n = static_cast<double>(of.size * of.positions), p = tigon::detail::scale_of_row(of.rstd[i]);
  const double r = n == 1 ? 0 : static_cast<double>(of.rstd[i]) / p, mean = of.mean[i] * p;
  const auto each = [&](std::size_t k, auto f) {  // of channel k: f(j, dy, c)
    const std::size_t c = i * of.size + k;
    for (std::size_t j = threadIdx.x; j < of.positions; j += 128)
      f(j, static_cast<double>(static_cast<A>(dy.data[c * dy.row_stride + j])),
        static_cast<double>(static_cast<A>(x.data[c * x.row_stride + j])) * p - mean);
  };
  double s[5] = {0, 0, 0, 0, 0};  // sums of m, c, m m, m c and c c, m = w dy
  for (std::size_t k = 0; k < of.size; ++k)
    each(k, [&](std::size_t, double d, double c) {
      const double m = of.weight(i, k) * d;
      s[0] += m, s[1] += c, s[2] += m * m, s[3] += m * c, s[4] += c * c;
    });
  group<0>::reduce<add>(s);
  const double error = s[1] / n, mean_of_m = s[0] / n;
  const tigon::detail::sums_along_row along{s[2] - s[0] * mean_of_m, s[3] - s[0] * error, s[4] - s[1] * error};
  const tigon::detail::group_norm_gradient<double> gradient(
      r, n, s[3], s[0], s[1], tigon::detail::correction_along_row<A>(along, n, r, of.eps * p * p));
  for (std::size_t k = 0; k < of.size; ++k) {
    double shares[2] = {0, 0};
    each(k, [&](std::size_t j, double d, double c) {
      shares[0] += d * c, shares[1] += d;
      dx.data[(i * of.size + k) * dx.row_stride + j] =
          as_element<T>(static_cast<A>(gradient.dx(V(d), V(c), of.weight(i, k) * r).r * p));
    });
    group<0>::reduce<add>(shares);
    if (threadIdx.x != 0 || of.dw_share == nullptr) continue;
    of.dw_share[i * of.size + k] = static_cast<A>(gradient.dw(shares[0], shares[1]));
    of.db_share[i * of.size + k] = static_cast<A>(shares[1]);
  }
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::group_norm, backends::cuda> : kernel<op::group_norm, backends::generic> {
  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<W> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> mean, std::span<accumulator_t<T>> rstd, group_norm_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t size = opt.channels / opt.groups;
    (void)gpu::fitting(x.rows, "channels of samples");
    const auto of_channel = [&](in_vector<W> v, float otherwise) {
      return gpu::number_of_channel<W>{v.data, gpu::columns(opt.groups), gpu::columns(size), gpu::columns(x.cols),
                                       otherwise};
    };
    reduce_map<B>(ctx, detail::layer_norm_program<A>{static_cast<A>(size * x.cols), static_cast<A>(opt.eps)},
                  reads(gpu::channels_of_groups<const T>(x, size)), map_reads(of_channel(w, 1), of_channel(b, 0)),
                  writes(gpu::channels_of_groups<T>(y, size)), saves(mean.data(), rstd.data()));
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> mean,
                       std::span<const accumulator_t<T>> rstd, norm_gradients<T, vector_view<W>, vector_view<W>> to,
                       group_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t size = opt.channels / opt.groups, groups = x.rows / size;
    (void)gpu::fitting(x.rows, "channels of samples");
    const bool sums = to.dw || to.db;
    workspace::frame frame(ctx.workspace());
    double* const of_channels = frame.template take<double>(3 * x.rows);
    A* const of_groups = frame.template take<A>(2 * groups);
    A* const shares = sums ? frame.template take<A>(2 * x.rows) : nullptr;
    const gpu::group_gradients<W, A> of{w.data,
                                        mean.data(),
                                        rstd.data(),
                                        of_channels,
                                        of_channels + x.rows,
                                        of_channels + 2 * x.rows,
                                        of_groups,
                                        of_groups + groups,
                                        shares,
                                        sums ? shares + x.rows : nullptr,
                                        opt.groups,
                                        size,
                                        x.cols,
                                        opt.eps};
    const auto reduce = [&](auto first) {
      reduce_map<B>(ctx, gpu::sums_of_channel{},
                    reads(first, x, gpu::number_of_rows<A>{mean.data(), gpu::columns(size)}),
                    saves(of.product, of.sum, of.rest));
    };
    if constexpr (sizeof(T) == 2)
      reduce(dy);
    else
      reduce(in_f64(dy));
    if (groups != 0) run<T>(dy, x, to.dx, of, groups, ctx);
    if (!sums) return;
    const in_matrix<A> dw_shares{shares, x.rows / opt.channels, opt.channels},
        db_shares{shares + x.rows, x.rows / opt.channels, opt.channels};
    map_rows<B>(ctx, detail::sum_of_shares{}, reads(dw_shares, db_shares), writes(),
                adds_to(parameter_gradient<W>{to.dw, opt.dparams}, parameter_gradient<W>{to.db, opt.dparams}));
  }

  template <class A>
  static std::size_t numbers_workspace(std::size_t rows, parameters of) {
    return workspace::bytes_for<double>(3, rows) + workspace::bytes_for<A>(2, rows) +
           (of == parameters::frozen ? 0 : workspace::bytes_for<A>(2, rows));
  }

 private:
  template <class T, class W, class A>
  static void run(matrix_view<const T> dy, matrix_view<const T> x, matrix_view<T> dx,
                  const gpu::group_gradients<W, A>& of, std::size_t groups, context& ctx) {
    gpu::launch(ctx, gpu::finish_groups<W, A>, gpu::blocks(detail::ceil_div(groups, 128)), 128, of, groups);
    gpu::launch(ctx, gpu::groups_in_f64<T, W, A>, gpu::blocks(groups), 128, dy, x, dx, of);
    const auto rows = static_cast<unsigned>(std::min<std::size_t>(x.rows, 65535));
    const auto channels = [&](auto n) {
      const std::size_t pieces = detail::ceil_div(detail::ceil_div(x.cols, n.value), std::size_t{256});
      gpu::launch(ctx, gpu::gradients_of_channels<n.value, T, W, A>, dim3(gpu::blocks(pieces), rows), 128, dy, x, dx,
                  of);
    };
    constexpr int N = static_cast<int>(gpu::access_bytes / sizeof(T));
    const auto wide = [&](const auto& m) { return gpu::begins_accesses<N>(m.data, m.row_stride); };
    if (x.cols % N == 0 && wide(dy) && wide(x) && wide(dx))
      channels(std::integral_constant<int, N>());
    else
      channels(std::integral_constant<int, 1>());
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_GROUP_NORM_HPP

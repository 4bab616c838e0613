// The generic kernel of mhc_pre.
#ifndef TIGON_OPS_DEPTH_MHC_PRE_KERNEL_HPP
#define TIGON_OPS_DEPTH_MHC_PRE_KERNEL_HPP

#include <tigon/ops/depth/mhc_pre_options.hpp>
#include <tigon/ops/depth/stream_sums.hpp>

namespace tigon {

/// Bytes of workspace that mhc_pre_forward takes; backward takes none.
template <class B = default_backend, class T>
std::size_t mhc_pre_workspace(std::size_t channels, std::size_t streams, const context& ctx = default_context<B>()) {
  using A = accumulator_t<T>;
  return streams <= detail::mhc_terms ? 0 : simd::scratch_workspace<B, A>(channels, 1, ctx);
}

template <>
struct kernel<op::mhc_pre, backends::generic> {
  template <class A>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> x, in_matrix<accumulator_t<T>> h_pre, matrix_view<T> y, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t n = h_pre.cols;
    for_rows<B, A>(ctx, y.rows, y.cols, {.scratch = n <= detail::mhc_terms ? 0u : 1u}, [=] TIGON_FN(auto row) {
      const auto term = [=](std::size_t h) TIGON_LAMBDA {
        return detail::mhc_term<T, A>{detail::mhc_stream(x, n, h), row.at(h_pre, h)};
      };
      detail::mhc_parts<B>(
          row, [=](auto part) TIGON_LAMBDA { detail::mhc_add_all(part, constant(A(0)), n, term, row.scratch(0), y); });
    });
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_matrix<accumulator_t<T>> h_pre, mhc_pre_gradients<T> to,
                       mhc_pre_options opt, context& ctx) {
    const std::size_t n = h_pre.cols;
    const bool add = opt.dx == gradient::accumulate;
    for_rows<B, accumulator_t<T>>(ctx, dy.rows, dy.cols, [=] TIGON_FN(auto row) {
      if (to.dh_pre.data != nullptr)
        detail::mhc_products(
            row, dy, n, [=](std::size_t h) TIGON_LAMBDA { return detail::mhc_stream(x, n, h); },
            [=](std::size_t h, double sum) TIGON_LAMBDA {
              if (row.first()) row.put(to.dh_pre, h, static_cast<accumulator_t<T>>(sum));
            });
      if (to.dx.data == nullptr) return;
      for (std::size_t h = 0; h < n; ++h) {
        const auto w = row.at(h_pre, h);
        const auto dx = detail::mhc_stream(to.dx, n, h);
        if (add)
          row.map(reads(dy, dx), writes(dx),
                  [=](auto d, auto old) TIGON_LAMBDA { return fma(d, decltype(d)(w), old); });
        else
          row.map(reads(dy), writes(dx), [=](auto d) TIGON_LAMBDA { return d * w; });
      }
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_MHC_PRE_KERNEL_HPP

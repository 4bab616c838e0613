// The generic kernel of mhc_post_res.
#ifndef TIGON_OPS_DEPTH_MHC_POST_RES_KERNEL_HPP
#define TIGON_OPS_DEPTH_MHC_POST_RES_KERNEL_HPP

#include <tigon/ops/depth/mhc_post_res_options.hpp>
#include <tigon/ops/depth/stream_sums.hpp>

namespace tigon {

/// Bytes of workspace that mhc_post_res_forward takes.
template <class B = default_backend, class T>
std::size_t mhc_post_res_workspace(std::size_t channels, std::size_t streams,
                                   const context& ctx = default_context<B>()) {
  using A = accumulator_t<T>;
  return streams < detail::mhc_terms ? 0 : simd::scratch_workspace<B, A>(channels, 1, ctx);
}
/// Bytes of workspace that mhc_post_res_backward takes.
template <class B = default_backend, class T>
std::size_t mhc_post_res_backward_workspace(std::size_t channels, std::size_t streams,
                                            const context& ctx = default_context<B>()) {
  using A = accumulator_t<T>;
  return streams <= detail::mhc_terms ? 0 : simd::scratch_workspace<B, A>(channels, 1, ctx);
}

template <>
struct kernel<op::mhc_post_res, backends::generic> {
  template <class A>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> x, in_matrix<T> f, in_matrix<accumulator_t<T>> h_post,
                      in_matrix<accumulator_t<T>> h_res, matrix_view<T> y, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t n = h_post.cols;
    for_rows<B, A>(ctx, f.rows, f.cols, {.scratch = n < detail::mhc_terms ? 0u : 1u}, [=] TIGON_FN(auto row) {
      detail::mhc_parts<B>(row, [=](auto part) TIGON_LAMBDA {
        for (std::size_t o = 0; o < n; ++o) {
          const auto term = [=](std::size_t i) TIGON_LAMBDA {
            return i < n ? detail::mhc_term<T, A>{detail::mhc_stream(x, n, i), row.at(h_res, o * n + i)}
                         : detail::mhc_term<T, A>{f, row.at(h_post, o)};
          };
          detail::mhc_add_all(part, constant(A(0)), n + 1, term, row.scratch(0), detail::mhc_stream(y, n, o));
        }
      });
    });
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_matrix<T> f, in_matrix<accumulator_t<T>> h_post,
                       in_matrix<accumulator_t<T>> h_res, mhc_post_res_gradients<T> to, mhc_post_res_options opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t n = h_post.cols;
    const bool add = opt.dx == gradient::accumulate;
    for_rows<B, A>(ctx, f.rows, f.cols, {.scratch = n <= detail::mhc_terms ? 0u : 1u}, [=] TIGON_FN(auto row) {
      const auto streams_of_x = [=](std::size_t i) TIGON_LAMBDA { return detail::mhc_stream(x, n, i); };
      const auto streams_of_dy = [=](std::size_t o) TIGON_LAMBDA { return detail::mhc_stream(dy, n, o); };
      if (to.dh_res.data != nullptr)
        for (std::size_t o = 0; o < n; ++o)
          detail::mhc_products(row, streams_of_dy(o), n, streams_of_x, [=](std::size_t i, double sum) TIGON_LAMBDA {
            if (row.first()) row.put(to.dh_res, o * n + i, static_cast<A>(sum));
          });
      if (to.dh_post.data != nullptr)
        detail::mhc_products(row, f, n, streams_of_dy, [=](std::size_t o, double sum) TIGON_LAMBDA {
          if (row.first()) row.put(to.dh_post, o, static_cast<A>(sum));
        });
      detail::mhc_parts<B>(row, [=](auto part) TIGON_LAMBDA {
        if (to.df.data != nullptr)
          detail::mhc_add_all(
              part, constant(A(0)), n,
              [=](std::size_t o) TIGON_LAMBDA {
                return detail::mhc_term<T, A>{streams_of_dy(o), row.at(h_post, o)};
              },
              row.scratch(0), to.df);
        for (std::size_t i = 0; to.dx.data != nullptr && i < n; ++i) {
          const auto term = [=](std::size_t o) TIGON_LAMBDA {
            return detail::mhc_term<T, A>{streams_of_dy(o), row.at(h_res, o * n + i)};
          };
          const auto dx = detail::mhc_stream(to.dx, n, i);
          if (add)
            detail::mhc_add_all(part, dx, n, term, row.scratch(0), dx);
          else
            detail::mhc_add_all(part, constant(A(0)), n, term, row.scratch(0), dx);
        }
      });
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_MHC_POST_RES_KERNEL_HPP

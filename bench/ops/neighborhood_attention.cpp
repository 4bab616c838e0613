#include <tigon/gemm/gemm.hpp>
#include <tigon/ops/neighborhood_attention.hpp>
#include <tigon/ops/softmax.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cmath>
#include <limits>

namespace tigon_bench {
namespace {

using tigon::matrix_view, tigon::transpose;

template <class T>
struct head_gradients {
  matrix_view<T> dq, dk, dv;
};

/// The same as a framework without fusion runs it, a head at a time: all scores of a head, a pass that hides those outside
/// the window, softmax, and products with whole matrices.
template <class B, class T>
class plain_attention {
 public:
  plain_attention(std::size_t seq_len, std::size_t head_dim, tigon::neighborhood_attention_options opt)
      : n_(seq_len), d_(head_dim), opt_(opt), p_(seq_len, seq_len), ds_(seq_len, seq_len) {}

  void forward(matrix_view<T> q, matrix_view<T> k, matrix_view<T> v, matrix_view<T> o, tigon::context& ctx) const {
    tigon::gemm<B>(q, k, p(), {.alpha = scale(), .b = transpose::yes}, ctx);
    hide();
    tigon::softmax_forward<B, T>(p(), p(), {}, ctx);
    tigon::gemm<B>(p(), v, o, {}, ctx);
  }
  /// After forward of this head.
  void backward(matrix_view<T> d_o, matrix_view<T> q, matrix_view<T> k, matrix_view<T> v, head_gradients<T> to,
                tigon::context& ctx) const {
    tigon::gemm<B>(p(), d_o, to.dv, {.a = transpose::yes}, ctx);
    tigon::gemm<B>(d_o, v, ds(), {.b = transpose::yes}, ctx);
    tigon::softmax_backward<B, T>(ds(), p(), ds(), {}, ctx);
    tigon::gemm<B>(ds(), k, to.dq, {.alpha = scale()}, ctx);
    tigon::gemm<B>(ds(), q, to.dk, {.alpha = scale(), .a = transpose::yes}, ctx);
  }
  std::size_t bytes() const { return p_.bytes() + ds_.bytes(); }

 private:
  matrix_view<T> p() const { return p_.view(); }
  matrix_view<T> ds() const { return ds_.view(); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(d_)); }
  void hide() const {
    const T hidden = static_cast<T>(-std::numeric_limits<float>::infinity());
    const std::size_t reach = opt_.kernel_size / 2 * opt_.dilation;
    for (std::size_t i = 0; i < n_; ++i) {
      T* const row = p().row(i);
      for (std::size_t j = 0; j < n_; ++j) {
        const std::size_t apart = i < j ? j - i : i - j;
        if (apart > reach || apart % opt_.dilation != 0) row[j] = hidden;
      }
    }
  }

  std::size_t n_, d_;
  tigon::neighborhood_attention_options opt_;
  matrix<T> p_, ds_;
};

template <class B, class T>
plan neighborhood_attention_plan(const request& r) {
  const std::size_t batch = r.shape[0], seq_len = r.shape[1], heads = r.shape[2], head_dim = r.shape[3];
  const tigon::neighborhood_attention_options opt{.kernel_size = r.shape[4], .dilation = r.shape[5]};
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward,
             plain = r.variant == "plain";
  const std::size_t size = batch * seq_len * heads * head_dim;
  plan p;
  // q, k, v; o. do, q, k, v; dq, dk, dv. Scores are small beside them, and their arithmetic is hidden behind memory.
  if (forward) p.limits.push_back(limit_request::stream(3, 1, size * sizeof(T)));
  if (backward) p.limits.push_back(limit_request::stream(4, 3, size * sizeof(T)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto q = uniform<T>(size, -1, 1, 1), k = uniform<T>(size, -1, 1, 2), v = uniform<T>(size, -1, 1, 3),
               d_o = uniform<T>(size, -1, 1, 4);
    const buffer<T> o(size), dq(size), dk(size), dv(size);
    const std::size_t queries = plain ? 0 : batch * heads * seq_len;
    const matrix<A> probs(queries, opt.kernel_size);
    const buffer<A> lse(queries);
    const auto of = [=](const buffer<T>& b) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, heads, head_dim);
    };
    const tigon::neighborhood_attention_gradients<T> to{of(dq), of(dk), of(dv)};
    const std::size_t gradient_bytes = dq.bytes() + dk.bytes() + dv.bytes();
    if (plain) {
      const plain_attention<B, T> whole(seq_len, head_dim, opt);
      return {.run =
                  [=, &ctx] {
                    for (std::size_t b = 0; b < batch; ++b)
                      for (std::size_t h = 0; h < heads; ++h) {
                        const matrix_view<T> q_head = of(q).head(b, h), k_head = of(k).head(b, h),
                                             v_head = of(v).head(b, h);
                        whole.forward(q_head, k_head, v_head, of(o).head(b, h), ctx);
                        if (backward)
                          whole.backward(of(d_o).head(b, h), q_head, k_head, v_head,
                                         {to.dq.head(b, h), to.dk.head(b, h), to.dv.head(b, h)}, ctx);
                      }
                  },
              .restore = {},
              .output_bytes = whole.bytes() + o.bytes() + (backward ? gradient_bytes : 0)};
    }
    const auto run_forward = [=, &ctx] {
      tigon::neighborhood_attention_forward<B, T>(of(q), of(k), of(v), of(o), {probs.view(), lse.span()}, opt, ctx);
    };
    const std::size_t forward_bytes = o.bytes() + probs.bytes() + lse.bytes();
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};
    run_forward();  // leaves probs
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  tigon::neighborhood_attention_backward<B, T>(of(d_o), of(q), of(k), of(v), {probs.view(), {}}, to,
                                                               opt, ctx);
                },
            .restore = {},
            .output_bytes = gradient_bytes + (forward ? forward_bytes : 0)};
  };
  return p;
}

}  // namespace

op_entry neighborhood_attention() {
  return {.name = "neighborhood_attention",
          .dims = "batch x seq_len x heads x head_dim x kernel_size x dilation",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1, 4096, 8, 64, 7, 1}, {mode::forward, mode::backward, mode::full}},
                       {"plain", {1, 4096, 8, 64, 7, 1}, {mode::forward, mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return neighborhood_attention_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench

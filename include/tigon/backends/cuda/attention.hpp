// Attention on a GPU: 16 bits by cuDNN, everything else by kernels that are plain and slow. Included by programs that
// call it, as it needs cuDNN's headers (backends/cuda/cudnn_attention.hpp).
#ifndef TIGON_BACKENDS_CUDA_ATTENTION_HPP
#define TIGON_BACKENDS_CUDA_ATTENTION_HPP

#include <tigon/backends/cuda/plain_attention.hpp>
#if !defined(TIGON_CUDA_MODEL)
#include <tigon/backends/cuda/cudnn_attention.hpp>
#endif
// Behind them: they say how these are compiled.
#include <tigon/ops/attention/attention_options.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace tigon {

template <>
struct kernel<op::attention, backends::cuda> {
  template <class A>
  using saved = std::span<A>;  // lse

  /// Of what a call takes, no more is known before it: cuDNN decides by the shape. The kernels reserve it before they
  /// write.
  template <backend B, element T>
  static constexpr std::size_t forward_workspace(std::size_t, std::size_t) {
    return 0;
  }
  template <backend B, element T>
  static constexpr std::size_t backward_workspace(std::size_t, std::size_t) {
    return 0;
  }

  template <backend B, element T>
  static void forward(in_heads<T> q, in_heads<T> k, in_heads<T> v, heads_view<T> o, std::span<accumulator_t<T>> lse,
                      const attention_options& opt, context& ctx) {
    constexpr const char* op = "attention_forward";
    expect_no_lengths(op, opt);
    if (q.seq_len == 0 || q.batch == 0) return;
#if !defined(TIGON_CUDA_MODEL)
    if constexpr (sizeof(T) == 2)
      if (in_library<T>({q, k, v, o}, lse.data(), opt)) {
        gpu::cudnn_attention of = call_of<T>(q, k, v, opt);
        gpu::cudnn_operands at{};
        add_inputs<T>(of, at, q, k, v, opt);
        add<T>(of, at, gpu::cudnn_tensor::o, o);
        at[static_cast<std::size_t>(gpu::cudnn_tensor::lse)] = lse.data();
        return gpu::cudnn::of_this_device().run(of, at, ctx, op);
      }
#endif
    gpu::plain_attention<T>::forward(gpu::attention_operands<T>(q, k, v, opt), o, lse.data(), ctx);
  }

  template <backend B, element T>
  static void backward(in_heads<T> d_o, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                       attention_saved<const T, std::span<const accumulator_t<T>>> of_forward,
                       attention_gradients<T> to, const attention_options& opt, context& ctx) {
    constexpr const char* op = "attention_backward";
    expect_no_lengths(op, opt);
    if (to.dq.data == nullptr && to.dk.data == nullptr && to.dv.data == nullptr && to.dsinks.empty()) return;
#if !defined(TIGON_CUDA_MODEL)
    if constexpr (sizeof(T) == 2)
      if (q.batch != 0 && in_library<T>({q, k, v, of_forward.o, d_o, to.dq, to.dk, to.dv}, of_forward.lse.data(), opt))
        return by_library<T>(d_o, q, k, v, of_forward, to, opt, ctx);
#endif
    const gpu::attention_operands<T> x(q, k, v, opt);
    ctx.workspace().expect(op, gpu::plain_attention<T>::backward_bytes(x));
    gpu::plain_attention<T>::backward(x, d_o, of_forward.lse.data(), to, ctx);
  }

 private:
  /// Lengths are on the host, where no kernel and no graph reads them.
  static void expect_no_lengths(const char* op, const attention_options& opt) {
    if (!opt.cumulative_lengths.empty())
      detail::fail_argument(error_code::argument, op, "cumulative_lengths", "given",
                            "none on cuda: a call for each document");
    if (!opt.key_begins.empty() || !opt.key_ends.empty())
      detail::fail_argument(error_code::argument, op, opt.key_ends.empty() ? "key_begins" : "key_ends", "given",
                            "none on cuda: a call for each batch entry");
  }
#if !defined(TIGON_CUDA_MODEL)
  /// Queries from which on cuDNN is called. It makes a graph for every shape: with a cache that grows, one for every
  /// token.
  static constexpr std::size_t fewest_queries = 16;

  template <class T>
  static bool in_library(std::initializer_list<heads_view<const T>> all, const void* lse,
                         const attention_options& opt) {
    const heads_view<const T> q = all.begin()[0], k = all.begin()[1], v = all.begin()[2];
    if (opt.softcap != 0 || opt.prefix != 0 || q.seq_len < fewest_queries || k.seq_len == 0) return false;
    if ((q.head_dim | v.head_dim) % 8 != 0 || std::max(q.head_dim, v.head_dim) > 256) return false;
    const auto is_odd = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 != 0; };
    for (const heads_view<const T>& of : all)
      if (is_odd(of.data) || (of.batch_stride | of.head_stride | of.seq_stride) % 8 != 0) return false;
    if (is_odd(lse)) return false;
    const bool has_window =
        left_of(opt, q) != gpu::cudnn_attention::unlimited || right_of(opt, k) != gpu::cudnn_attention::unlimited;
    return !has_window || (q.seq_len <= k.seq_len && (opt.offset == 0 || opt.offset == k.seq_len - q.seq_len));
  }
  template <class T>
  static std::int64_t left_of(const attention_options& opt, const heads_view<const T>& q) {
    return opt.window_left < opt.offset + q.seq_len ? static_cast<std::int64_t>(opt.window_left) + 1
                                                    : gpu::cudnn_attention::unlimited;
  }
  template <class T>
  static std::int64_t right_of(const attention_options& opt, const heads_view<const T>& k) {
    if (opt.mask == attention_mask::causal) return 0;
    return opt.window_right < k.seq_len ? static_cast<std::int64_t>(opt.window_right) : gpu::cudnn_attention::unlimited;
  }
  template <class T>
  static gpu::cudnn_attention call_of(in_heads<T> q, in_heads<T> k, in_heads<T> v, const attention_options& opt) {
    const auto number = [](std::size_t n) { return static_cast<std::int64_t>(n); };
    return {.backward = false,
            .f16 = std::same_as<T, float16>,
            .has_sinks = !opt.sinks.empty(),
            .from_the_end = opt.offset != 0,
            .same_bits = false,
            .batch = number(q.batch),
            .heads = number(q.heads),
            .kv_heads = number(k.heads),
            .queries = number(q.seq_len),
            .keys = number(k.seq_len),
            .dim = number(q.head_dim),
            .v_dim = number(v.head_dim),
            .left = left_of<T>(opt, q),
            .right = right_of<T>(opt, k),
            .scale = static_cast<float>(detail::attention_scale(opt, q.head_dim))};
  }
  template <class T>
  static void add(gpu::cudnn_attention& of, gpu::cudnn_operands& at, gpu::cudnn_tensor which, heads_view<const T> v) {
    of.add(which, v);
    at[static_cast<std::size_t>(which)] = const_cast<T*>(v.data);
  }
  template <class T>
  static void add_inputs(gpu::cudnn_attention& of, gpu::cudnn_operands& at, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                         const attention_options& opt) {
    add<T>(of, at, gpu::cudnn_tensor::q, q);
    add<T>(of, at, gpu::cudnn_tensor::k, k);
    add<T>(of, at, gpu::cudnn_tensor::v, v);
    if (of.has_sinks) at[static_cast<std::size_t>(gpu::cudnn_tensor::sinks)] = const_cast<float*>(opt.sinks.data());
  }
  template <class T>
  static void by_library(in_heads<T> d_o, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                         const attention_saved<const T, std::span<const float>>& of_forward,
                         const attention_gradients<T>& to, const attention_options& opt, context& ctx) {
    gpu::cudnn_attention of = call_of<T>(q, k, v, opt);
    of.backward = true, of.same_bits = same_bits;
    gpu::cudnn_operands at{};
    add_inputs<T>(of, at, q, k, v, opt);
    add<T>(of, at, gpu::cudnn_tensor::o, of_forward.o);
    add<T>(of, at, gpu::cudnn_tensor::d_o, d_o);
    at[static_cast<std::size_t>(gpu::cudnn_tensor::lse)] = const_cast<float*>(of_forward.lse.data());
    const auto add_gradient = [&](gpu::cudnn_tensor which, const heads_view<T>& out, in_heads<T> like) {
      add<T>(of, at, which,
             out.data != nullptr
                 ? out
                 : heads_view<T>::of_heads(nullptr, like.batch, like.heads, like.seq_len, like.head_dim));
    };
    add_gradient(gpu::cudnn_tensor::dq, to.dq, q);
    add_gradient(gpu::cudnn_tensor::dk, to.dk, k);
    add_gradient(gpu::cudnn_tensor::dv, to.dv, v);
    at[static_cast<std::size_t>(gpu::cudnn_tensor::dsinks)] = to.dsinks.empty() ? nullptr : to.dsinks.data();
    gpu::cudnn::of_this_device().run(of, at, ctx, "attention_backward");
  }
#if defined(TIGON_CUDA_ATTENTION_SAME_BITS)
  static constexpr bool same_bits = true;
#else
  static constexpr bool same_bits = false;
#endif
#endif
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_ATTENTION_HPP

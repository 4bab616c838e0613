// Attention by cuDNN's fused kernels, through its frontend: nvidia-cudnn-frontend of PyPI, and the headers of cuDNN 9.
// Programs link with cuDNN (-lcudnn).
#ifndef TIGON_BACKENDS_CUDA_CUDNN_ATTENTION_HPP
#define TIGON_BACKENDS_CUDA_CUDNN_ATTENTION_HPP

#include <tigon/backends/cuda/runtime.hpp>
// Behind it: it says how these are compiled.
#if !__has_include(<cudnn_frontend.h>) || !__has_include(<cudnn.h>)
#error \
    "tigon: attention on cuda needs the headers of cuDNN and its frontend: nvidia-cudnn-cu13 and nvidia-cudnn-frontend of PyPI"
#include <the_error_above_ends_compilation>
#endif
// nvcc compiles a file once for the host and once for each architecture, and the frontend takes it a minute each time.
// Code for a device calls nothing of it.
#if !defined(__CUDA_ARCH__)
#include <cudnn_frontend.h>
#endif
#include <tigon/core/element.hpp>
#include <tigon/core/views.hpp>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Tensors of attention, by the numbers that a graph knows them by.
enum class cudnn_tensor { q, k, v, o, lse, sinks, d_o, dq, dk, dv, dsinks, count };

/// What a graph is made for.
struct cudnn_attention {
  static constexpr std::int64_t unlimited = -1;
  struct strides {
    std::int64_t batch, head, row;
    auto operator<=>(const strides&) const = default;
  };

  bool backward, f16, has_sinks, from_the_end;  ///< the last query is at the last key; else the first at the first
  bool same_bits;                               ///< dq is summed in one order; for backward
  std::int64_t batch, heads, kv_heads, queries, keys;
  std::int64_t dim, v_dim;   ///< columns of q and k, of v and o
  std::int64_t left, right;  ///< keys j of query i: i - left < j <= i + right, or unlimited
  float scale;
  std::array<strides, static_cast<std::size_t>(cudnn_tensor::count)> of{};

  auto operator<=>(const cudnn_attention&) const = default;

  template <class T>
  void add(cudnn_tensor which, heads_view<T> v) {
    of[static_cast<std::size_t>(which)] = {static_cast<std::int64_t>(v.batch_stride),
                                           static_cast<std::int64_t>(v.head_stride),
                                           static_cast<std::int64_t>(v.seq_stride)};
  }
};

/// Where the tensors of a call are; null where there is none.
using cudnn_operands = std::array<void*, static_cast<std::size_t>(cudnn_tensor::count)>;

#if !defined(__CUDA_ARCH__)
/// A graph of cuDNN with the kernel that its heuristics choose.
class cudnn_attention_graph {
 public:
  cudnn_attention_graph(cudnnHandle_t handle, const cudnn_attention& of, const char* op) : of_(of) {
    using namespace cudnn_frontend;
    graph_.set_io_data_type(of.f16 ? DataType_t::HALF : DataType_t::BFLOAT16)
        .set_intermediate_data_type(DataType_t::FLOAT)
        .set_compute_data_type(DataType_t::FLOAT);
    if (of.backward)
      add_backward();
    else
      add_forward();
    auto built = graph_.build(handle, {HeurMode_t::A});
    if (built.is_bad())
      tigon::detail::fail(error_code::argument,
                          std::string("tigon: ") + op + ": cuDNN has no kernel for this call: " + built.get_message());
  }

  /// Bytes of workspace.
  std::size_t bytes() const {
    std::int64_t size = 0;
    (void)graph_.get_workspace_size(size);
    return static_cast<std::size_t>(size);
  }
  void run(cudnnHandle_t handle, const cudnn_operands& at, void* scratch, const char* op) {
    std::unordered_map<std::int64_t, void*> given;
    for (std::size_t k = 0; k < at.size(); ++k)
      if (at[k] != nullptr) given.emplace(uid(static_cast<cudnn_tensor>(k)), at[k]);
    auto status = graph_.execute(handle, given, scratch);
    if (status.is_bad())
      tigon::detail::fail(error_code::device, std::string("tigon: cuda: cuDNN: ") + op + ": " + status.get_message());
  }

 private:
  using tensor = std::shared_ptr<cudnn_frontend::graph::Tensor_attributes>;
  static std::int64_t uid(cudnn_tensor which) { return static_cast<std::int64_t>(which) + 1; }

  /// The columns of a tensor of heads.
  std::int64_t cols(cudnn_tensor which) const {
    using enum cudnn_tensor;
    return which == v || which == o || which == d_o || which == dv ? of_.v_dim : of_.dim;
  }
  /// Heads of `rows` rows.
  template <class To>
  To& describe(To& to, cudnn_tensor which, std::int64_t heads, std::int64_t rows) const {
    const auto& s = of_.of[static_cast<std::size_t>(which)];
    return to.set_uid(uid(which))
        .set_dim({of_.batch, heads, rows, cols(which)})
        .set_stride({s.batch, s.head, s.row, 1});
  }
  tensor input(cudnn_tensor which, std::int64_t heads, std::int64_t rows) {
    cudnn_frontend::graph::Tensor_attributes t;
    return graph_.tensor(describe(t, which, heads, rows));
  }
  void output(const tensor& t, cudnn_tensor which, std::int64_t heads, std::int64_t rows) const {
    describe(*t, which, heads, rows).set_output(true);
  }
  /// Numbers of f32: one for each row of q, or for each head.
  template <class To>
  To& describe_numbers(To& to, cudnn_tensor which) const {
    to.set_uid(uid(which)).set_data_type(cudnn_frontend::DataType_t::FLOAT);
    if (which == cudnn_tensor::lse)
      return to.set_dim({of_.batch, of_.heads, of_.queries, 1})
          .set_stride({of_.heads * of_.queries, of_.queries, 1, 1});
    return to.set_dim({1, of_.heads, 1, 1}).set_stride({of_.heads, 1, 1, 1});
  }
  tensor numbers(cudnn_tensor which) {
    cudnn_frontend::graph::Tensor_attributes t;
    return graph_.tensor(describe_numbers(t, which));
  }

  template <class Attributes>
  void set_options(Attributes& to) const {
    using namespace cudnn_frontend;
    to.set_name("attention").set_attn_scale(of_.scale);
    if (of_.left == cudnn_attention::unlimited && of_.right == cudnn_attention::unlimited) return;
    to.set_diagonal_alignment(of_.from_the_end ? DiagonalAlignment_t::BOTTOM_RIGHT : DiagonalAlignment_t::TOP_LEFT);
    if (of_.left != cudnn_attention::unlimited) to.set_diagonal_band_left_bound(static_cast<int>(of_.left));
    if (of_.right != cudnn_attention::unlimited) to.set_diagonal_band_right_bound(static_cast<int>(of_.right));
  }
  void add_forward() {
    cudnn_frontend::graph::SDPA_attributes options;
    set_options(options);
    options.set_generate_stats(true);
    if (of_.has_sinks) options.set_sink_token(numbers(cudnn_tensor::sinks));
    auto [o, lse] =
        graph_.sdpa(input(cudnn_tensor::q, of_.heads, of_.queries), input(cudnn_tensor::k, of_.kv_heads, of_.keys),
                    input(cudnn_tensor::v, of_.kv_heads, of_.keys), options);
    output(o, cudnn_tensor::o, of_.heads, of_.queries);
    describe_numbers(*lse, cudnn_tensor::lse).set_output(true);
  }
  void add_backward() {
    cudnn_frontend::graph::SDPA_backward_attributes options;
    set_options(options);
    if (of_.same_bits) options.set_deterministic_algorithm(true);
    if (of_.has_sinks) {
      options.set_sink_token(numbers(cudnn_tensor::sinks));
      const tensor dsinks = numbers(cudnn_tensor::dsinks);
      options.set_dsink_token(dsinks);
    }
    auto [dq, dk, dv] = graph_.sdpa_backward(
        input(cudnn_tensor::q, of_.heads, of_.queries), input(cudnn_tensor::k, of_.kv_heads, of_.keys),
        input(cudnn_tensor::v, of_.kv_heads, of_.keys), input(cudnn_tensor::o, of_.heads, of_.queries),
        input(cudnn_tensor::d_o, of_.heads, of_.queries), numbers(cudnn_tensor::lse), options);
    output(dq, cudnn_tensor::dq, of_.heads, of_.queries);
    output(dk, cudnn_tensor::dk, of_.kv_heads, of_.keys);
    output(dv, cudnn_tensor::dv, of_.kv_heads, of_.keys);
  }

  cudnn_attention of_;
  cudnn_frontend::graph::Graph graph_;
};

/// cuDNN's handle of a GPU, and the graphs of the shapes that were called: each thread's own.
class cudnn {
 public:
  static constexpr std::size_t alignment_bytes = 256;

  static cudnn& of_this_device() {
    thread_local std::map<int, cudnn> all;
    int device = 0;
    expect_success(cudaGetDevice(&device), "the device");
    return all[device];
  }
  cudnn() {
    if (cudnnCreate(&handle_) != CUDNN_STATUS_SUCCESS)
      tigon::detail::fail(error_code::device, "tigon: cuda: cuDNN does not start on this device");
  }
  cudnn(const cudnn&) = delete;
  ~cudnn() {
    graphs_.clear();
    (void)cudnnDestroy(handle_);
  }

  /// Runs the graph of this shape, which is made by its first call. Gradients without memory go to scratch: cuDNN makes
  /// all of them. The workspace is reserved before anything is written.
  void run(const cudnn_attention& of, cudnn_operands at, context& ctx, const char* op) {
    cudnn_attention_graph& graph = graph_of(of, op);
    const std::size_t bytes = graph.bytes() + alignment_bytes;
    std::size_t all = workspace::bytes_for<std::byte>(bytes);
    for_missing(of, at, [&](void*&, std::size_t more) { all += workspace::bytes_for<std::byte>(more); });
    ctx.workspace().expect(op, all);
    workspace::frame frame(ctx.workspace());
    std::byte* scratch = frame.template take<std::byte>(bytes);
    scratch += (alignment_bytes - reinterpret_cast<std::uintptr_t>(scratch) % alignment_bytes) % alignment_bytes;
    for_missing(of, at, [&](void*& p, std::size_t more) { p = frame.template take<std::byte>(more); });
    if (cudnnSetStream(handle_, stream_of(ctx)) != CUDNN_STATUS_SUCCESS)
      tigon::detail::fail(error_code::device, "tigon: cuda: cuDNN does not take the stream of the context");
    graph.run(handle_, at, scratch, op);
    is_queued(ctx);
#if TIGON_CHECKS >= 2
    ctx.wait();
#endif
  }

 private:
  cudnn_attention_graph& graph_of(const cudnn_attention& of, const char* op) {
    auto& graph = graphs_[of];
    if (graph == nullptr) graph = std::make_unique<cudnn_attention_graph>(handle_, of, op);
    return *graph;
  }

  /// f(pointer, bytes) for every gradient that has no memory.
  template <class F>
  static void for_missing(const cudnn_attention& of, cudnn_operands& at, F f) {
    if (!of.backward) return;
    const auto number = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const std::size_t rows = number(of.batch * of.heads * of.queries), keys = number(of.batch * of.kv_heads * of.keys);
    const std::pair<cudnn_tensor, std::size_t> gradients[] = {
        {cudnn_tensor::dq, 2 * rows * number(of.dim)},
        {cudnn_tensor::dk, 2 * keys * number(of.dim)},
        {cudnn_tensor::dv, 2 * keys * number(of.v_dim)},
        {cudnn_tensor::dsinks, of.has_sinks ? sizeof(float) * number(of.heads) : 0}};
    for (const auto& [which, bytes] : gradients)
      if (void*& p = at[static_cast<std::size_t>(which)]; p == nullptr && bytes != 0) f(p, bytes);
  }

  cudnnHandle_t handle_ = nullptr;
  std::map<cudnn_attention, std::unique_ptr<cudnn_attention_graph>> graphs_;
};
#else
class cudnn {
 public:
  static cudnn& of_this_device();
  void run(const cudnn_attention& of, cudnn_operands at, context& ctx, const char* op);
};
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_CUDNN_ATTENTION_HPP

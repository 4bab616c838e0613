// Losses over a split vocabulary on several GPUs by NCCL, beside one GPU. A rank is a thread with a GPU of its own.
//
//   gpu_ranks [--ranks N] [--time] [--graph]      N: as many as there are GPUs
//
// Each rank has some of the classes. Of each loss it says whether the loss is that of one GPU within the bound that it
// prints, and dlogits, dx and dw within theirs (in the 2-norm, of the norm of one GPU's); whether what all ranks have is of
// the same bits on each of them; and whether a second run makes the same bits. --time: milliseconds of
// fused_linear_cross_entropy of 8192 x 4096 x 128256 on one GPU and on all. --graph: also captures a call, and replays it.
// Ends with 1 where a line says FAILED, or CUDA or NCCL an error.
//
//   nvcc -std=c++20 -O3 -arch=native --expt-relaxed-constexpr -Iinclude -isystem /usr/include/eigen3 -I.../nvidia/nccl/include \
//     tools/gpu_ranks.cu -o gpu_ranks -lcublasLt -L.../nvidia/nccl/lib -l:libnccl.so.2
#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <tigon/comm/nccl.hpp>
#include <tigon/comm/threads.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <vector>

namespace {

using namespace tigon;
using gpu_backend = backends::cuda;

bool failed = false;
void report(bool passed, const std::string& what) {
  std::printf("%s  %s\n", passed ? "passed" : "FAILED", what.c_str());
  std::fflush(stdout);
  failed = failed || !passed;
}

/// Numbers in memory of the GPU that is current, copied in the order of a stream.
template <class T>
class array {
 public:
  array(const std::vector<T>& of, cudaStream_t stream) : array(of.size(), stream) {
    gpu::expect_success(cudaMemcpyAsync(data_, of.data(), n_ * sizeof(T), cudaMemcpyHostToDevice, stream), "a copy");
    gpu::expect_success(cudaStreamSynchronize(stream), "a copy");
  }
  array(std::size_t n, cudaStream_t stream) : n_(n), stream_(stream) {
    gpu::expect_success(cudaMallocAsync(reinterpret_cast<void**>(&data_), n * sizeof(T) + 16, stream), "memory");
    gpu::expect_success(cudaMemsetAsync(data_, 0xff, n * sizeof(T), stream), "memory");
  }
  array(const array&) = delete;
  ~array() { (void)cudaFreeAsync(data_, stream_); }
  matrix_view<T> matrix(std::size_t rows, std::size_t cols) const { return {data_, rows, cols}; }
  std::span<T> span() const { return {data_, n_}; }
  std::vector<T> host() const {
    std::vector<T> of(n_);
    gpu::expect_success(cudaMemcpyAsync(of.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost, stream_), "a copy");
    gpu::expect_success(cudaStreamSynchronize(stream_), "a copy");
    return of;
  }

 private:
  T* data_ = nullptr;
  std::size_t n_;
  cudaStream_t stream_;
};

template <class T>
std::vector<T> numbers(std::size_t n, unsigned seed, float size) {
  std::vector<T> of(n);
  for (T& v : of) {
    seed = seed * 1664525u + 1013904223u;
    v = T((static_cast<float>(seed >> 8) / static_cast<float>(1u << 23) - 1) * size);
  }
  return of;
}
std::vector<std::int64_t> labels(std::size_t rows, std::size_t vocab) {
  std::vector<std::int64_t> of(rows);
  for (std::size_t i = 0; i < rows; ++i) of[i] = i % 7 == 3 ? -100 : static_cast<std::int64_t>((i * 7919 + 3) % vocab);
  return of;
}
template <class T>
double distance(const std::vector<T>& a, const std::vector<T>& b) {
  double apart = 0, size = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const double x = static_cast<double>(a[k]), y = static_cast<double>(b[k]);
    apart += (x - y) * (x - y), size += y * y;
  }
  return a.size() == b.size() ? std::sqrt(apart / size) : 1.0;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
/// Columns [first, first + n) of a matrix of `cols` columns, and the way back.
template <class T>
std::vector<T> columns(const std::vector<T>& m, std::size_t cols, std::size_t first, std::size_t n) {
  std::vector<T> out;
  for (std::size_t at = first; at < m.size(); at += cols)
    out.insert(out.end(), m.begin() + static_cast<std::ptrdiff_t>(at), m.begin() + static_cast<std::ptrdiff_t>(at + n));
  return out;
}

/// Where the classes of rank r begin: the shards are uneven.
std::size_t first_class(std::size_t vocab, std::size_t r, std::size_t ranks) {
  return r == 0 ? 0 : r >= ranks ? vocab : (vocab * r / ranks + 5) / 8 * 8;
}

/// A GPU with a stream, a workspace and a context.
struct on_gpu {
  cudaStream_t stream = nullptr;
  std::unique_ptr<workspace> scratch;
  std::unique_ptr<context> ctx;
  explicit on_gpu(std::size_t device) {
    gpu::expect_success(cudaSetDevice(static_cast<int>(device)), "a device");
    gpu::expect_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    scratch = std::make_unique<workspace>(gpu::memory(stream));
    ctx = std::make_unique<context>(serial(), *scratch, gpu::queue(stream));
  }
  ~on_gpu() {
    ctx.reset(), scratch.reset();
    (void)cudaStreamSynchronize(stream), (void)cudaStreamDestroy(stream);
  }
};
std::vector<ncclComm_t> communicators;
/// fn(ranks, its GPU) on every rank.
void on_ranks(const std::function<void(const comm::nccl&, on_gpu&)>& fn) {
  comm::threads::run(communicators.size(), [&](const comm::threads& c) {
    on_gpu device(c.rank());
    const comm::nccl ranks(communicators[c.rank()], device.stream, communicator_ref(c));
    fn(ranks, device);
    device.ctx->wait();
  });
}

template <class T>
struct row_results {
  std::vector<std::vector<float>> loss, top, rest;
  std::vector<std::vector<T>> dlogits;
};
template <class T>
row_results<T> rows_on_ranks(const std::vector<T>& z, const std::vector<std::int64_t>& target, std::size_t rows,
                             std::size_t vocab, bool graph) {
  const std::size_t n = communicators.size();
  row_results<T> out;
  out.loss.resize(n), out.top.resize(n), out.rest.resize(n), out.dlogits.resize(n);
  on_ranks([&](const comm::nccl& c, on_gpu& device) {
    const std::size_t r = c.rank(), first = first_class(vocab, r, n), cols = first_class(vocab, r + 1, n) - first;
    const array<T> mine(columns(z, vocab, first, cols), device.stream), d(rows * cols, device.stream);
    const array<std::int64_t> at(target, device.stream);
    const array<float> loss(rows, device.stream), top(rows, device.stream), rest(rows, device.stream),
        up(std::vector<float>(1, 1), device.stream);
    const vocab_shard shard{first, vocab};
    const std::span<const float> upstream = up.span(), top_of = top.span(), rest_of = rest.span();
    const auto call = [&] {
      vocab_parallel_cross_entropy_forward<gpu_backend>(c, mine.matrix(rows, cols), shard, at.span(),
                                                        {loss.span(), top.span(), rest.span()}, {}, *device.ctx);
      vocab_parallel_cross_entropy_backward<gpu_backend, T>(mine.matrix(rows, cols), shard, at.span(), upstream,
                                                            {top_of, rest_of}, d.matrix(rows, cols), {}, *device.ctx);
    };
    if (!graph) {
      call();
    } else {
      call();  // the workspace grows
      device.ctx->wait();
      cudaGraph_t captured;
      cudaGraphExec_t replay;
      gpu::expect_success(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal), "a capture");
      call();
      gpu::expect_success(cudaStreamEndCapture(device.stream, &captured), "a capture");
      gpu::expect_success(cudaGraphInstantiate(&replay, captured, 0), "a graph");
      for (int k = 0; k < 2; ++k) gpu::expect_success(cudaGraphLaunch(replay, device.stream), "a graph");
      device.ctx->wait();
      (void)cudaGraphExecDestroy(replay), (void)cudaGraphDestroy(captured);
    }
    device.ctx->wait();
    out.loss[r] = loss.host(), out.top[r] = top.host(), out.rest[r] = rest.host(), out.dlogits[r] = d.host();
  });
  return out;
}
template <class T>
void check_rows(const char* type, std::size_t rows, std::size_t vocab, double bound, bool graph) {
  const std::size_t n = communicators.size();
  const auto z = numbers<T>(rows * vocab, 1, 8);
  const auto target = labels(rows, vocab);
  std::vector<float> loss;
  std::vector<T> dlogits;
  {
    on_gpu device(0);
    const array<T> of(z, device.stream), d(rows * vocab, device.stream);
    const array<std::int64_t> at(target, device.stream);
    const array<float> to(rows, device.stream);
    const std::span<const std::int64_t> of_rows = at.span();
    cross_entropy_forward<gpu_backend, T>(of.matrix(rows, vocab), of_rows, to.span(), d.matrix(rows, vocab),
                                          {.reduction = reduction::none}, absent, {}, *device.ctx);
    device.ctx->wait();
    loss = to.host(), dlogits = d.host();
  }
  const auto got = rows_on_ranks<T>(z, target, rows, vocab, false),
             again = rows_on_ranks<T>(z, target, rows, vocab, graph);
  double of_loss = 0, of_gradient = 0;
  bool same = true, repeats = true;
  for (std::size_t r = 0; r < n; ++r) {
    const std::size_t first = first_class(vocab, r, n), cols = first_class(vocab, r + 1, n) - first;
    of_loss = std::max(of_loss, distance(got.loss[r], loss));
    of_gradient = std::max(of_gradient, distance(got.dlogits[r], columns(dlogits, vocab, first, cols)));
    same = same && same_bits(got.loss[r], got.loss[0]) && same_bits(got.top[r], got.top[0]) &&
           same_bits(got.rest[r], got.rest[0]);
    repeats = repeats && same_bits(got.loss[r], again.loss[r]) && same_bits(got.dlogits[r], again.dlogits[r]);
  }
  const std::string name = "vocab_parallel_cross_entropy " + std::string(type) + " " + std::to_string(rows) + " x " +
                           std::to_string(vocab) + ": ";
  char text[160];
  std::snprintf(text, sizeof text, "loss %.1e of one GPU (bound 1e-6), dlogits %.1e (bound %.0e)", of_loss, of_gradient,
                bound);
  report(of_loss < 1e-6 && of_gradient < bound, name + text);
  report(same, name + "loss, top and rest of all ranks are the same bits");
  report(repeats, name + (graph ? "a captured graph makes the same bits" : "a second run makes the same bits"));
}

struct layer {
  std::size_t rows, hidden, vocab, chunk;
};
using X = bfloat16;
struct layer_data {
  std::vector<X> x, w;
  std::vector<std::int64_t> target;
  explicit layer_data(layer s)
      : x(numbers<X>(s.rows * s.hidden, 1, 1)),
        w(numbers<X>(s.vocab * s.hidden, 2, 4 / std::sqrt(static_cast<float>(s.hidden)))),
        target(labels(s.rows, s.vocab)) {}
};
struct layer_results {
  std::vector<std::vector<float>> loss{1};
  std::vector<std::vector<X>> dx{1}, dw{1};
  std::vector<float> ms{0};
};
/// Milliseconds of a call, the median of some.
float median_of(const std::function<void()>& call, on_gpu& device, int runs) {
  cudaEvent_t before, after;
  gpu::expect_success(cudaEventCreate(&before), "an event"), gpu::expect_success(cudaEventCreate(&after), "an event");
  std::vector<float> all;
  for (int k = 0; k < runs; ++k) {
    gpu::expect_success(cudaEventRecord(before, device.stream), "an event");
    call();
    gpu::expect_success(cudaEventRecord(after, device.stream), "an event");
    device.ctx->wait();
    float ms = 0;
    gpu::expect_success(cudaEventElapsedTime(&ms, before, after), "an event");
    all.push_back(ms);
  }
  (void)cudaEventDestroy(before), (void)cudaEventDestroy(after);
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}
layer_results layer_on_one(const layer& s, const layer_data& data, int runs) {
  on_gpu device(0);
  const array<X> x(data.x, device.stream), w(data.w, device.stream), dx(data.x.size(), device.stream),
      dw(data.w.size(), device.stream);
  const array<std::int64_t> target(data.target, device.stream);
  const array<float> loss(1, device.stream);
  device.ctx->logit_rows(s.chunk);
  const auto call = [&] {
    const std::span<const std::int64_t> at = target.span();
    fused_linear_cross_entropy_forward<gpu_backend, X>(
        {x.matrix(s.rows, s.hidden), w.matrix(s.vocab, s.hidden)}, at, {loss.span()},
        {dx.matrix(s.rows, s.hidden), dw.matrix(s.vocab, s.hidden)}, {}, absent, {}, *device.ctx);
  };
  call();
  device.ctx->wait();
  layer_results out;
  out.loss[0] = loss.host(), out.dx[0] = dx.host(), out.dw[0] = dw.host();
  if (runs != 0) out.ms[0] = median_of(call, device, runs);
  return out;
}
layer_results layer_on_ranks(const layer& s, const layer_data& data, int runs) {
  const std::size_t n = communicators.size();
  layer_results out;
  out.loss.resize(n), out.dx.resize(n), out.dw.resize(n), out.ms.resize(n);
  on_ranks([&](const comm::nccl& c, on_gpu& device) {
    const std::size_t r = c.rank(), first = first_class(s.vocab, r, n), cols = first_class(s.vocab, r + 1, n) - first;
    const auto begin = data.w.begin() + static_cast<std::ptrdiff_t>(first * s.hidden);
    const array<X> x(data.x, device.stream),
        w(std::vector<X>(begin, begin + static_cast<std::ptrdiff_t>(cols * s.hidden)), device.stream),
        dx(data.x.size(), device.stream), dw(cols * s.hidden, device.stream);
    const array<std::int64_t> target(data.target, device.stream);
    const array<float> loss(1, device.stream);
    device.ctx->logit_rows(s.chunk);
    const linear_shard<X> part{{x.matrix(s.rows, s.hidden), w.matrix(cols, s.hidden)}, {first, s.vocab}};
    const auto call = [&] {
      const std::span<const std::int64_t> at = target.span();
      vocab_parallel_fused_linear_cross_entropy_forward<gpu_backend, X>(
          c, part, at, {loss.span()}, {dx.matrix(s.rows, s.hidden), dw.matrix(cols, s.hidden)}, {}, absent,
          *device.ctx);
    };
    call();
    device.ctx->wait();
    out.loss[r] = loss.host(), out.dx[r] = dx.host(), out.dw[r] = dw.host();
    if (runs != 0) out.ms[r] = median_of(call, device, runs);
  });
  return out;
}
void check_layer(const layer& s) {
  const layer_data data(s);
  const layer_results one = layer_on_one(s, data, 0), got = layer_on_ranks(s, data, 0),
                      again = layer_on_ranks(s, data, 0);
  const std::size_t n = communicators.size();
  std::vector<X> dw;
  bool same = true, repeats = true;
  for (std::size_t r = 0; r < n; ++r) {
    dw.insert(dw.end(), got.dw[r].begin(), got.dw[r].end());
    same = same && same_bits(got.loss[r], got.loss[0]) && same_bits(got.dx[r], got.dx[0]);
    repeats = repeats && same_bits(got.loss[r], again.loss[r]) && same_bits(got.dx[r], again.dx[r]) &&
              same_bits(got.dw[r], again.dw[r]);
  }
  const std::string name = "vocab_parallel_fused_linear_cross_entropy bf16 " + std::to_string(s.rows) + " x " +
                           std::to_string(s.hidden) + " x " + std::to_string(s.vocab) + ": ";
  const double of_loss = distance(got.loss[0], one.loss[0]), of_dx = distance(got.dx[0], one.dx[0]),
               of_dw = distance(dw, one.dw[0]);
  char text[160];
  std::snprintf(text, sizeof text, "loss %.1e of one GPU (bound 1e-6), dx %.1e, dw %.1e (bound 4e-3)", of_loss, of_dx,
                of_dw);
  report(of_loss < 1e-6 && of_dx < 4e-3 && of_dw < 4e-3, name + text);
  report(same, name + "loss and dx of all ranks are the same bits");
  report(repeats, name + "a second run makes the same bits");
}

void check_sum_of_nccl() {
  std::atomic<bool> right = true;
  on_ranks([&](const comm::nccl& c, on_gpu& device) {
    const array<float> v(std::vector<float>(1000, static_cast<float>(c.rank() + 1)), device.stream);
    c.sum_in_order_of_nccl<float>(v.span(), v.span());
    const auto n = static_cast<float>(c.size());
    for (const float s : v.host())
      if (s != n * (n + 1) / 2) right = false;
  });
  report(right, "comm::nccl: the sum of small integers in NCCL's order");
}

int run(int argc, char** argv) {
  int ranks = 0;
  bool time = false, graph = false;
  gpu::expect_success(cudaGetDeviceCount(&ranks), "the number of devices");
  for (int k = 1; k < argc; ++k) {
    const std::string is = argv[k];
    if (is == "--ranks" && k + 1 < argc)
      ranks = std::atoi(argv[++k]);
    else if (is == "--time")
      time = true;
    else if (is == "--graph")
      graph = true;
    else
      return std::fprintf(stderr, "gpu_ranks: unknown: %s\n", argv[k]), 2;
  }
  communicators.resize(static_cast<std::size_t>(ranks));
  comm::nccl::check("ncclCommInitAll", ncclCommInitAll(communicators.data(), ranks, nullptr));
  std::printf("%d ranks, NCCL %d\n", ranks, NCCL_VERSION_CODE);
  check_sum_of_nccl();
  check_rows<float>("f32", 300, 32003, 2e-6, false);
  check_rows<bfloat16>("bf16", 512, 128256, 4e-3, false);
  check_rows<bfloat16>("bf16", 64, 999, 4e-3, false);
  check_layer({1024, 512, 32000, 0});
  check_layer({777, 320, 32003, 256});
  if (graph) check_rows<bfloat16>("bf16", 512, 32000, 4e-3, true);
  if (time) {
    const layer s{8192, 4096, 128256, 0};
    const layer_data data(s);
    const float one = layer_on_one(s, data, 10).ms[0], all = layer_on_ranks(s, data, 10).ms[0];
    std::printf("fused_linear_cross_entropy bf16 8192 x 4096 x 128256: one GPU %.2f ms, %d GPUs %.2f ms\n", one, ranks,
                all);
  }
  for (const ncclComm_t c : communicators) (void)ncclCommDestroy(c);
  return failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Ranks of one process: NCCL would read the other's buffers, which cudaMallocAsync does not open to another GPU; and a kernel
  // that is loaded late may wait for a gather that waits for the other rank.
  (void)setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0), (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_ranks: %s\n", e.what());
    return 1;
  }
}

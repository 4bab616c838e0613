// Losses over a split vocabulary on several GPUs by NCCL, beside one GPU. A rank is a process with a GPU of its own.
//
//   gpu_ranks [--ranks N] [--time] [--graph]      N: as many as there are GPUs
//
// Each rank has some of the classes, and computes the whole on its GPU as well. Of each loss the program says whether
// it is that of one GPU within the bound that it prints, and dlogits, dx and dw within theirs (in the 2-norm, of the
// norm of one GPU's); whether what all ranks have is of the same bits on each of them; and whether a second run makes
// the same bits. --time: milliseconds of fused_linear_cross_entropy of 8192 x 4096 x 128256 on one GPU and on all.
// --graph: also captures a call, and replays it. Ends with 1 where a line says FAILED, or a rank ends early.
//
//   nvcc -std=c++20 -O3 -arch=native --expt-relaxed-constexpr -Iinclude -isystem /usr/include/eigen3 -I.../nvidia/nccl/include \
//     tools/gpu_ranks.cu -o gpu_ranks -lcublasLt -L.../nvidia/nccl/lib -l:libnccl.so.2
#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <tigon/comm/nccl.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <vector>

namespace {

using namespace tigon;
using gpu_backend = backends::cuda;

/// Ranks that are processes of one machine: what each of them says is in memory that all of them map.
class processes {
 public:
  static constexpr std::size_t most = 64;
  struct board {
    pthread_barrier_t all;
    std::byte said[most][4096];
  };

  processes(board& on, std::size_t rank, std::size_t size) : on_(on), rank_(rank), size_(size) {}
  std::size_t rank() const { return rank_; }
  std::size_t size() const { return size_; }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    for (std::size_t at = 0; at < mine.size(); at += sizeof on_.said[0]) {
      const std::size_t n = std::min(mine.size() - at, sizeof on_.said[0]);
      std::memcpy(on_.said[rank_], mine.data() + at, n);
      pthread_barrier_wait(&on_.all);
      for (std::size_t r = 0; r < size_; ++r) std::memcpy(all.data() + r * mine.size() + at, on_.said[r], n);
      pthread_barrier_wait(&on_.all);
    }
  }

 private:
  board& on_;
  std::size_t rank_, size_;
};

/// What this process is: one of the ranks, on the GPU of its number.
struct rank_of_program {
  const processes& host;
  ncclComm_t comm;
};
template <class T>
std::vector<T> of_all(const processes& host, const T& mine) {
  std::vector<T> all(host.size());
  comm::all_gather<T>(host, std::span<const T>(&mine, 1), std::span<T>(all));
  return all;
}
template <class T>
T worst(const processes& host, T mine) {
  const auto all = of_all(host, mine);
  return *std::max_element(all.begin(), all.end());
}

bool failed = false;
/// Passed, if it is so on all ranks.
void report(const processes& host, bool passed, const std::string& what) {
  passed = !worst<int>(host, !passed);
  if (host.rank() == 0) std::printf("%s  %s\n", passed ? "passed" : "FAILED", what.c_str());
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
/// FNV-1a.
template <class T>
std::uint64_t hash_of_bits(const std::vector<T>& v) {
  std::uint64_t hash = 14695981039346656037u;
  for (const std::byte b : std::as_bytes(std::span(v)))
    hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 1099511628211u;
  return hash;
}
template <class... T>
bool same_bits_on_all(const processes& host, const std::vector<T>&... results) {
  bool same = true;
  const std::uint64_t hashes[] = {hash_of_bits(results)...};
  for (const std::uint64_t mine : hashes)
    for (const std::uint64_t one : of_all(host, mine)) same = same && one == mine;
  return same;
}
/// Columns [first, first + n) of a matrix of `cols` columns.
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

/// The process's GPU with a stream, a workspace and a context.
struct on_gpu {
  cudaStream_t stream = nullptr;
  std::unique_ptr<workspace> scratch;
  std::unique_ptr<context> ctx;
  on_gpu() {
    gpu::expect_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    scratch = std::make_unique<workspace>(gpu::memory(stream));
    ctx = std::make_unique<context>(serial(), *scratch, gpu::queue(stream));
  }
  ~on_gpu() {
    ctx.reset(), scratch.reset();
    (void)cudaStreamSynchronize(stream), (void)cudaStreamDestroy(stream);
  }
};

/// The classes of this rank.
struct classes_of_rank {
  std::size_t first, count;
};
classes_of_rank own_classes(const processes& host, std::size_t vocab) {
  const std::size_t first = first_class(vocab, host.rank(), host.size());
  return {first, first_class(vocab, host.rank() + 1, host.size()) - first};
}

template <class T>
struct row_results {
  std::vector<float> loss, top, rest;
  std::vector<T> dlogits;
};
template <class T>
row_results<T> rows_on_rank(const rank_of_program& of, const std::vector<T>& z, const std::vector<std::int64_t>& target,
                            std::size_t rows, std::size_t vocab, bool graph) {
  on_gpu device;
  const comm::nccl ranks(of.comm, device.stream, communicator_ref(of.host));
  const classes_of_rank own = own_classes(of.host, vocab);
  const array<T> mine(columns(z, vocab, own.first, own.count), device.stream), d(rows * own.count, device.stream);
  const array<std::int64_t> at(target, device.stream);
  const array<float> loss(rows, device.stream), top(rows, device.stream), rest(rows, device.stream),
      up(std::vector<float>(1, 1), device.stream);
  const vocab_shard shard{own.first, vocab};
  const std::span<const float> upstream = up.span(), top_of = top.span(), rest_of = rest.span();
  const auto call = [&] {
    vocab_parallel_cross_entropy_forward<gpu_backend>(ranks, mine.matrix(rows, own.count), shard, at.span(),
                                                      {loss.span(), top.span(), rest.span()}, {}, *device.ctx);
    vocab_parallel_cross_entropy_backward<gpu_backend, T>(mine.matrix(rows, own.count), shard, at.span(), upstream,
                                                          {top_of, rest_of}, d.matrix(rows, own.count), {},
                                                          *device.ctx);
  };
  call();
  device.ctx->wait();
  if (graph) {  // the workspace has grown
    cudaGraph_t captured;
    cudaGraphExec_t replay;
    gpu::expect_success(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal), "a capture");
    call();
    gpu::expect_success(cudaStreamEndCapture(device.stream, &captured), "a capture");
    gpu::expect_success(cudaGraphInstantiate(&replay, captured, 0), "a graph");
    for (const array<float>* const of : {&loss, &top, &rest})
      gpu::expect_success(cudaMemsetAsync(of->span().data(), 0xff, rows * sizeof(float), device.stream), "memory");
    for (int k = 0; k < 2; ++k) gpu::expect_success(cudaGraphLaunch(replay, device.stream), "a graph");
    device.ctx->wait();
    (void)cudaGraphExecDestroy(replay), (void)cudaGraphDestroy(captured);
  }
  return {loss.host(), top.host(), rest.host(), d.host()};
}
template <class T>
void check_rows(const rank_of_program& of, const char* type, std::size_t rows, std::size_t vocab, double bound,
                bool graph) {
  const auto z = numbers<T>(rows * vocab, 1, 8);
  const auto target = labels(rows, vocab);
  std::vector<float> loss;
  std::vector<T> dlogits;
  {
    on_gpu device;
    const array<T> logits(z, device.stream), d(rows * vocab, device.stream);
    const array<std::int64_t> at(target, device.stream);
    const array<float> to(rows, device.stream);
    const std::span<const std::int64_t> of_rows = at.span();
    cross_entropy_forward<gpu_backend, T>(logits.matrix(rows, vocab), of_rows, to.span(), d.matrix(rows, vocab),
                                          {.reduction = reduction::none}, absent, {}, *device.ctx);
    device.ctx->wait();
    loss = to.host(), dlogits = d.host();
  }
  const auto got = rows_on_rank<T>(of, z, target, rows, vocab, false),
             again = rows_on_rank<T>(of, z, target, rows, vocab, graph);
  const classes_of_rank own = own_classes(of.host, vocab);
  const double of_loss = worst(of.host, distance(got.loss, loss)),
               of_gradient = worst(of.host, distance(got.dlogits, columns(dlogits, vocab, own.first, own.count)));
  const std::string name = "vocab_parallel_cross_entropy " + std::string(type) + " " + std::to_string(rows) + " x " +
                           std::to_string(vocab) + ": ";
  char text[160];
  std::snprintf(text, sizeof text, "loss %.1e of one GPU (bound 1e-6), dlogits %.1e (bound %.0e)", of_loss, of_gradient,
                bound);
  report(of.host, of_loss < 1e-6 && of_gradient < bound, name + text);
  report(of.host, same_bits_on_all(of.host, got.loss, got.top, got.rest),
         name + "loss, top and rest of all ranks are the same bits");
  report(of.host, same_bits(got.loss, again.loss) && same_bits(got.dlogits, again.dlogits),
         name + (graph ? "a captured graph makes the same bits" : "a second run makes the same bits"));
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
  std::vector<float> loss;
  std::vector<X> dx, dw;
  float ms;
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
  return all.empty() ? 0 : all[all.size() / 2];
}
/// On the ranks of `of`, with the classes of this one; or, without it, all of them on this GPU.
layer_results layer_on(const rank_of_program* of, const layer& s, const layer_data& data, int runs) {
  on_gpu device;
  const classes_of_rank own = of != nullptr ? own_classes(of->host, s.vocab) : classes_of_rank{0, s.vocab};
  const auto begin = data.w.begin() + static_cast<std::ptrdiff_t>(own.first * s.hidden);
  const array<X> x(data.x, device.stream),
      w(std::vector<X>(begin, begin + static_cast<std::ptrdiff_t>(own.count * s.hidden)), device.stream),
      dx(data.x.size(), device.stream), dw(own.count * s.hidden, device.stream);
  const array<std::int64_t> target(data.target, device.stream);
  const array<float> loss(1, device.stream);
  device.ctx->logit_rows(s.chunk);
  const linear_layer<X> part{x.matrix(s.rows, s.hidden), w.matrix(own.count, s.hidden)};
  const auto call = [&] {
    const std::span<const std::int64_t> at = target.span();
    const auto dx_of = dx.matrix(s.rows, s.hidden), dw_of = dw.matrix(own.count, s.hidden);
    if (of == nullptr)
      fused_linear_cross_entropy_forward<gpu_backend, X>(part, at, {loss.span()}, {dx_of, dw_of}, {}, absent, {},
                                                         *device.ctx);
    else
      vocab_parallel_fused_linear_cross_entropy_forward<gpu_backend, X>(
          comm::nccl(of->comm, device.stream, communicator_ref(of->host)), {part, {own.first, s.vocab}}, at,
          {loss.span()}, {dx_of, dw_of}, {}, absent, *device.ctx);
  };
  call();
  device.ctx->wait();
  return {loss.host(), dx.host(), dw.host(), median_of(call, device, runs)};
}
void check_layer(const rank_of_program& of, const layer& s) {
  const layer_data data(s);
  const layer_results one = layer_on(nullptr, s, data, 0), got = layer_on(&of, s, data, 0),
                      again = layer_on(&of, s, data, 0);
  const classes_of_rank own = own_classes(of.host, s.vocab);
  const auto begin = one.dw.begin() + static_cast<std::ptrdiff_t>(own.first * s.hidden);
  const std::vector<X> dw(begin, begin + static_cast<std::ptrdiff_t>(own.count * s.hidden));
  const std::string name = "vocab_parallel_fused_linear_cross_entropy bf16 " + std::to_string(s.rows) + " x " +
                           std::to_string(s.hidden) + " x " + std::to_string(s.vocab) + ": ";
  const double of_loss = worst(of.host, distance(got.loss, one.loss)), of_dx = worst(of.host, distance(got.dx, one.dx)),
               of_dw = worst(of.host, distance(got.dw, dw));
  char text[160];
  std::snprintf(text, sizeof text, "loss %.1e of one GPU (bound 1e-6), dx %.1e, dw %.1e (bound 4e-3)", of_loss, of_dx,
                of_dw);
  report(of.host, of_loss < 1e-6 && of_dx < 4e-3 && of_dw < 4e-3, name + text);
  report(of.host, same_bits_on_all(of.host, got.loss, got.dx), name + "loss and dx of all ranks are the same bits");
  report(of.host, same_bits(got.loss, again.loss) && same_bits(got.dx, again.dx) && same_bits(got.dw, again.dw),
         name + "a second run makes the same bits");
}

void check_sum_of_nccl(const rank_of_program& of) {
  on_gpu device;
  const comm::nccl ranks(of.comm, device.stream);
  const array<float> v(std::vector<float>(1000, static_cast<float>(ranks.rank() + 1)), device.stream);
  ranks.sum_in_order_of_nccl<float>(v.span(), v.span());
  const auto n = static_cast<float>(ranks.size());
  bool right = true;
  for (const float s : v.host()) right = right && s == n * (n + 1) / 2;
  report(of.host, right, "comm::nccl: the sum of small integers in NCCL's order");
}

int run(const processes& host, bool time, bool graph) {
  gpu::expect_success(cudaSetDevice(static_cast<int>(host.rank())), "a device");
  struct named {  // nvcc 13.0 aborts at a std::vector of NCCL's type, which has no name
    ncclUniqueId id;
  } of_nccl;
  if (host.rank() == 0) comm::nccl::check("ncclGetUniqueId", ncclGetUniqueId(&of_nccl.id));
  of_nccl = of_all(host, of_nccl).front();
  ncclComm_t comm;
  comm::nccl::check("ncclCommInitRank",
                    ncclCommInitRank(&comm, static_cast<int>(host.size()), of_nccl.id, static_cast<int>(host.rank())));
  if (host.rank() == 0) std::printf("%zu ranks, NCCL %d\n", host.size(), NCCL_VERSION_CODE);
  const rank_of_program of{host, comm};
  check_sum_of_nccl(of);
  check_rows<float>(of, "f32", 300, 32003, 2e-6, false);
  check_rows<bfloat16>(of, "bf16", 512, 128256, 4e-3, false);
  check_rows<bfloat16>(of, "bf16", 64, 999, 4e-3, false);
  check_layer(of, {1024, 512, 32000, 0});
  check_layer(of, {777, 320, 32003, 256});
  if (graph) check_rows<bfloat16>(of, "bf16", 512, 32000, 4e-3, true);
  if (time) {
    const layer s{8192, 4096, 128256, 0};
    const layer_data data(s);
    const float one = worst(host, layer_on(nullptr, s, data, 10).ms), all = worst(host, layer_on(&of, s, data, 10).ms);
    if (host.rank() == 0)
      std::printf("fused_linear_cross_entropy bf16 8192 x 4096 x 128256: one GPU %.2f ms, %zu GPUs %.2f ms\n", one,
                  host.size(), all);
  }
  (void)ncclCommDestroy(comm);
  return failed ? 1 : 0;
}

/// Starts the ranks and waits for them; one that ends early ends the others, which would wait for it.
int start(int argc, char** argv, std::size_t ranks) {
  const int memory = memfd_create("gpu_ranks", 0);
  if (memory < 0 || ftruncate(memory, sizeof(processes::board)) != 0) return std::perror("gpu_ranks"), 1;
  auto* const board = static_cast<processes::board*>(
      mmap(nullptr, sizeof(processes::board), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
  if (board == MAP_FAILED) return std::perror("gpu_ranks"), 1;
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared), pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&board->all, &shared, static_cast<unsigned>(ranks));
  std::vector<pid_t> pids;
  const auto end_all = [&pids] {
    for (const pid_t pid : pids) (void)kill(pid, SIGTERM);
  };
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<std::string> words(argv, argv + argc);
    const std::string of_rank[] = {"--ranks", std::to_string(ranks), "--rank", std::to_string(r),
                                   "--board", std::to_string(memory)};
    words.insert(words.end(), std::begin(of_rank), std::end(of_rank));
    std::vector<char*> args;
    for (std::string& word : words) args.push_back(word.data());
    args.push_back(nullptr);
    pid_t pid = 0;
    if (const int error = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, args.data(), environ)) {
      end_all();
      return std::fprintf(stderr, "gpu_ranks: %s\n", std::strerror(error)), 1;
    }
    pids.push_back(pid);
  }
  int code = 0;
  for (std::size_t left = ranks; left > 0; --left) {
    int status = 0;
    (void)waitpid(-1, &status, 0);
    if (status == 0) continue;
    if (code == 0) end_all();
    code = 1;
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 0, rank = -1, memory = -1;
  bool time = false, graph = false;
  for (int k = 1; k < argc; ++k) {
    const std::string is = argv[k];
    int* const number = is == "--ranks" ? &ranks : is == "--rank" ? &rank : is == "--board" ? &memory : nullptr;
    if (number != nullptr && k + 1 < argc)
      *number = std::atoi(argv[++k]);
    else if (is == "--time")
      time = true;
    else if (is == "--graph")
      graph = true;
    else
      return std::fprintf(stderr, "gpu_ranks: unknown: %s\n", argv[k]), 2;
  }
  try {
    if (ranks == 0) gpu::expect_success(cudaGetDeviceCount(&ranks), "the number of devices");
    if (ranks < 1 || static_cast<std::size_t>(ranks) > processes::most)
      return std::fprintf(stderr, "gpu_ranks: %d ranks; from 1 to %zu are possible\n", ranks, processes::most), 2;
    if (rank < 0) return start(argc, argv, static_cast<std::size_t>(ranks));
    void* const board = mmap(nullptr, sizeof(processes::board), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (board == MAP_FAILED) return std::perror("gpu_ranks"), 1;
    return run(
        {*static_cast<processes::board*>(board), static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks)}, time,
        graph);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_ranks: %s\n", e.what());
    return 1;
  }
}

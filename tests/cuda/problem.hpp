// An operator on the model of a GPU and on single numbers: the same operands, equal results, equal bits in two runs,
// nothing written beside the results, and the device's memory out of the host's reach but in kernels. The host neither
// reads it nor waits for the device, and with a workspace as large as the first run's takes no memory. The second run
// has the last block first. With TIGON_TESTS_ON_GPU a GPU takes the model's place (tools/gpu_check): the second run is
// then the replay of a graph that captured the call.
#ifndef TIGON_TESTS_CUDA_PROBLEM_HPP
#define TIGON_TESTS_CUDA_PROBLEM_HPP

#if defined(TIGON_TESTS_ON_GPU)
#include <tigon/backends/cuda/backend.hpp>
#else
#include "model.hpp"
#endif
// Behind it: it says how these are compiled.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <tigon/backends/cuda/backend.hpp>
#include <utility>
#include <vector>

#include "../support/device_memory.hpp"

namespace cuda_tests {

using namespace tigon;
using cuda = backends::cuda;
using generic = backends::generic;

using test::device_memory;

template <class T>
struct numbers {
  static constexpr std::size_t beyond = 64;
  T* data;
  std::size_t rows, cols, stride;

  numbers(std::size_t r, std::size_t c, std::size_t apart = 0)
      : data(static_cast<T*>(device_memory::instance().take((r * (c + apart) + beyond) * sizeof(T)))),
        rows(r),
        cols(c),
        stride(c + apart) {
    for (std::size_t k = 0; k < r * stride + beyond; ++k) data[k] = T(std::numeric_limits<float>::quiet_NaN());
  }
  numbers& fill(unsigned seed, float middle = 0) {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < cols; ++j) {
        seed = seed * 1664525u + 1013904223u;
        data[i * stride + j] = T(static_cast<float>(seed >> 8) / static_cast<float>(1u << 23) - 1 + middle);
      }
    return *this;
  }
  matrix_view<T> matrix() const { return {data, rows, cols, stride}; }
  std::span<T> vector() const { return {data, cols}; }
  /// Whether nothing was written between the rows and behind them.
  bool is_alone() const {
    for (std::size_t k = 0; k < rows * stride + beyond; ++k)
      if ((k >= rows * stride || k % stride >= cols) && !std::isnan(static_cast<double>(data[k]))) return false;
    return true;
  }
  std::vector<T> all() const {
    std::vector<T> result;
    for (std::size_t i = 0; i < rows; ++i) result.insert(result.end(), data + i * stride, data + i * stride + cols);
    return result;
  }
};

/// What an operator made, in words of where; the same operands on every backend.
template <class T>
using results = std::vector<std::pair<std::string, std::vector<T>>>;

struct shape {
  std::size_t rows, cols, apart = 0;
};
template <class T>
class problem {
 public:
  explicit problem(shape s) : s_(s) { device_memory::instance().clear(); }

  /// Runs run(context, *this) with the device's memory out of reach of the host.
  template <class B, class Run>
  results<T> on(Run run, [[maybe_unused]] bool captured = false) {
    made_.clear(), given_.clear(), after_ = {};
    const auto call = run(*this);
    if constexpr (std::is_same_v<B, cuda>)
      on_device(call, captured);
    else
      call.template operator()<B>(default_context());
    if (after_) after_();
    results<T> all;
    for (const auto& [name, of] : made_) {
      EXPECT_TRUE(of.is_alone()) << name << " was written beside its columns";
      all.emplace_back(name, of.all());
    }
    return all;
  }
  numbers<T> matrix(unsigned seed, float middle = 0) {
    given_.push_back(numbers<T>(s_.rows, s_.cols, s_.apart).fill(seed, middle));
    return given_.back();
  }
  /// Every third row of the first matrix times a large or a small number.
  void scale_some_rows() {
    for (std::size_t i = 1; i < s_.rows; i += 3)
      for (std::size_t j = 0; j < s_.cols; ++j) {
        T& x = given_.front().data[i * given_.front().stride + j];
        x = T(static_cast<float>(x) * (i % 2 == 0 ? 1e25f : 1e-25f));
      }
  }
  numbers<T> row(unsigned seed) { return numbers<T>(1, s_.cols).fill(seed); }
  numbers<T> made(const char* name, std::size_t rows, std::size_t cols) {
    const numbers<T> of(rows, cols, rows == 1 ? 0 : s_.apart);
    made_.emplace_back(name, of);
    return of;
  }
  numbers<T> made(const char* name) { return made(name, s_.rows, s_.cols); }
  /// What is done when the call has ended: results of other types become those of T.
  template <class F>
  void after(F f) {
    after_ = f;
  }
  const shape& of() const { return s_; }

 private:
#if defined(TIGON_TESTS_ON_GPU)
  template <class Call>
  static void on_device(const Call& call, bool captured) {
    static cudaStream_t stream = [] {
      cudaStream_t s;
      EXPECT_EQ(cudaStreamCreate(&s), cudaSuccess);
      return s;
    }();
    static workspace scratch(gpu::memory(stream));  // large enough in the second run
    context ctx(serial(), scratch, gpu::queue(stream));
    if (!captured) {
      call.template operator()<cuda>(ctx);
      return ctx.wait();
    }
    device_memory::instance().captures = true;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    call.template operator()<cuda>(ctx);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    device_memory::instance().captures = false;
    EXPECT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    ctx.wait();
    EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
#else
  template <class Call>
  static void on_device(const Call& call, bool again) {
    static std::size_t most = 0;  // bytes of workspace in the first run
    workspace scratch(gpu::memory(nullptr));
    context ctx(serial(), scratch, gpu::queue(nullptr));
    if (again) scratch.expect("the second run", most);
    const unsigned allocations = cuda_model::allocations, reads = cuda_model::reads, waits = cuda_model::waits;
    cuda_model::before_kernel = [] { device_memory::instance().reachable(true); };
    cuda_model::after_kernel = [] { device_memory::instance().reachable(false); };
    device_memory::instance().reachable(false);
    cuda_model::last_block_first = again;
    call.template operator()<cuda>(ctx);
    cuda_model::last_block_first = false;
    cuda_model::before_kernel = cuda_model::after_kernel = nullptr;
    device_memory::instance().reachable(true);
    most = scratch.capacity();
    EXPECT_EQ(cuda_model::reads, reads) << "the host read the device's memory";
#if TIGON_CHECKS < 2
    EXPECT_EQ(cuda_model::waits, waits) << "the host waited for the device";
#endif
    if (again) EXPECT_EQ(cuda_model::allocations, allocations) << "memory was taken beside the workspace";
  }
#endif

  shape s_;
  std::function<void()> after_;
  std::vector<numbers<T>> given_;
  std::vector<std::pair<std::string, numbers<T>>> made_;
};

template <class T>
double distance(const std::vector<T>& a, const std::vector<T>& b) {
  double apart = 0, size = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const double x = static_cast<double>(a[k]), y = static_cast<double>(b[k]);
    if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<double>::infinity();
    apart += (x - y) * (x - y), size += y * y;
  }
  return std::sqrt(apart / std::max(size, 1e-30));
}
template <class T>
constexpr double bound = sizeof(T) == 8   ? 1e-13
                         : sizeof(T) == 4 ? 1e-6
                                          : 4e-3;

template <class T, class Run>
void expect_as_single_numbers(shape s, Run run, double most = bound<T>) {
  problem<T> p(s);
  const results<T> wanted = p.template on<generic>(run), got = p.template on<cuda>(run),
                   again = p.template on<cuda>(run, true);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    EXPECT_LT(distance(got[k].second, wanted[k].second), most)
        << got[k].first << " of " << s.rows << " x " << s.cols << " + " << s.apart;
    EXPECT_EQ(0, std::memcmp(got[k].second.data(), again[k].second.data(), got[k].second.size() * sizeof(T)));
  }
}

}  // namespace cuda_tests

#endif  // TIGON_TESTS_CUDA_PROBLEM_HPP

// Backend cuda on the model of a GPU: every shape of its driver, with the results of single numbers; what the host may not
// touch; and that the model sees a barrier that is missing.
#include "model.hpp"
// Behind it: it says how these are compiled.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <string>
#include <tigon/backends/cuda/backend.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/ops/swiglu_fused.hpp>
#include <vector>

namespace {

using namespace tigon;
using cuda = backends::cuda;
using generic = backends::generic;

/// Memory of the device: the host reaches it while it is filled and read, and in a kernel.
class device_memory {
 public:
  static constexpr std::size_t bytes = std::size_t{64} << 20;

  static device_memory& instance() {
    static device_memory one;
    return one;
  }
  void* take(std::size_t n) {
    void* const p = base_ + used_;
    used_ += (n + 255) / 256 * 256;
    if (used_ > bytes) cuda_model::fail("the test has no more memory of the device");
    return p;
  }
  void clear() { used_ = 0; }
  void reachable(bool is) { mprotect(base_, bytes, is ? PROT_READ | PROT_WRITE : PROT_NONE); }

 private:
  device_memory()
      : base_(
            static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
  }
  std::byte* base_;
  std::size_t used_ = 0;
};

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
  results<T> on(Run run) {
    made_.clear(), given_.clear();
    workspace scratch(gpu::memory(nullptr));
    const bool device = std::is_same_v<B, cuda>;
    context ctx(serial(), scratch, gpu::queue(nullptr));
    const auto call = run(*this);
    device_memory& memory = device_memory::instance();
    if (device) {
      cuda_model::before_kernel = [] { device_memory::instance().reachable(true); };
      cuda_model::after_kernel = [] { device_memory::instance().reachable(false); };
      memory.reachable(false);
    }
    call.template operator()<B>(device ? ctx : default_context());
    cuda_model::before_kernel = cuda_model::after_kernel = nullptr;
    memory.reachable(true);
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
  const shape& of() const { return s_; }

 private:
  shape s_;
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
void expect_as_single_numbers(shape s, Run run) {
  problem<T> p(s);
  const results<T> wanted = p.template on<generic>(run), got = p.template on<cuda>(run),
                   again = p.template on<cuda>(run);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    EXPECT_LT(distance(got[k].second, wanted[k].second), bound<T>)
        << got[k].first << " of " << s.rows << " x " << s.cols << " + " << s.apart;
    EXPECT_EQ(0, std::memcmp(got[k].second.data(), again[k].second.data(), got[k].second.size() * sizeof(T)));
  }
}

template <class T>
auto rms_norm_both_ways(gradient mode = gradient::overwrite) {
  return [mode](problem<T>& p) {
    using S = accumulator_t<T>;
    const auto x = p.matrix(1), dy = p.matrix(2), w = p.row(3), y = p.made("y"), dx = p.made("dx");
    const auto dw = p.made("dw", 1, p.of().cols);
    const numbers<S> rstd(1, p.of().rows);
    if (mode == gradient::accumulate) numbers<T>(dw).fill(4);
    return [=]<class B>(context& ctx) {
      rms_norm_forward<B>(x.matrix(), w.vector(), y.matrix(), rstd.vector(), {}, ctx);
      rms_norm_backward<B>(dy.matrix(), x.matrix(), w.vector(), rstd.vector(), dx.matrix(), dw.vector(), {.dw = mode},
                           ctx);
    };
  };
}
template <class T>
auto layer_norm_both_ways() {
  return [](problem<T>& p) {
    using S = accumulator_t<T>;
    const auto x = p.matrix(1, 3), dy = p.matrix(2), w = p.row(3), b = p.row(4), y = p.made("y"), dx = p.made("dx");
    const auto dw = p.made("dw", 1, p.of().cols), db = p.made("db", 1, p.of().cols);
    const numbers<S> mean(1, p.of().rows), rstd(1, p.of().rows);
    return [=]<class B>(context& ctx) {
      layer_norm_forward<B>(x.matrix(), w.vector(), b.vector(), y.matrix(), mean.vector(), rstd.vector(), {}, ctx);
      layer_norm_backward<B>(dy.matrix(), x.matrix(), w.vector(), mean.vector(), rstd.vector(),
                             norm_gradients{dx.matrix(), dw.vector(), db.vector()}, {}, ctx);
    };
  };
}
template <class T>
auto softmax_both_ways() {
  return [](problem<T>& p) {
    const auto x = p.matrix(1), dy = p.matrix(2), y = p.made("y"), dx = p.made("dx");
    return [=]<class B>(context& ctx) {
      softmax_forward<B>(x.matrix(), y.matrix(), {}, ctx);
      softmax_backward<B>(dy.matrix(), y.matrix(), dx.matrix(), {}, ctx);
    };
  };
}
template <class T>
auto gates_both_ways() {
  return [](problem<T>& p) {
    const auto a = p.matrix(1), b = p.matrix(2), dy = p.matrix(3);
    const auto s = p.made("swiglu"), sa = p.made("swiglu da"), sb = p.made("swiglu db");
    const auto g = p.made("geglu"), ga = p.made("geglu da"), gb = p.made("geglu db");
    const auto r = p.made("relu_squared"), ra = p.made("relu_squared dx");
    return [=]<class B>(context& ctx) {
      swiglu_forward<B>(a.matrix(), b.matrix(), s.matrix(), {}, ctx);
      swiglu_backward<B>(dy.matrix(), a.matrix(), b.matrix(), sa.matrix(), sb.matrix(), {}, ctx);
      geglu_forward<B>(a.matrix(), b.matrix(), g.matrix(), {}, ctx);
      geglu_backward<B>(dy.matrix(), a.matrix(), b.matrix(), ga.matrix(), gb.matrix(), {}, ctx);
      relu_squared_forward<B>(a.matrix(), r.matrix(), {}, ctx);
      relu_squared_backward<B>(dy.matrix(), a.matrix(), ra.matrix(), {}, ctx);
    };
  };
}

// Rows of every shape in backends/cuda/plan.hpp: lanes of a warp, several rows a group; a block that keeps a row; rows that
// are read again; rows that begin anywhere, or lie apart.
const shape narrow[] = {{70, 24, 8}, {300, 128}, {37, 256}, {9, 504, 16}, {5, 1024}};
const shape wide[] = {{3, 4096}, {2, 8200}, {2, 20000}};
const shape awkward[] = {{40, 37}, {3, 5001}, {6, 1000, 24}, {6, 1000, 3}, {1, 64}};

TEST(cuda_model, rms_norm_of_narrow_rows) {
  for (const shape& s : narrow) expect_as_single_numbers<bfloat16>(s, rms_norm_both_ways<bfloat16>());
  expect_as_single_numbers<float>(narrow[1], rms_norm_both_ways<float>());
  expect_as_single_numbers<double>(narrow[0], rms_norm_both_ways<double>());
}
TEST(cuda_model, rms_norm_of_wide_rows) {
  for (const shape& s : wide) expect_as_single_numbers<bfloat16>(s, rms_norm_both_ways<bfloat16>());
  expect_as_single_numbers<float>({2, 40000}, rms_norm_both_ways<float>());
}
TEST(cuda_model, rms_norm_of_awkward_rows) {
  for (const shape& s : awkward) expect_as_single_numbers<float16>(s, rms_norm_both_ways<float16>());
  expect_as_single_numbers<float>(awkward[3], rms_norm_both_ways<float>());
}
TEST(cuda_model, gradients_of_many_rows_are_added_to) {
  expect_as_single_numbers<float>({1100, 24}, rms_norm_both_ways<float>(gradient::accumulate));
}
// Rows of a few columns, and rows whose products f32 does not hold, are computed in f64.
template <class Run>
auto scaled_rows(Run run) {
  return [run](problem<float>& p) {
    const auto both = run(p);
    p.scale_some_rows();
    return both;
  };
}
TEST(cuda_model, rows_in_f64) {
  expect_as_single_numbers<float>({30, 8}, rms_norm_both_ways<float>());
  expect_as_single_numbers<bfloat16>({30, 6}, rms_norm_both_ways<bfloat16>());
  for (const shape& s : {shape{70, 24}, shape{40, 4096}, shape{3, 20000}, shape{40, 37}}) {
    expect_as_single_numbers<float>(s, scaled_rows(rms_norm_both_ways<float>()));
    expect_as_single_numbers<float>(s, scaled_rows(layer_norm_both_ways<float>()));
  }
}
TEST(cuda_model, layer_norm) {
  for (const shape& s : {narrow[1], narrow[4], wide[1], wide[2], awkward[0]})
    expect_as_single_numbers<float>(s, layer_norm_both_ways<float>());
}
TEST(cuda_model, softmax) {
  for (const shape& s : {narrow[0], narrow[3], wide[0], awkward[1]})
    expect_as_single_numbers<float>(s, softmax_both_ways<float>());
  expect_as_single_numbers<bfloat16>({2, 40000}, softmax_both_ways<bfloat16>());
  EXPECT_EQ((softmax_workspace<cuda, float>(4096)), 0u);  // parameter gradients alone take memory
}
TEST(cuda_model, gates) {
  for (const shape& s : {narrow[0], awkward[0], awkward[2], awkward[3]})
    expect_as_single_numbers<float>(s, gates_both_ways<float>());
  expect_as_single_numbers<bfloat16>(narrow[2], gates_both_ways<bfloat16>());
}
TEST(cuda_model, gates_of_pairs) {
  for (const shape& s : {shape{7, 48}, shape{5, 22}})
    expect_as_single_numbers<float>(s, [](problem<float>& p) {
      const auto x = p.matrix(1), dy = numbers<float>(p.of().rows, p.of().cols / 2).fill(2);
      const auto y = p.made("y", p.of().rows, p.of().cols / 2), dx = p.made("dx");
      return [=]<class B>(context& ctx) {
        swiglu_fused_forward<B>(x.matrix(), y.matrix(), gate_layout::interleaved, {}, ctx);
        swiglu_fused_backward<B>(dy.matrix(), x.matrix(), dx.matrix(), gate_layout::interleaved, {}, ctx);
      };
    });
}
TEST(cuda_model, no_rows) {
  expect_as_single_numbers<float>({0, 64}, rms_norm_both_ways<float>());
  expect_as_single_numbers<float>({0, 64}, gates_both_ways<float>());
}

TEST(cuda_model, a_context_without_a_queue_is_refused) {
  device_memory::instance().clear();
  const auto x = numbers<float>(2, 64).fill(1), y = numbers<float>(2, 64);
  workspace scratch(gpu::memory(nullptr));
  context ctx(serial(), scratch);
  try {
    softmax_forward<cuda>(x.matrix(), y.matrix(), {}, ctx);
    FAIL() << "no error";
  } catch (const error& e) {
    EXPECT_EQ(e.code(), error_code::state);
    EXPECT_NE(std::string(e.what()).find("queue"), std::string::npos) << e.what();
  }
}

// A row of several warps is wrong without the barriers of its block.
TEST(cuda_model, sees_barriers_that_are_missing) {
  problem<float> p({3, 4096});
  const auto wanted = p.on<generic>(rms_norm_both_ways<float>());
  cuda_model::without = cuda_model::lacking::barriers;
  const auto got = p.on<cuda>(rms_norm_both_ways<float>());
  cuda_model::without = cuda_model::lacking::nothing;
  EXPECT_GT(distance(got[0].second, wanted[0].second), 1e-3);
}

}  // namespace

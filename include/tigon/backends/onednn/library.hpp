// What is taken of oneDNN: a product of two bf16 matrices of any strides, computed by the calling thread alone.
#ifndef TIGON_BACKENDS_ONEDNN_LIBRARY_HPP
#define TIGON_BACKENDS_ONEDNN_LIBRARY_HPP

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <tigon/gemm/contract.hpp>

#include <algorithm>
#include <string_view>

#if DNNL_VERSION_MAJOR != 2
#error "tigon: backend onednn is written for oneDNN 2 (Debian 12 has 2.6.3); this is another major version"
#include <the_error_above_ends_compilation>
#endif

namespace tigon::one_dnn {
inline namespace TIGON_ABI {

inline constexpr bool has_openmp = DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP;
inline constexpr bool has_no_threads = DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_SEQ;

/// The OpenMP of the running program, whichever it is: nobody has to compile or link with OpenMP for oneDNN's sake.
struct openmp {
  int (*get_max_threads)() = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_num_threads)(int) = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));

  static const openmp& here() {
    static const openmp once;
    return once;
  }
};

/// While it lives, oneDNN computes on the calling thread alone. Threads of its own would multiply the caller's, and
/// their number would decide the order of sums.
class on_this_thread {
 public:
  on_this_thread() {
    if constexpr (has_openmp) before_ = openmp::here().get_max_threads(), openmp::here().set_num_threads(1);
  }
  ~on_this_thread() {
    if constexpr (has_openmp) openmp::here().set_num_threads(before_);
  }
  on_this_thread(const on_this_thread&) = delete;
  on_this_thread& operator=(const on_this_thread&) = delete;

  static bool possible() {
    return has_openmp ? openmp::here().get_max_threads != nullptr && openmp::here().set_num_threads != nullptr
                      : has_no_threads;
  }

 private:
  int before_ = 0;
};

/// A part of an operand as it lies in memory.
struct operand {
  const bfloat16* data;
  std::size_t rows, cols;  ///< of op(x)
  std::size_t stride;
  transpose stored;
};

/// c = op(a) op(b), or that added to c: f32 sums of bf16 products. Extents and strides are arguments of the call, so
/// one primitive a pair of layouts serves them all and nothing is compiled later. Of oneDNN's implementations the one
/// that takes any stride and no scratchpad; it packs into memory that it allocates itself.
class products {
 public:
  static const products& here() {
    static const products once;
    return once;
  }

  /// On a CPU without the bf16 dot instruction oneDNN would emulate it.
  bool usable() const { return usable_; }

  void run(const operand& a, const operand& b, float* c, std::size_t c_stride, bool add) const {
    using dnnl::memory;
    const auto extent = [](std::size_t n) { return static_cast<memory::dim>(n); };
    const std::size_t m = a.rows, n = b.cols;
    const memory::desc to({extent(m), extent(n)}, memory::data_type::f32, {extent(std::max(c_stride, n)), 1});
    dnnl::stream stream(engine_);
    at_[a.stored == transpose::yes][b.stored == transpose::yes][add].execute(
        stream, {{DNNL_ARG_SRC, memory(described(a), engine_, const_cast<bfloat16*>(a.data))},
                 {DNNL_ARG_WEIGHTS, memory(described(b), engine_, const_cast<bfloat16*>(b.data))},
                 {DNNL_ARG_DST, memory(to, engine_, c)}});
    stream.wait();
  }

 private:
  products() {
    constexpr int bf16_dot = static_cast<int>(dnnl::cpu_isa::avx512_core_bf16);
    usable_ = on_this_thread::possible() && (static_cast<int>(dnnl::get_effective_cpu_isa()) & bf16_dot) == bf16_dot;
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const bool add : {false, true})
          if (usable_) usable_ = make(ta, tb, add, at_[ta][tb][add]);
  }

  bool make(bool ta, bool tb, bool add, dnnl::matmul& to) const {
    using dnnl::memory;
    constexpr memory::dim any = DNNL_RUNTIME_DIM_VAL;
    const auto matrix = [](memory::data_type type, bool transposed) {
      return memory::desc({any, any}, type, transposed ? memory::dims{1, any} : memory::dims{any, 1});
    };
    const dnnl::matmul::desc wanted(matrix(memory::data_type::bf16, ta), matrix(memory::data_type::bf16, tb),
                                    matrix(memory::data_type::f32, false));
    dnnl::primitive_attr options;
    options.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (add) {
      dnnl::post_ops sum;
      sum.append_sum(1);
      options.set_post_ops(sum);
    }
    dnnl::matmul::primitive_desc found(wanted, options, engine_, true);
    if (!found || std::string_view(found.impl_info_str()).find("gemm:jit") == std::string_view::npos) return false;
    to = dnnl::matmul(found);
    return found.scratchpad_desc().get_size() == 0;
  }

  static dnnl::memory::desc described(const operand& x) {
    const auto extent = [](std::size_t n) { return static_cast<dnnl::memory::dim>(n); };
    const std::size_t stride = std::max(x.stride, x.stored == transpose::yes ? x.rows : x.cols);
    return {{extent(x.rows), extent(x.cols)},
            dnnl::memory::data_type::bf16,
            x.stored == transpose::yes ? dnnl::memory::dims{1, extent(stride)} : dnnl::memory::dims{extent(stride), 1}};
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::matmul at_[2][2][2];
  bool usable_;
};

}  // namespace TIGON_ABI
}  // namespace tigon::one_dnn

#endif  // TIGON_BACKENDS_ONEDNN_LIBRARY_HPP

// Products by cuBLASLt, whose header comes with CUDA; who calls one links with it (-lcublasLt).
#ifndef TIGON_BACKENDS_CUDA_CUBLAS_HPP
#define TIGON_BACKENDS_CUDA_CUBLAS_HPP

#include <tigon/backends/cuda/runtime.hpp>
// Behind it: it says how these are compiled.
#include <cublasLt.h>
#include <tigon/core/element.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>

namespace tigon::gpu {
inline namespace TIGON_ABI {

inline void expect_success(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    tigon::detail::fail(error_code::device,
                        std::string("tigon: cuda: cuBLASLt: ") + what + ": " + cublasLtGetStatusString(status));
}

template <class T>
constexpr cudaDataType_t cuda_type() {
  if constexpr (std::is_same_v<T, double>) return CUDA_R_64F;
  if constexpr (std::is_same_v<T, bfloat16>) return CUDA_R_16BF;
  if constexpr (std::is_same_v<T, float16>) return CUDA_R_16F;
  return CUDA_R_32F;
}

/// A product in the order of rows: c[m,n] = alpha op(a)[m,k] op(b)[k,n] + beta c + bias[n].
struct cublas_product {
  const void *a, *b;
  void* c;
  const void* bias;  ///< of c's type, or null
  std::size_t m, n, k, a_stride, b_stride, c_stride;
  bool a_transposed, b_transposed;
  cudaDataType_t type, c_type;  ///< of a and b; of c
  double alpha, beta;
  const void *device_alpha, *device_beta;  ///< in their place, in the device's memory; or null
};

/// cuBLASLt's handle of a GPU, and the algorithms that it has chosen for shapes.
class cublas {
 public:
  /// Bytes that a product may take; cuBLASLt wants them to begin at a multiple of 256.
  static constexpr std::size_t own_bytes = std::size_t{32} << 20, alignment_bytes = 256;
  /// Bytes of workspace for it, wherever they begin.
  static constexpr std::size_t workspace_bytes = own_bytes + alignment_bytes;
  static std::byte* aligned(std::byte* p) {
    return p + (alignment_bytes - reinterpret_cast<std::uintptr_t>(p) % alignment_bytes) % alignment_bytes;
  }

  static cublas& of_this_device() {
    constexpr int most = 64;
    static cublas all[most];
    int device = 0;
    expect_success(cudaGetDevice(&device), "the device");
    cublas& one = all[device % most];
    const std::lock_guard lock(one.mutex_);
    if (one.handle_ == nullptr) {
      gpu::expect_success(cudaDeviceGetAttribute(&one.capability_, cudaDevAttrComputeCapabilityMajor, device),
                          "the device");
      expect_success(cublasLtCreate(&one.handle_), "a handle");
    }
    return one;
  }

  void run(const cublas_product& p, void* scratch, cudaStream_t stream) {
    // cuBLAS has columns first: c^T = op(b)^T op(a)^T.
    const bool in_f64 = p.type == CUDA_R_64F;
    const descriptor of(in_f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, in_f64 ? CUDA_R_64F : CUDA_R_32F);
    of.set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    of.set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.device_alpha != nullptr) of.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
    if (p.bias != nullptr) {
      of.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      of.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
      of.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, p.c_type);
    }
    const layout left(p.type, p.b_transposed ? p.k : p.n, p.b_transposed ? p.n : p.k, p.b_stride);
    const layout right(p.type, p.a_transposed ? p.m : p.k, p.a_transposed ? p.k : p.m, p.a_stride);
    const layout out(p.c_type, p.n, p.m, p.c_stride);
    const cublasLtMatmulAlgo_t algorithm = chosen(p, of, left, right, out);
    const float alpha32 = static_cast<float>(p.alpha), beta32 = static_cast<float>(p.beta);
    const void* const alpha = p.device_alpha != nullptr ? p.device_alpha
                              : in_f64                  ? static_cast<const void*>(&p.alpha)
                                                        : &alpha32;
    const void* const beta = p.device_alpha != nullptr ? p.device_beta
                             : in_f64                  ? static_cast<const void*>(&p.beta)
                                                       : &beta32;
    expect_success(cublasLtMatmul(handle_, of.of, alpha, p.b, left.of, p.a, right.of, beta, p.c, out.of, p.c, out.of,
                                  &algorithm, scratch, own_bytes, stream),
                   "a product");
  }

 private:
  struct descriptor {
    cublasLtMatmulDesc_t of = nullptr;
    descriptor(cublasComputeType_t compute, cudaDataType_t scale) {
      expect_success(cublasLtMatmulDescCreate(&of, compute, scale), "a product");
    }
    descriptor(const descriptor&) = delete;
    ~descriptor() { (void)cublasLtMatmulDescDestroy(of); }
    template <class V>
    void set(cublasLtMatmulDescAttributes_t which, V value) const {
      expect_success(cublasLtMatmulDescSetAttribute(of, which, &value, sizeof value), "a product");
    }
  };
  struct layout {
    cublasLtMatrixLayout_t of = nullptr;
    layout(cudaDataType_t type, std::size_t rows, std::size_t cols, std::size_t stride) {
      expect_success(cublasLtMatrixLayoutCreate(&of, type, rows, cols, static_cast<std::int64_t>(stride)), "a matrix");
    }
    layout(const layout&) = delete;
    ~layout() { (void)cublasLtMatrixLayoutDestroy(of); }
  };

  static std::uint32_t alignment(const void* p) {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    return static_cast<std::uint32_t>(std::min<std::uintptr_t>(at & (~at + 1), 256));
  }

  // Whether writing c takes so long beside the depth of a product by tensor cores that small tiles of c are faster:
  // while one is written, another one is computed.
  bool prefers_small_tiles(const cublas_product& p) const {
    const std::size_t bytes = (p.c_type == CUDA_R_32F ? 4u : 2u) * (p.beta != 0 ? 2u : 1u);
    return capability_ == 9 && p.type != CUDA_R_32F && p.type != CUDA_R_64F && p.k <= 1024 * bytes;
  }
  static bool splits_depth(const cublasLtMatmulHeuristicResult_t& of) {
    std::int32_t parts = 1;
    std::size_t written = 0;
    (void)cublasLtMatmulAlgoConfigGetAttribute(&of.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts,
                                               &written);
    return parts > 1;
  }

  // What cuBLASLt's heuristics choose, or another of their candidates: the same for the same shape, types and
  // alignments.
  cublasLtMatmulAlgo_t chosen(const cublas_product& p, const descriptor& of, const layout& left, const layout& right,
                              const layout& out) {
    using key = std::array<std::size_t, 12>;
    const std::size_t flags = (p.a_transposed ? 1u : 0u) | (p.b_transposed ? 2u : 0u) | (p.bias != nullptr ? 4u : 0u) |
                              (p.beta != 0 ? 8u : 0u) | (p.device_alpha != nullptr ? 16u : 0u);
    const key k{p.m,
                p.n,
                p.k,
                p.a_stride,
                p.b_stride,
                p.c_stride,
                flags,
                static_cast<std::size_t>(p.type),
                static_cast<std::size_t>(p.c_type),
                alignment(p.a),
                alignment(p.b),
                alignment(p.c)};
    const std::lock_guard lock(mutex_);
    if (const auto found = algorithms_.find(k); found != algorithms_.end()) return found->second;
    cublasLtMatmulPreference_t wanted;
    expect_success(cublasLtMatmulPreferenceCreate(&wanted), "a product");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
      (void)cublasLtMatmulPreferenceSetAttribute(wanted, which, &value, sizeof value);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::size_t{own_bytes});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.c));
    std::array<cublasLtMatmulHeuristicResult_t, 8> candidates{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, of.of, left.of, right.of, out.of, out.of, wanted,
                                       static_cast<int>(candidates.size()), candidates.data(), &count);
    (void)cublasLtMatmulPreferenceDestroy(wanted);
    expect_success(count == 0 && status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status, "a product");
    // A wave is as many tiles as the GPU computes at a time: the smaller the tiles, the more waves.
    constexpr float many_waves = 7, most_parts = 3;
    const float waves = candidates[0].wavesCount;
    const cublasLtMatmulHeuristicResult_t* best = candidates.data();
    if (prefers_small_tiles(p) && waves >= many_waves)
      for (const auto& one : std::span(candidates).first(static_cast<std::size_t>(count)))
        if (one.state == CUBLAS_STATUS_SUCCESS && one.wavesCount > best->wavesCount &&
            one.wavesCount <= most_parts * waves && !splits_depth(one))
          best = &one;
    return algorithms_[k] = best->algo;
  }

  std::mutex mutex_;
  cublasLtHandle_t handle_ = nullptr;
  int capability_ = 0;  ///< of the device, its first number
  std::map<std::array<std::size_t, 12>, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_CUBLAS_HPP

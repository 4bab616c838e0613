// What a call on a GPU needs of CUDA: the queue and the memory of a context, and how kernels are started.
#ifndef TIGON_BACKENDS_CUDA_RUNTIME_HPP
#define TIGON_BACKENDS_CUDA_RUNTIME_HPP

#include <tigon/backends/cuda/report.hpp>
// Behind it: it says how these are compiled.
#include <tigon/core/context.hpp>
#include <tigon/core/error.hpp>

#include <cstddef>
#include <limits>
#include <string>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Throws error_code::device for an error of CUDA.
inline void expect_success(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    tigon::detail::fail(error_code::device, std::string("tigon: cuda: ") + what + ": " + cudaGetErrorString(error));
}

/// The queue of a context whose calls go to this stream; null is CUDA's default stream. wait() returns when the calls
/// are done, and throws error_code::device with what the device reports, or error_code::index for a label out of range.
/// Not to be made while a stream is captured.
inline device_queue queue(cudaStream_t stream) {
  (void)report_of(stream);
  return {stream, [](void* s) {
            const auto of = static_cast<cudaStream_t>(s);
            expect_success(cudaStreamSynchronize(of), "the device reports");
            throw_reported(of);
          }};
}

/// Memory of the device for a workspace, taken and given back in the order of the stream.
inline memory_source memory(cudaStream_t stream) {
  return {[](void* s, std::size_t bytes) -> void* {
            void* p = nullptr;
            if (cudaMallocAsync(&p, bytes, static_cast<cudaStream_t>(s)) == cudaSuccess) return p;
            (void)cudaGetLastError();
            return nullptr;
          },
          [](void* s, void* p, std::size_t) { (void)cudaFreeAsync(p, static_cast<cudaStream_t>(s)); }, stream};
}

/// The stream of a context. A context without a queue is refused; what an earlier call has reported is thrown.
inline cudaStream_t stream_of(const context& ctx) {
  if (!ctx.has_queue())
    tigon::detail::fail(error_code::state,
                        "tigon: cuda: the context has no queue; expected one that is made with gpu::queue(stream)");
  const auto stream = static_cast<cudaStream_t>(ctx.stream());
  throw_reported(stream);
  return stream;
}

/// A number that a launch takes: of blocks, or of columns.
inline unsigned fitting(std::size_t count, const char* what) {
  if (count > std::size_t{std::numeric_limits<int>::max()})
    tigon::detail::fail(error_code::shape,
                        "tigon: cuda: " + std::to_string(count) + " " + what + "; expected at most 2^31 - 1");
  return static_cast<unsigned>(count);
}
inline unsigned blocks(std::size_t count) { return fitting(count, "blocks"); }
inline unsigned columns(std::size_t count) { return fitting(count, "columns"); }

/// Behind everything that goes into the queue of a context, a kernel or a library's: with TIGON_CHECKS of 2 the call
/// waits for it, and throws what it reports.
inline void is_queued([[maybe_unused]] context& ctx) {
#if TIGON_CHECKS >= 2
  ctx.wait();
#endif
}

// A launch puts a kernel into the queue of the context.
#if defined(TIGON_CUDA_MODEL)
template <class... Parameter, class... Argument>
void launch(context& ctx, void (*kernel)(Parameter...), dim3 grid, dim3 threads, Argument... argument) {
  cuda_model::launch(stream_of(ctx), kernel, grid, threads, argument...);
  is_queued(ctx);
}
#else
template <class... Parameter, class... Argument>
void launch(context& ctx, void (*kernel)(Parameter...), cudaLaunchConfig_t config, Argument... argument) {
  config.stream = stream_of(ctx);
  expect_success(cudaLaunchKernelEx(&config, kernel, argument...), "a kernel does not start");
  is_queued(ctx);
}
template <class... Parameter, class... Argument>
void launch(context& ctx, void (*kernel)(Parameter...), dim3 grid, dim3 threads, Argument... argument) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = threads;
  launch(ctx, kernel, config, argument...);
}
/// Clusters of so many blocks.
inline cudaLaunchAttribute cluster_of(unsigned blocks) {
  cudaLaunchAttribute of{};
  of.id = cudaLaunchAttributeClusterDimension;
  of.val.clusterDim = {blocks, 1, 1};
  return of;
}
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_RUNTIME_HPP

// From the plain arguments of kernels.hpp to tigon's: views, element types, threads and scratch memory; on CUDA
// (TIGON_TORCH_CUDA) the stream.
#ifndef TIGON_TORCH_CALL_HPP
#define TIGON_TORCH_CALL_HPP

#include <tigon/backend/kernel.hpp>
#include <tigon/core/arguments.hpp>
#include <tigon/core/context.hpp>

#include <stdexcept>
#include <string>

#include "kernels.hpp"

#if !defined(TIGON_TORCH_CUDA)
#define TIGON_TORCH_CUDA 0
#endif

namespace tigon_torch {

/// The executor over PyTorch's threads: each takes the next task until there is none. A run() in a task of another one
/// stays on its thread, because PyTorch does not nest.
class torch_threads {
 public:
  explicit torch_threads(const host& of) : host_(&of) {}
  std::size_t workers() const { return host_->workers; }
  void run(std::size_t tasks, tigon::task_ref fn) const {
    const std::size_t count = std::min(tasks, host_->workers);
    if (count <= 1) {
      for (std::size_t task = 0; task < tasks; ++task) fn(task, 0);
      return;
    }
    shared all{{}, tasks, fn, {}};
    host_->parallel(
        count,
        [](void* of, std::size_t worker) {
          auto& s = *static_cast<shared*>(of);
          s.thrown.attempt([&] {
            for (std::size_t task; !s.thrown.any() && (task = s.next.fetch_add(1)) < s.tasks;) s.fn(task, worker);
          });
        },
        &all);
    all.thrown.rethrow();
  }

 private:
  struct shared {
    std::atomic<std::size_t> next;
    std::size_t tasks;
    tigon::task_ref fn;
    tigon::detail::first_exception thrown;
  };
  const host* host_;
};

/// What orders calls on a device.
inline tigon::device_queue queue_of([[maybe_unused]] const host& h) {
#if TIGON_TORCH_CUDA
  return tigon::gpu::queue(static_cast<cudaStream_t>(h.stream));
#else
  return {};
#endif
}

/// door(ctx) with bytes(ctx) of PyTorch's memory as its workspace. An error is a std::runtime_error, which is Python's
/// RuntimeError in every version of PyTorch; 2.10 makes a ValueError of a std::invalid_argument, later ones do not.
template <class Bytes, class Door>
void run(const host& h, Bytes bytes, Door door) try {
  torch_threads threads(h);
  tigon::workspace none;
  const tigon::context asks(threads, none, queue_of(h));
  const std::size_t n = bytes(asks);
  if (n == 0 || n >= tigon::workspace::most_bytes) {
    tigon::context ctx(threads, none, queue_of(h));
    return door(ctx);
  }
  tigon::workspace scratch(std::span(static_cast<std::byte*>(h.scratch(h.memory, n)), n));
  tigon::context ctx(threads, scratch, queue_of(h));
  door(ctx);
} catch (const tigon::error& e) {
  throw std::runtime_error(e.what());
}
template <class Door>
void run(const host& h, Door door) {
  run(
      h, [](const tigon::context&) { return std::size_t{0}; }, door);
}

/// Whether an operator has a kernel where the data of this table are. Every operator has one on a CPU.
template <class Op>
inline constexpr bool has_kernel = tigon::detail::reaches_data<Op, tigon::default_backend>;
template <>
inline constexpr bool has_kernel<void> = tigon::host_memory<tigon::default_backend>;
/// The entry of an operator in a table: null without a kernel.
template <class Op, class F>
constexpr F* entry(F* f) {
  return has_kernel<Op> ? f : nullptr;
}

/// f.operator()<T>() for the element type. The tables of an instruction set are of f32 and bf16, those of products of
/// one of them; f64, which is there for checks of gradients, is compiled once, for any CPU, and so is f16, for those
/// that convert it. Those of CUDA are of one type each.
template <class F>
void with_type(const char* op, type of, F f) {
#if TIGON_TORCH_F64
  if (of == type::f64) return f.template operator()<double>();
#elif TIGON_TORCH_F16
  if (of == type::f16) return f.template operator()<tigon::float16>();
#else
#if !TIGON_TORCH_BF16
  if (of == type::f32) return f.template operator()<float>();
#endif
#if !TIGON_TORCH_F32
  if (of == type::bf16) return f.template operator()<tigon::bfloat16>();
#endif
#endif
  tigon::detail::fail_argument(tigon::error_code::dtype, op, "the first tensor", "of another element type",
                               "f32, bf16, f16 or f64");
}

/// The same for an operator that this table may have no kernel of.
template <class Op, class F>
void with_type(const char* op, type of, F f) {
  if constexpr (has_kernel<Op>) with_type(op, of, f);
}

/// f.operator()<P>() for the type of parameters beside elements of T: that of the sums, on CUDA also T.
template <class T, class F>
void with_parameters([[maybe_unused]] type of, F f) {
  using A = tigon::accumulator_t<T>;
#if TIGON_TORCH_CUDA
  if constexpr (sizeof(T) < sizeof(A))
    if (of == (std::is_same_v<T, tigon::bfloat16> ? type::bf16 : type::f16)) return f.template operator()<T>();
#endif
  f.template operator()<A>();
}

template <class T>
tigon::matrix_view<T> view(const matrix& m) {
  return {static_cast<T*>(m.data), m.rows, m.cols, m.stride};
}
template <class T>
std::span<T> view(const vector& v) {
  return {static_cast<T*>(v.data), v.size};
}
template <class T>
tigon::heads_view<T> view(const heads& h) {
  return {static_cast<T*>(h.data), h.batch,       h.heads,     h.seq_len, h.head_dim,
          h.batch_stride,          h.head_stride, h.seq_stride};
}

}  // namespace tigon_torch

#endif  // TIGON_TORCH_CALL_HPP

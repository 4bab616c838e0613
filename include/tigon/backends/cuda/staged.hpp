// A part of a row in a block's shared memory, and blocks that share a row. Of a GPU alone: the model of one has
// neither.
#ifndef TIGON_BACKENDS_CUDA_STAGED_HPP
#define TIGON_BACKENDS_CUDA_STAGED_HPP

#include <tigon/backends/cuda/elements.hpp>
#include <tigon/backends/cuda/group.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// to[column] = 0 for the columns of a block.
template <int N, class D>
TIGON_DEVICE_INLINE void clear_columns(D* to, unsigned begin, unsigned end) {
  elements<N, D> none;
  none.fill(D(0.0f));
  for (unsigned j = begin + threadIdx.x * N; j < end; j += blockDim.x * N) none.store(to + j);
}

#if defined(__CUDACC__)
TIGON_DEVICE_INLINE unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// 16 bytes from the device's memory to an address of shared memory. They are on their way until the copies that a
/// thread has begun before its last `Later` calls of end_copies() are waited for.
TIGON_DEVICE_INLINE void copy_16_bytes(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// 16 bytes that have arrived.
template <int N, class T>
TIGON_DEVICE_INLINE void load_16_bytes(elements<N, T>& to, unsigned from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.w[0]), "=r"(to.w[1]), "=r"(to.w[2]), "=r"(to.w[3])
               : "r"(from));
}
TIGON_DEVICE_INLINE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Later>
TIGON_DEVICE_INLINE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Later) : "memory");
}

/// Blocks that run a kernel together, of which this is one; without a cluster it is alone. Numbers that each sends to
/// all: from the first threads, one for each block. Nobody waits but for the numbers themselves.
class cluster {
 public:
  static constexpr unsigned most_numbers = 4, most_blocks = 8;
  /// In shared memory.
  struct mailbox {
    double number[2][most_numbers][most_blocks];  ///< twice, so that one is read while the other is written
    std::uint64_t arrived[2];
  };
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static TIGON_DEVICE_INLINE unsigned rank() {
    unsigned r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
  }
  static TIGON_DEVICE_INLINE unsigned size() {
    unsigned n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
  }
  /// All threads of all blocks have come here.
  static TIGON_DEVICE_INLINE void sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
  explicit TIGON_DEVICE_INLINE cluster(mailbox& box) : box_(box) {
    if (threadIdx.x == 0) {
      for (const std::uint64_t& barrier : box.arrived)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync();
  }
  /// v[k] of all blocks joined in the order of blocks. v is the same in all threads of a block, which have met since
  /// they were here before.
  template <class Monoid, int K, class A>
  TIGON_DEVICE_INLINE void join(A (&v)[K]) {
    static_assert(K <= most_numbers);
    const unsigned blocks = size();
    if (blocks == 1) return;
    const unsigned turn = turn_++, which = turn % 2;
    const unsigned arrived = shared_address(&box_.arrived[which]);
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(arrived),
                   "r"(blocks * K * static_cast<unsigned>(sizeof(A)))
                   : "memory");
    if (threadIdx.x < blocks)
#pragma unroll
      for (int k = 0; k < K; ++k) send(shared_address(&box_.number[which][k][rank()]), threadIdx.x, v[k], arrived);
    unsigned done = 0;
    while (done == 0)
      asm volatile(
          "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, p;\n\t}"
          : "=r"(done)
          : "r"(arrived), "r"(turn / 2 % 2)
          : "memory");
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = number<A>(which, k, 0);
      for (unsigned b = 1; b < blocks; ++b) v[k] = Monoid::join(v[k], number<A>(which, k, b));
    }
  }

 private:
  template <class A>
  static TIGON_DEVICE_INLINE void send(unsigned to, unsigned block, A v, unsigned arrived) {
    unsigned there, arrived_there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(to), "r"(block));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(arrived_there) : "r"(arrived), "r"(block));
    if constexpr (sizeof(A) == 8)
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(there),
                   "d"(v), "r"(arrived_there)
                   : "memory");
    else
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there),
                   "f"(v), "r"(arrived_there)
                   : "memory");
  }
  template <class A>
  TIGON_DEVICE_INLINE A number(unsigned which, int k, unsigned block) const {
    return *reinterpret_cast<const volatile A*>(&box_.number[which][k][block]);
  }

  mailbox& box_;
  unsigned turn_ = 0;
#else
  static TIGON_DEVICE_INLINE unsigned rank() { return 0; }
  static TIGON_DEVICE_INLINE unsigned size() { return 1; }
  static TIGON_DEVICE_INLINE void sync() {}
  explicit TIGON_DEVICE_INLINE cluster(mailbox&) {}
  template <class Monoid, int K, class A>
  TIGON_DEVICE_INLINE void join(A (&)[K]) {}
#endif
};

/// A part of a row in shared memory. A thread reads what it has brought there itself, so nobody waits for it. It comes
/// in two halves.
template <int N, class T>
struct staged_part {
  static_assert(N * sizeof(T) == access_bytes);
  unsigned slots;  ///< an address of shared memory
  cluster& blocks;
  unsigned begin, middle, end;  ///< columns
  const T* next = nullptr;      ///< the row that follows; null: none

  TIGON_DEVICE_INLINE staged_part(unsigned to, cluster& of, unsigned first, unsigned last)
      : slots(to), blocks(of), begin(first), end(last) {
    const unsigned step = blockDim.x * N, steps = (last - first + step - 1) / step, half = first + steps / 2 * step;
    middle = half < last ? half : last;
  }

  static TIGON_DEVICE_INLINE bool first() { return threadIdx.x == 0 && cluster::rank() == 0; }
  TIGON_DEVICE_INLINE bool has(unsigned column) const {
    return column >= begin && column < end && (column - begin) / N % blockDim.x == threadIdx.x;
  }
  template <class Monoid, int K, class A>
  TIGON_DEVICE_INLINE void reduce(A (&v)[K]) {
    group<0>::reduce<Monoid>(v);
    blocks.join<Monoid>(v);
  }
  /// Before a map that nothing is reduced before: the row is here, and in all blocks where narrower elements of D may
  /// lie where it begins.
  template <class D>
  TIGON_DEVICE_INLINE void arrive() {
    wait_for_copies<0>();
    float none[1] = {0};
    if constexpr (sizeof(D) < sizeof(T)) reduce<add>(none);
  }
  template <class D>
  TIGON_DEVICE_INLINE void clear(D* to) const {
    clear_columns<N>(to, begin, end);
  }
  template <class F>
  TIGON_DEVICE_INLINE void each(F f) const {
    wait_for_copies<1>();
    half(begin, middle, [&](unsigned j, unsigned, const elements<N, T>& e) { f(j, e); });
    wait_for_copies<0>();
    half(middle, end, [&](unsigned j, unsigned, const elements<N, T>& e) { f(j, e); });
  }
  /// As above; the next row takes the place of this one.
  template <class D, class F>
  TIGON_DEVICE_INLINE void map(D* to, F f) {
    const auto one = [&](unsigned j, unsigned slot, const elements<N, T>& e) {
      f(j, e).store(to + j);
      if (next != nullptr) copy_16_bytes(slot, next + j);
    };
    half(begin, middle, one);
    end_copies();
    half(middle, end, one);
    end_copies();
    next = nullptr;
  }
  /// The next row, if no map has brought it.
  TIGON_DEVICE_INLINE void bring_next() {
    if (next == nullptr) return;
    const auto copy = [&](unsigned from, unsigned up_to) {
      for (unsigned j = from + threadIdx.x * N; j < up_to; j += blockDim.x * N) copy_16_bytes(slot_of(j), next + j);
      end_copies();
    };
    copy(begin, middle), copy(middle, end);
    next = nullptr;
  }

 private:
  TIGON_DEVICE_INLINE unsigned slot_of(unsigned column) const {
    return slots + (column - begin) * static_cast<unsigned>(sizeof(T));
  }
  template <class F>
  TIGON_DEVICE_INLINE void half(unsigned from, unsigned up_to, F f) const {
#pragma unroll 2
    for (unsigned j = from + threadIdx.x * N; j < up_to; j += blockDim.x * N) {
      elements<N, T> e;
      load_16_bytes(e, slot_of(j));
      f(j, slot_of(j), e);
    }
  }
};
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_STAGED_HPP

// Ranks whose data are on NVIDIA's GPUs, by NCCL. Opt-in: nothing else includes this header, and it needs <nccl.h>,
// which PyPI has (nvidia-nccl-cu13), and CUDA's headers; programs link with -lnccl.
#ifndef TIGON_COMM_NCCL_HPP
#define TIGON_COMM_NCCL_HPP

#if !__has_include(<nccl.h>)
#error "tigon: comm/nccl.hpp needs <nccl.h>; install nvidia-nccl-cu13, and name its folder with -I"
#include <the_error_above_ends_compilation>
#endif
#include <nccl.h>

#include <tigon/comm/communicator.hpp>
#include <tigon/core/element.hpp>

#include <optional>
#include <string>

namespace tigon::comm {

/// The ranks of the caller's NCCL communicator, which has to outlive this, as has the stream. Bytes are in the device's
/// memory, and a call returns when it is in the stream: nothing is waited for, and a CUDA graph can capture it. What
/// NCCL calls an error becomes tigon::error (device). A rank that leaves while others gather makes them wait;
/// ncclCommAbort is the caller's. Each rank is a process: ranks that are threads of one wait for each other for ever
/// when a product's kernel is loaded while the other rank gathers (docs/cuda.md).
class nccl {
 public:
  static constexpr bool host_memory = false;

  /// host: ranks in the same order, by which the hosts compare shapes and options before a call writes, and throw the
  /// same error together. Without it nobody compares: what has to be equal on all ranks is the caller's part.
  TIGON_TAGGED nccl(ncclComm_t c, cudaStream_t stream, std::optional<communicator_ref> host = {})
      : comm_(c), stream_(stream), host_(host) {
    if (c == nullptr) fail_argument("comm", "null", "a communicator of NCCL");
    int rank = 0, size = 1;
    check("ncclCommUserRank", ncclCommUserRank(c, &rank));
    check("ncclCommCount", ncclCommCount(c, &size));
    rank_ = static_cast<std::size_t>(rank), size_ = static_cast<std::size_t>(size);
    if (!host) return;
    if (!host->host_memory()) fail_argument("host", "a communicator of a device", "one of the host");
    if (host->rank() != rank_ || host->size() != size_)
      fail_argument("host", "rank " + std::to_string(host->rank()) + " of " + std::to_string(host->size()),
                    "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ", as NCCL has it");
  }

  TIGON_INLINE std::size_t rank() const { return rank_; }
  TIGON_INLINE std::size_t size() const { return size_; }
  TIGON_INLINE const void* queue() const { return stream_; }
  TIGON_INLINE const communicator_ref* host() const { return host_ ? &*host_ : nullptr; }

  TIGON_TAGGED void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    if (!mine.empty())
      check("ncclAllGather", ncclAllGather(mine.data(), all.data(), mine.size(), ncclInt8, comm_, stream_));
  }

  /// into = the sum of all ranks' values, in the order that NCCL chooses by size, topology and version: other bits on
  /// another machine. `into` may be `values`. No operator of this library uses it.
  template <element T>
  TIGON_TAGGED void sum_in_order_of_nccl(std::type_identity_t<std::span<const T>> values, std::span<T> into) const {
    if (into.size() != values.size())
      tigon::detail::fail_argument(error_code::shape, "comm::nccl", "into",
                                   "of " + std::to_string(into.size()) + " elements", std::to_string(values.size()));
    constexpr ncclDataType_t type = std::is_same_v<T, double>     ? ncclFloat64
                                    : std::is_same_v<T, float>    ? ncclFloat32
                                    : std::is_same_v<T, bfloat16> ? ncclBfloat16
                                                                  : ncclFloat16;
    if (!values.empty())
      check("ncclAllReduce", ncclAllReduce(values.data(), into.data(), values.size(), type, ncclSum, comm_, stream_));
  }

  /// Throws for any code but ncclSuccess, with NCCL's own words. A communicator that does not block is still at work
  /// (ncclInProgress) and is refused.
  TIGON_TAGGED static void check(const char* function, ncclResult_t code) {
    if (code == ncclSuccess) return;
    tigon::detail::fail(error_code::device,
                        "tigon: comm::nccl: " + std::string(function) + ": " + ncclGetErrorString(code));
  }

 private:
  [[noreturn]] static void fail_argument(const char* name, const std::string& came, const std::string& expected) {
    tigon::detail::fail_argument(error_code::argument, "comm::nccl", name, came, expected);
  }

  ncclComm_t comm_;
  cudaStream_t stream_;
  std::optional<communicator_ref> host_;
  std::size_t rank_ = 0, size_ = 1;
};

}  // namespace tigon::comm

#endif  // TIGON_COMM_NCCL_HPP

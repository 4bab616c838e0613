// A process group of torch.distributed as tigon's communicator.
#ifndef TIGON_TORCH_PROCESS_GROUP_HPP
#define TIGON_TORCH_PROCESS_GROUP_HPP

#include <tigon/comm/communicator.hpp>

#include <stdexcept>

#include "call.hpp"

namespace tigon_torch {

/// By the number that Python knows it by; with one rank nothing is sent. On CUDA the bytes are the device's, in the
/// order of the call's stream, and the hosts compare nothing.
class process_group {
 public:
#if TIGON_TORCH_CUDA
  static constexpr bool host_memory = false;
  const void* queue() const { return host_->stream; }
  const tigon::communicator_ref* host() const { return nullptr; }
#endif
  process_group(const tigon_torch::host& of, std::int64_t group, std::size_t rank, std::size_t size)
      : host_(&of), group_(group), rank_(rank), size_(size) {}
  std::size_t rank() const { return rank_; }
  std::size_t size() const { return size_; }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    exchange(host_->all_gather, "all_gather", mine, all);
  }
  void all_to_all(std::span<const std::byte> mine, std::span<std::byte> all) const {
    exchange(host_->all_to_all, "all_to_all", mine, all);
  }

 private:
  template <class F>
  void exchange(F* by, const char* name, std::span<const std::byte> mine, std::span<std::byte> all) const {
    if (size_ == 1) return tigon::comm::serial().all_gather(mine, all);
    if (by == nullptr || by(group_, mine.data(), mine.size(), all.data()) != 0)
      throw std::runtime_error(std::string("tigon: an ") + name + " of torch.distributed failed");
  }

  const tigon_torch::host* host_;
  std::int64_t group_;
  std::size_t rank_, size_;
};

}  // namespace tigon_torch

#endif  // TIGON_TORCH_PROCESS_GROUP_HPP

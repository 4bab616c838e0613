#include "support/buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tigon_bench {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

struct block {
  void* data;
  std::size_t bytes;
  bool taken;
};

std::vector<block>& blocks() {
  static std::vector<block> instance;
  return instance;
}

}  // namespace

void* acquire_block(std::size_t bytes) {
  const std::size_t rounded = std::max<std::size_t>(1, (bytes + huge_page - 1) / huge_page) * huge_page;
  block* best = nullptr;
  // A block may be up to an eighth too large: a small request must not sit on a large block that the next case wants.
  for (block& b : blocks())
    if (!b.taken && b.bytes >= rounded && b.bytes <= rounded + rounded / 8 &&
        (best == nullptr || b.bytes < best->bytes))
      best = &b;
  if (best == nullptr) {
    void* data = std::aligned_alloc(huge_page, rounded);
    if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    (void)::madvise(data, rounded, MADV_HUGEPAGE);
#endif
    std::memset(data, 0, rounded);
    blocks().push_back({data, rounded, false});
    best = &blocks().back();
  }
  best->taken = true;
  return best->data;
}

void release_block(void* data) noexcept {
  for (block& b : blocks())
    if (b.data == data) b.taken = false;
}

}  // namespace tigon_bench

#include "support/buffers.hpp"

#include "support/unsupported.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <string>
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
  static auto& instance = *new std::vector<block>;  // never destroyed: buffers that are static outlive what is
  return instance;
}

bool clear_first = false;

std::size_t most_bytes = std::numeric_limits<std::size_t>::max();

/// Frees blocks that nobody has if `bytes` more would be too many with them, and refuses if they are without them.
void make_room(std::size_t bytes) {
  std::size_t taken = 0, held = 0;
  for (const block& b : blocks()) {
    held += b.bytes;
    if (b.taken) taken += b.bytes;
  }
  if (bytes > most_bytes || taken > most_bytes - bytes) {
    char limit[32];
    std::snprintf(limit, sizeof limit, "%.3g GiB", static_cast<double>(most_bytes) / (1 << 30));
    throw unsupported("too much memory: its arrays take more than " + std::string(limit) + " (--memory)");
  }
  if (held <= most_bytes - bytes) return;
  std::erase_if(blocks(), [](const block& b) {
    if (!b.taken) std::free(b.data);
    return !b.taken;
  });
}

struct count_state {
  bool on = false;
  std::size_t bytes = 0, peak = 0;
  std::map<void*, std::size_t> blocks;
} count;

void* counted_block(std::size_t bytes) {
  if (bytes > most_bytes || count.bytes > most_bytes - bytes) throw std::bad_alloc();
  void* const data = std::calloc(std::max<std::size_t>(bytes, 1), 1);
  if (data == nullptr) throw std::bad_alloc();
  count.blocks[data] = bytes;
  count.bytes += bytes;
  count.peak = std::max(count.peak, count.bytes);
  return data;
}

}  // namespace

counting_scope::counting_scope() { count.on = true, count.peak = count.bytes; }
counting_scope::~counting_scope() { count.on = false; }
std::size_t counting_scope::peak_bytes() const { return count.peak; }
bool counting() { return count.on; }

void clear_blocks_first() { clear_first = true; }

std::uint64_t digest_of_blocks() {
  std::uint64_t sum = 0;
  for (const block& b : blocks()) {
    if (!b.taken) continue;
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, eight bytes at a time
    const auto* const words = static_cast<const std::uint64_t*>(b.data);
    for (std::size_t i = 0; i < b.bytes / sizeof(std::uint64_t); ++i) {
      hash = (hash ^ words[i]) * 0x100000001b3u;
      hash ^= hash >> 32;
    }
    sum += hash;
  }
  return sum;
}

void limit_memory(std::size_t bytes) { most_bytes = bytes; }

void* acquire_block(std::size_t bytes) {
  if (counting()) return counted_block(bytes);
  const std::size_t rounded = std::max<std::size_t>(1, (bytes + huge_page - 1) / huge_page) * huge_page;
  block* best = nullptr;
  // A block may be up to an eighth too large: a small request must not sit on a large block that the next case wants.
  for (block& b : blocks())
    if (!b.taken && b.bytes >= rounded && b.bytes <= rounded + rounded / 8 &&
        (best == nullptr || b.bytes < best->bytes))
      best = &b;
  if (best == nullptr) {
    make_room(rounded);
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
  if (clear_first) std::memset(best->data, 0, best->bytes);
  return best->data;
}

void release_block(void* data) noexcept {
  if (const auto counted = count.blocks.find(data); counted != count.blocks.end()) {
    count.bytes -= counted->second;
    count.blocks.erase(counted);
    std::free(data);
    return;
  }
  for (block& b : blocks())
    if (b.data == data) b.taken = false;
}

}  // namespace tigon_bench

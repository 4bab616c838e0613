// The contract of tigon::workspace: memory at any address, sizes that cannot be counted, and memory that is not there.
#include <gtest/gtest.h>

#include <tigon/core/context.hpp>

#include <limits>
#include <vector>

#include "support/guarded.hpp"
#include "support/throws.hpp"

#if defined(__SANITIZE_ADDRESS__)
// As without a sanitizer: no memory is a null pointer.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace {

using namespace tigon::test;
using tigon::workspace;

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
constexpr std::size_t too_many = std::size_t{1} << 50;  // bytes that no system has, and that can be counted

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % workspace::alignment == 0; }

TEST(workspace, states_room_for_alignment) {
  EXPECT_EQ(workspace::bytes_for<float>(0), 0u);
  EXPECT_EQ(workspace::bytes_for<float>(1), 128u);
  EXPECT_EQ(workspace::bytes_for<float>(16), 128u);
  EXPECT_EQ(workspace::bytes_for<float>(17), 192u);
  EXPECT_EQ(workspace::bytes_for<double>(3, 2, 4), workspace::bytes_for<double>(24));
  EXPECT_EQ(workspace::padded<float>(17), 32u);
  EXPECT_EQ(workspace::padded<std::byte>(64), 64u);
  EXPECT_EQ(workspace::padded<float>(0), 0u);
}

TEST(workspace, is_enough_at_any_address) {
  for (std::size_t begin = 0; begin <= workspace::alignment; ++begin) {
    const std::size_t bytes =
        workspace::bytes_for<char>(1) + workspace::bytes_for<double>(9) + workspace::bytes_for<float>(100);
    guarded<std::byte> memory(bytes + begin);  // ends at a page that may not be touched
    workspace ws(std::span(memory.data(), bytes));
    EXPECT_EQ(ws.capacity(), bytes);
    ws.expect("op", bytes);
    EXPECT_TIGON_ERROR(
        ws.expect("op", bytes + 1), workspace,
        "tigon: op: workspace is of " + std::to_string(bytes) + " free bytes; expected " + std::to_string(bytes + 1));
    {
      workspace::frame outer(ws);
      char* one = outer.take<char>(1);
      double* none = outer.take<double>(0);
      (void)none;
      double* nine = outer.take<double>(9);
      {
        workspace::frame inner(ws);
        float* hundred = inner.take<float>(100);
        EXPECT_TRUE(aligned(one) && aligned(nine) && aligned(hundred));
        *one = 1, std::fill_n(nine, 9, 2.0), std::fill_n(hundred, 100, 3.0f);
        EXPECT_EQ(*one, 1);
        EXPECT_EQ(nine[0] + nine[8], 4);
        EXPECT_EQ(ws.used(), bytes);
        EXPECT_TIGON_ERROR(inner.take<char>(1), workspace, "workspace is of 0 free bytes");
      }
      EXPECT_EQ(ws.used(), bytes - workspace::bytes_for<float>(100));
    }
    EXPECT_EQ(ws.used(), 0u);
    EXPECT_EQ(ws.high_water(), bytes);
    for (std::size_t i = bytes; i < memory.size(); ++i) EXPECT_EQ(memory[i], std::byte{canary<std::byte>});
  }
}

TEST(workspace, counts_what_an_owned_one_takes_alike) {
  workspace ws;
  const std::size_t bytes = workspace::bytes_for<char>(1) + workspace::bytes_for<double>(9);
  ws.expect("op", bytes);
  workspace::frame frame(ws);
  char* one = frame.take<char>(1);
  double* nine = frame.take<double>(9);
  EXPECT_TRUE(aligned(one) && aligned(nine));
  EXPECT_EQ(ws.used(), bytes);
  EXPECT_TIGON_ERROR(frame.take<char>(too_many / 2), state, "workspace is in use and cannot grow");
  EXPECT_TIGON_ERROR(frame.take<double>(most / 8), workspace, "tigon: workspace: workspace is of ");
  EXPECT_EQ(ws.used(), bytes);
}

TEST(workspace, does_not_count_beyond_what_can_be_had) {
  constexpr std::size_t limit = workspace::most_bytes;
  for (const std::size_t count : {most, most - 15, most / 4 + 1, most / 8 + 2, std::size_t{1} << 62, limit})
    EXPECT_EQ(workspace::bytes_for<double>(count), limit) << count;
  EXPECT_EQ(workspace::bytes_for<char>(limit - 1), limit);
  EXPECT_LT(workspace::bytes_for<char>(limit - 200), limit);
  EXPECT_EQ(workspace::bytes_for<float>(std::size_t{1} << 40, std::size_t{1} << 40), limit);
  EXPECT_EQ(workspace::bytes_for<float>(most, most, most, 0), 0u);
  EXPECT_EQ(workspace::product(std::size_t{1} << 32, std::size_t{1} << 32, 1), limit);
  EXPECT_EQ(workspace::product(3, 5), 15u);
  EXPECT_GE(workspace::padded<float>(most), limit / sizeof(float));
  EXPECT_LE(workspace::padded<float>(most), limit / sizeof(float) + 16);
}

TEST(workspace, refuses_what_cannot_be_had_and_keeps_what_it_has) {
  std::vector<std::byte> bytes(1000);
  workspace fixed(bytes), owned;
  owned.expect("op", 4096);
  const std::size_t before = owned.capacity();
  EXPECT_GE(before, 4096u);
  for (const std::size_t request :
       {most, most - 100, most - 101, most / 2, std::size_t{1} << 60, workspace::most_bytes}) {
    EXPECT_TIGON_ERROR(fixed.expect("op", request), workspace, "op: workspace is of 1000 free bytes; expected ");
    EXPECT_TIGON_ERROR(owned.expect("op", request), workspace,
                       "op: workspace is of " + std::to_string(before) +
                           " free bytes, and memory has no more; expected " + std::to_string(request));
    workspace::frame a(fixed), b(owned);
    EXPECT_TIGON_ERROR(a.take<double>(request), workspace, "workspace is of 1000 free bytes");
    EXPECT_TIGON_ERROR(b.take<double>(request), workspace, "workspace is of ");
  }
  EXPECT_EQ(owned.capacity(), before);
  EXPECT_EQ(fixed.capacity(), 1000u);
}

TEST(workspace, without_memory_is_an_error_of_tigon) {
  workspace ws;
  for (int round = 0; round < 2; ++round) {
    EXPECT_TIGON_ERROR(
        ws.expect("op", too_many), workspace,
        "op: workspace is of 0 free bytes, and memory has no more; expected " + std::to_string(too_many));
    EXPECT_EQ(ws.capacity(), 0u);
    EXPECT_EQ(ws.used(), 0u);
    ws.expect("op", 1 << 22);  // of huge pages
    {
      workspace::frame frame(ws);
      std::fill_n(frame.take<char>(1 << 20), 1 << 20, 'x');
    }
    ws.expect("op", 1);
    EXPECT_GE(ws.capacity(), std::size_t{1} << 22);
  }
  EXPECT_TIGON_ERROR(tigon::default_context().workspace().expect("op", too_many), workspace, "and memory has no more");
}

/// Counts what a source gives and gets back, and has so many bytes.
struct counted_memory {
  std::size_t most = 4096, taken = 0, given = 0, calls = 0;
  std::vector<std::byte> bytes = std::vector<std::byte>(4096 + 1);

  static void* take(void* self, std::size_t bytes) {
    auto& memory = *static_cast<counted_memory*>(self);
    ++memory.calls;
    if (bytes > memory.most) return nullptr;
    memory.taken += bytes;
    return memory.bytes.data() + 1;  // at any address
  }
  static void give(void* self, void* from, std::size_t bytes) {
    auto& memory = *static_cast<counted_memory*>(self);
    EXPECT_EQ(from, memory.bytes.data() + 1);
    memory.given += bytes;
  }
  tigon::memory_source source() { return {take, give, this}; }
};

TEST(workspace, takes_memory_of_a_source_and_gives_it_back) {
  counted_memory memory;
  {
    workspace ws(memory.source());
    EXPECT_EQ(memory.calls, 0u);
    ws.expect("op", workspace::bytes_for<double>(9));
    EXPECT_EQ(memory.taken, workspace::bytes_for<double>(9));
    {
      workspace::frame frame(ws);
      double* nine = frame.take<double>(9);
      EXPECT_TRUE(aligned(nine));
      EXPECT_GE(reinterpret_cast<std::byte*>(nine), memory.bytes.data() + 1);
    }
    ws.expect("op", 2000);  // grows: what there was goes back first
    EXPECT_EQ(memory.given, workspace::bytes_for<double>(9));
    EXPECT_EQ(memory.taken - memory.given, 2000u);
    ws.expect("op", 100);
    EXPECT_EQ(memory.calls, 2u);
    EXPECT_TIGON_ERROR(ws.expect("op", 5000), workspace,
                       "op: workspace is of 0 free bytes, and memory has no more; expected 5000");
    EXPECT_EQ(ws.capacity(), 0u);
    EXPECT_EQ(memory.taken, memory.given);
    ws.expect("op", 4096);
  }
  EXPECT_EQ(memory.taken, memory.given);
}

/// A queue that knows how often it was waited for, and reports what its work reports.
struct counted_queue {
  int waits = 0;
  bool fails = false;
  static void finish(void* stream) {
    auto& queue = *static_cast<counted_queue*>(stream);
    ++queue.waits;
    if (queue.fails) throw tigon::error(tigon::error_code::state, "tigon: acme: the card is gone");
  }
};

TEST(context, waits_for_its_queue) {
  counted_queue queue;
  workspace ws;
  const tigon::context plain(tigon::serial(), ws), queued(tigon::serial(), ws, {&queue, counted_queue::finish});
  EXPECT_EQ(plain.stream(), nullptr);
  plain.wait();
  EXPECT_EQ(queued.stream(), &queue);
  EXPECT_EQ(queue.waits, 0);
  queued.wait();
  EXPECT_EQ(queue.waits, 1);
  queue.fails = true;
  EXPECT_TIGON_ERROR(queued.wait(), state, "the card is gone");
}

TEST(workspace, over_no_memory_gives_nothing) {
  workspace none(std::span<std::byte>{});
  none.expect("op", 0);
  workspace::frame frame(none);
  EXPECT_EQ(frame.take<float>(0), nullptr);
  EXPECT_TIGON_ERROR(frame.take<char>(1), workspace, "workspace is of 0 free bytes; expected 128");
}

}  // namespace

// Ranks that compute together: the concept of a communicator, and one rank alone.
#ifndef TIGON_COMM_COMMUNICATOR_HPP
#define TIGON_COMM_COMMUNICATOR_HPP

#include <tigon/core/error.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tigon {

/// What a communicator is: a rank in [0, size()), and all_gather(mine, all), which all ranks call, in the same order
/// and with equally many bytes, and which leaves those of rank r at all[r * mine.size()]. `mine` and `all` are apart.
/// It may also have all_to_all(mine, all) of size() equal parts: part r of `mine` goes to rank r, and becomes the part
/// of this rank in `all` there. Sums over more than two ranks then send less.
/// A communicator of a device says `static constexpr bool host_memory = false`: `mine` and `all` are in the device's
/// memory, and all_gather returns when it is in the queue whose stream is queue(). host() is the communicator by which
/// the hosts of the ranks compare what they were called with, or null: then nobody does.
template <class C>
concept communicator = requires(const C& c, std::span<const std::byte> mine, std::span<std::byte> all) {
  { c.rank() } -> std::convertible_to<std::size_t>;
  { c.size() } -> std::convertible_to<std::size_t>;
  c.all_gather(mine, all);
};

namespace comm {

/// One rank: nothing is sent.
struct serial {
  TIGON_INLINE std::size_t rank() const { return 0; }
  TIGON_INLINE std::size_t size() const { return 1; }
  TIGON_INLINE void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    if (!mine.empty()) std::memcpy(all.data(), mine.data(), mine.size());
  }
};

}  // namespace comm

namespace detail {
template <class C>
concept exchanging =
    requires(const C& c, std::span<const std::byte> mine, std::span<std::byte> all) { c.all_to_all(mine, all); };
template <class C>
inline constexpr bool gathers_on_host = true;
template <class C>
  requires requires { C::host_memory; }
inline constexpr bool gathers_on_host<C> = C::host_memory;
}  // namespace detail

/// A non-owning reference to any communicator; lives no longer than the call it is passed to.
class communicator_ref {
 public:
  template <communicator C>
    requires(!std::same_as<C, communicator_ref>)
  TIGON_TAGGED TIGON_INLINE communicator_ref(const C& c)  // NOLINT: converts on purpose
      : object_(std::addressof(c)),
        rank_(c.rank()),
        size_(c.size()),
        all_gather_([](const void* object, std::span<const std::byte> mine, std::span<std::byte> all) {
          static_cast<const C*>(object)->all_gather(mine, all);
        }) {
    if constexpr (detail::exchanging<C>)
      all_to_all_ = [](const void* object, std::span<const std::byte> mine, std::span<std::byte> all) {
        static_cast<const C*>(object)->all_to_all(mine, all);
      };
    if constexpr (!detail::gathers_on_host<C>) host_memory_ = false, queue_ = c.queue(), host_ = c.host();
  }

  TIGON_INLINE std::size_t rank() const { return rank_; }
  TIGON_INLINE std::size_t size() const { return size_; }
  TIGON_INLINE void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    all_gather_(object_, mine, all);
  }
  /// Whether `mine` and `all` are in memory of the host; otherwise a device gathers, in the order of queue().
  TIGON_INLINE bool host_memory() const { return host_memory_; }
  TIGON_INLINE const void* queue() const { return queue_; }
  /// By which the hosts of the ranks exchange what they know; null: not at all.
  TIGON_INLINE const communicator_ref* host() const { return host_memory_ ? this : host_; }
  /// Whether it has an all_to_all of its own.
  TIGON_INLINE bool exchanges() const { return all_to_all_ != nullptr; }
  /// Without one of its own every rank gathers the parts of all, for which this takes size() times the memory of
  /// `mine`.
  TIGON_INLINE void all_to_all(std::span<const std::byte> mine, std::span<std::byte> all) const {
    if (exchanges()) return all_to_all_(object_, mine, all);
    std::vector<std::byte> everything(size_ * mine.size());
    all_gather(mine, everything);
    const std::size_t part = mine.size() / size_;
    for (std::size_t r = 0; r < size_ && part != 0; ++r)
      std::memcpy(all.data() + r * part, everything.data() + r * mine.size() + rank_ * part, part);
  }

 private:
  using exchange = void (*)(const void*, std::span<const std::byte>, std::span<std::byte>);
  const void* object_;
  std::size_t rank_, size_;
  exchange all_gather_, all_to_all_ = nullptr;
  bool host_memory_ = true;
  const void* queue_ = nullptr;
  const communicator_ref* host_ = nullptr;
};

namespace comm {
inline namespace TIGON_ABI {

/// The elements of rank r become all[r * mine.size()], ...
template <class T>
  requires std::is_trivially_copyable_v<T>
void all_gather(communicator_ref c, std::type_identity_t<std::span<const T>> mine, std::span<T> all) {
  if (all.size() != c.size() * mine.size())
    tigon::detail::fail_argument(error_code::shape, "comm::all_gather", "all",
                                 "of " + std::to_string(all.size()) + " elements",
                                 std::to_string(c.size() * mine.size()));
  c.all_gather(std::as_bytes(mine), std::as_writable_bytes(all));
}

/// Part r of `mine`, of size() equal ones, goes to rank r, and part r of `all` comes from there.
template <class T>
  requires std::is_trivially_copyable_v<T>
void all_to_all(communicator_ref c, std::type_identity_t<std::span<const T>> mine, std::span<T> all) {
  if (mine.size() % c.size() != 0)
    tigon::detail::fail_argument(error_code::shape, "comm::all_to_all", "mine",
                                 "of " + std::to_string(mine.size()) + " elements",
                                 "a multiple of " + std::to_string(c.size()) + ", the number of ranks");
  if (all.size() != mine.size())
    tigon::detail::fail_argument(error_code::shape, "comm::all_to_all", "all",
                                 "of " + std::to_string(all.size()) + " elements", std::to_string(mine.size()));
  c.all_to_all(std::as_bytes(mine), std::as_writable_bytes(all));
}

/// into[j] = op(op(into[j], part of this rank in `values` of rank 0), that of rank 1), ...: of `values`, size() equal
/// parts, each rank gets the fold of its own. `scratch` has as many elements as `values`, and is apart from both.
template <class T, class Op>
  requires std::is_trivially_copyable_v<T>
void reduce_scatter_in_rank_order(communicator_ref c, std::type_identity_t<std::span<const T>> values,
                                  std::span<T> into, std::type_identity_t<std::span<T>> scratch, Op op) {
  const std::size_t ranks = c.size(), n = into.size();
  const auto expect = [&](const char* name, std::size_t size) {
    if (size != ranks * n)
      tigon::detail::fail_argument(error_code::shape, "comm::reduce_scatter_in_rank_order", name,
                                   "of " + std::to_string(size) + " elements",
                                   std::to_string(ranks * n) + ", those of into for every rank");
  };
  expect("values", values.size()), expect("scratch", scratch.size());
  all_to_all<T>(c, values, scratch);
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t j = 0; j < n; ++j) into[j] = op(into[j], scratch[r * n + j]);
}

/// into[j] = op(op(op(into[j], values[j] of rank 0), values[j] of rank 1), ...): one order on every rank, whatever the
/// communicator and its timing, so the bits are the same everywhere, where `into` is. As many elements at a time as
/// `scratch` holds of all ranks: at least one, equally many on every rank. Where the communicator has an all_to_all,
/// each of more than two ranks folds its share, and all gather the shares: two values an element are sent and not one a
/// rank.
template <class T, class Op>
  requires std::is_trivially_copyable_v<T>
void reduce_in_rank_order(communicator_ref c, std::type_identity_t<std::span<const T>> values, std::span<T> into,
                          std::type_identity_t<std::span<T>> scratch, Op op) {
  const std::size_t ranks = c.size(), block = scratch.size() / ranks;
  if (into.size() != values.size())
    tigon::detail::fail_argument(error_code::shape, "comm::reduce_in_rank_order", "into",
                                 "of " + std::to_string(into.size()) + " elements", std::to_string(values.size()));
  if (block == 0)
    tigon::detail::fail_argument(error_code::shape, "comm::reduce_in_rank_order", "scratch",
                                 "of " + std::to_string(scratch.size()) + " elements",
                                 "at least one for each of " + std::to_string(ranks) + " ranks");
  const bool exchanges = c.exchanges() && ranks > 2;
  for (std::size_t begin = 0; begin < values.size(); begin += block) {
    const std::size_t n = std::min(block, values.size() - begin), share = exchanges ? n / ranks : 0,
                      shared = share * ranks;
    if (share != 0) {
      const std::span<T> own = into.subspan(begin + c.rank() * share, share), gathered = scratch.first(shared);
      reduce_scatter_in_rank_order<T>(c, values.subspan(begin, shared), own, gathered, op);
      all_gather<T>(c, own, gathered);
      std::copy(gathered.begin(), gathered.end(), into.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    const std::size_t rest = n - shared;
    if (rest == 0) continue;
    all_gather<T>(c, values.subspan(begin + shared, rest), scratch.first(ranks * rest));
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t j = 0; j < rest; ++j)
        into[begin + shared + j] = op(into[begin + shared + j], scratch[r * rest + j]);
  }
}

/// Refuses a communicator whose bytes are elsewhere than the data of a call: with the host, or in a device's memory, in
/// the order of this queue. One rank sends nothing, and may have any.
inline void expect_place(std::string_view op, communicator_ref c, bool host_memory, const void* queue) {
  if (c.size() == 1) return;
  if (c.host_memory() != host_memory)
    tigon::detail::fail_argument(error_code::argument, op, "comm",
                                 c.host_memory() ? "a communicator of the host" : "a communicator of a device",
                                 host_memory ? "one that gathers in the memory of the host"
                                             : "one that gathers in the memory of the device, as comm::nccl does");
  if (c.queue() != queue)
    tigon::detail::fail_argument(error_code::argument, op, "comm", "a communicator of another stream",
                                 "one of the context's stream");
}

/// Before ranks write together: check() throws where this rank finds a mistake. Then every rank throws the error of the
/// first rank that found one, the same code and sentence everywhere; otherwise all get the records of all ranks. Where
/// the hosts exchange nothing a rank throws its own error alone, and gets its own record alone.
template <class Record, class Check>
  requires std::is_trivially_copyable_v<Record>
std::vector<Record> agree(communicator_ref of, const Record& record, Check check) {
  if (of.host() == nullptr) {
    check();
    return {record};
  }
  const communicator_ref c = *of.host();
  struct verdict {
    std::int64_t code, length;  // of the sentence; 0: there is none
    Record record;
  };
  verdict mine{0, 0, record};
  std::string sentence;
#if defined(__cpp_exceptions)
  const auto found = [&](error_code code, const char* what) {
    sentence = what;
    mine.code = static_cast<std::int64_t>(code);
    mine.length = static_cast<std::int64_t>(sentence.size());
  };
  try {
    check();
  } catch (const error& e) {
    found(e.code(), e.what());
  } catch (const std::exception& e) {  // no memory
    found(error_code::workspace, e.what());
  }
#else
  check();
#endif
  std::vector<verdict> all(c.size());
  all_gather<verdict>(c, {&mine, 1}, std::span(all));
  std::int64_t longest = 0;
  for (const verdict& v : all) longest = std::max(longest, v.length);
  std::vector<Record> records;
  if (longest == 0) {
    for (const verdict& v : all) records.push_back(v.record);
    return records;
  }
  sentence.resize(static_cast<std::size_t>(longest));
  std::vector<char> sentences(c.size() * sentence.size());
  all_gather<char>(c, sentence, std::span(sentences));
  std::size_t r = 0;
  while (all[r].length == 0) ++r;
  const auto length = static_cast<std::size_t>(all[r].length);
  tigon::detail::fail(static_cast<error_code>(all[r].code),
                      std::string(sentences.data() + r * sentence.size(), length) +
                          (c.size() == 1 ? "" : " (rank " + std::to_string(r) + ")"));
}

}  // namespace TIGON_ABI
}  // namespace comm
}  // namespace tigon

#endif  // TIGON_COMM_COMMUNICATOR_HPP

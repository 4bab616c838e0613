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
#include <type_traits>
#include <vector>

namespace tigon {

/// What a communicator is: a rank in [0, size()), and all_gather(mine, all), which all ranks call, in the same order
/// and with equally many bytes, and which leaves those of rank r at all[r * mine.size()]. `mine` and `all` are apart.
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
        }) {}

  TIGON_INLINE std::size_t rank() const { return rank_; }
  TIGON_INLINE std::size_t size() const { return size_; }
  TIGON_INLINE void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    all_gather_(object_, mine, all);
  }

 private:
  const void* object_;
  std::size_t rank_, size_;
  void (*all_gather_)(const void*, std::span<const std::byte>, std::span<std::byte>);
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

/// into[j] = op(op(op(into[j], values[j] of rank 0), values[j] of rank 1), ...): one order on every rank, whatever the
/// communicator and its timing, so the bits are the same everywhere. As many elements at a time as `scratch` holds of
/// all ranks: at least one, equally many on every rank.
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
  for (std::size_t begin = 0; begin < values.size(); begin += block) {
    const std::size_t n = std::min(block, values.size() - begin);
    all_gather<T>(c, values.subspan(begin, n), scratch.first(ranks * n));
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t j = 0; j < n; ++j) into[begin + j] = op(into[begin + j], scratch[r * n + j]);
  }
}

/// Before ranks write together: check() throws where this rank finds a mistake. Then every rank throws the error of the
/// first rank that found one, the same code and sentence everywhere; otherwise all get the records of all ranks.
template <class Record, class Check>
  requires std::is_trivially_copyable_v<Record>
std::vector<Record> agree(communicator_ref c, const Record& record, Check check) {
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

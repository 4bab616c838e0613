// What a kernel finds wrong with data that the host does not read: a label out of range. The host throws it when it
// waits, or in a later call of the same stream.
#ifndef TIGON_BACKENDS_CUDA_REPORT_HPP
#define TIGON_BACKENDS_CUDA_REPORT_HPP

#include <tigon/backends/cuda/device_code.hpp>
// Behind it: it says how these are compiled.
#include <tigon/core/error.hpp>

#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <string>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// An index out of range, in memory that the device writes and the host reads.
struct index_report {
  const char* op;        ///< a string of the host
  const char* argument;  ///< of whoever reports, which may be the device: the host reads its letters alone
  std::uint64_t at;      ///< argument[at] is `value`
  std::int64_t value;
  std::uint64_t below;   ///< 0 <= value < below was expected
  std::int64_t ignored;  ///< or this value, where `may_be_ignored`
  bool may_be_ignored;
  volatile unsigned made;     ///< 1 behind everything else
  std::uint64_t columns = 0;  ///< of the argument, which is a matrix then: [at / columns, at % columns]; 0: a vector
  bool is_mask = false;       ///< 0 or 1 was expected, and found is `number`
  double number = 0;
  char letters[16] = {};  ///< of `argument`

  /// The first report stands until it is thrown. One thread of a kernel calls it.
  TIGON_DEVICE_INLINE void make(const index_report& of) {
    if (is_made()) return;
    op = of.op, at = of.at, value = of.value, below = of.below, ignored = of.ignored;
    may_be_ignored = of.may_be_ignored;
    columns = of.columns, is_mask = of.is_mask, number = of.number;
    for (std::size_t k = 0; k + 1 < sizeof(letters); ++k) {
      letters[k] = of.argument[k];
      if (letters[k] == 0) break;
    }
#if defined(__CUDA_ARCH__)
    __threadfence_system();
#endif
    *const_cast<volatile unsigned*>(&made) = 1;
  }
  TIGON_INLINE bool is_made() const { return *const_cast<const volatile unsigned*>(&made) != 0; }
};

/// The report of a stream, for the life of the program: there are as many as handles of streams.
inline index_report* report_of(cudaStream_t stream) {
  static std::mutex mutex;
  static std::map<cudaStream_t, index_report*> all;
  thread_local cudaStream_t last = nullptr;
  thread_local index_report* found = nullptr;
  if (found != nullptr && last == stream) return found;
  const std::lock_guard lock(mutex);
  index_report*& report = all[stream];
  if (report == nullptr) {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, sizeof(index_report), cudaHostAllocPortable | cudaHostAllocMapped);
    if (error != cudaSuccess)
      tigon::detail::fail(error_code::device, std::string("tigon: cuda: a queue: ") + cudaGetErrorString(error));
    report = new (memory) index_report{};
  }
  last = stream, found = report;
  return report;
}

/// While one exists no call of this thread throws a report: of ranks that gather together one would be gone while
/// others wait for it. The report stands.
class held_reports {
 public:
  held_reports() { ++count(); }
  held_reports(const held_reports&) = delete;
  held_reports& operator=(const held_reports&) = delete;
  ~held_reports() { --count(); }
  static bool any() { return count() != 0; }

 private:
  static int& count() {
    thread_local int n = 0;
    return n;
  }
};

/// Throws error_code::index if a kernel of the stream has made a report, which is gone then.
inline void throw_reported(cudaStream_t stream) {
  if (held_reports::any()) return;
  index_report& report = *report_of(stream);
  if (!report.is_made()) return;
  const index_report of = report;
  report.made = 0;
  std::string expected = of.is_mask ? "0 or 1" : "at least 0 and below " + std::to_string(of.below);
  if (of.may_be_ignored) expected += ", or ignore_index " + std::to_string(of.ignored);
  const std::string at = of.columns == 0
                             ? std::to_string(of.at)
                             : std::to_string(of.at / of.columns) + ", " + std::to_string(of.at % of.columns);
  tigon::detail::fail_argument(error_code::index, of.op, std::string(of.letters) + '[' + at + ']',
                               of.is_mask ? tigon::detail::number_text(of.number) : std::to_string(of.value), expected);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_REPORT_HPP

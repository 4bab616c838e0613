// The ends of a fuzz program: a function for libFuzzer, and a main that needs no fuzzer. The first byte of a case
// chooses the target. Every program defines `targets()` and includes this header last.
//
//   PROGRAM [--seed S] [--cases N | --seconds N] [--only TARGET]   cases of its own generator, N of each target
//   with --repeats N each call is made N times more, and with seven numbers of threads, and has to give the same bits
//   with --expanded every input also repeats rows by a stride of 0
//   with --tightness LIST every output whose errors stay below a tenth of their bound is a finding, unless LIST
//   declares it (tests/tightness.txt): of thousands of cases
//   --repeats, --tightness and --corpus allow errors of several bounds (margin_of_searches)
//   PROGRAM --hex BYTES                                            one case, as a finding prints it
//   PROGRAM --corpus FILE                                          cases of a file with a line of hex each (corpus/)
//   PROGRAM FILE...                                                cases from files, as libFuzzer writes them
#ifndef TIGON_TESTS_FUZZ_DRIVER_HPP
#define TIGON_TESTS_FUZZ_DRIVER_HPP

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "source.hpp"
#include "tightness.hpp"

namespace tigon::fuzz {

std::span<const target> targets();

inline std::string text_of_case;  ///< of the case that is running

inline std::string hex(std::span<const std::uint8_t> bytes) {
  std::string out;
  for (const std::uint8_t b : bytes) out += "0123456789abcdef"[b >> 4], out += "0123456789abcdef"[b & 15];
  return out;
}

inline std::vector<std::uint8_t> bytes_of(std::string_view digits) {
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    out.push_back(static_cast<std::uint8_t>(std::stoul(std::string(digits.substr(i, 2)), nullptr, 16)));
  return out;
}

inline void run_case(std::span<const std::uint8_t> bytes) {
  source in(bytes);
  const std::span<const target> all = targets();
  const target& chosen = all[in.byte() % all.size()];
  text_of_case = std::string("\nfinding in ") + chosen.name + ", again by --hex " + hex(bytes) + '\n';
  chosen.run(in);
}

/// Prints the case in which a signal came.
extern "C" inline void tigon_fuzz_signal(int number) {
  [[maybe_unused]] const auto written = ::write(2, text_of_case.data(), text_of_case.size());
  std::signal(number, SIG_DFL);
  std::raise(number);
}

#if defined(TIGON_FUZZ_LIBFUZZER)

extern "C" inline int tigon_fuzz_one(const std::uint8_t* data, std::size_t size) {
  try {
    run_case({data, size});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s  %s\n", text_of_case.c_str(), e.what());
    std::abort();
  }
  return 0;
}

#else

/// The number of a name: cases of a target do not change when another one is added.
inline std::uint64_t number_of(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

inline int run_main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::size_t cases = 200;
  double seconds = 0;
  std::string only;
  std::vector<std::vector<std::uint8_t> > given;
  std::set<std::string> declared;
  for (int k = 1; k < argc; ++k) {
    const std::string word = argv[k];
    if (word == "--repeats" || word == "--tightness" || word == "--corpus") margin = margin_of_searches;
    const auto next = [&] { return std::string(k + 1 < argc ? argv[++k] : ""); };
    if (word == "--seed") {
      seed = std::stoull(next());
    } else if (word == "--cases") {
      cases = std::stoull(next());
    } else if (word == "--seconds") {
      seconds = std::stod(next());
    } else if (word == "--repeats") {
      repeats = std::stoull(next());
    } else if (word == "--expanded") {
      expanded = true;
    } else if (word == "--tightness") {
      measure_tightness = true;
      declared = declared_outputs(next());
    } else if (word == "--only") {
      only = next();
    } else if (word == "--hex") {
      given.push_back(bytes_of(next()));
    } else if (word == "--corpus") {
      std::ifstream file(next());
      for (std::string line; std::getline(file, line);) given.push_back(bytes_of(line));
      if (given.empty()) return std::fprintf(stderr, "the corpus has no cases\n"), 2;
    } else {
      std::ifstream file(word, std::ios::binary);
      if (!file) return std::fprintf(stderr, "%s cannot be read\n", word.c_str()), 2;
      given.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(number, tigon_fuzz_signal);
  std::size_t findings = 0, ran = 0;
  const auto run = [&](std::span<const std::uint8_t> bytes) {
    try {
      run_case(bytes);
      return true;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s  %s\n", text_of_case.c_str(), e.what());
      ++findings;
      return false;
    }
  };
  for (const auto& bytes : given) run(bytes), ++ran;
  if (!given.empty()) std::printf("%zu cases given, %zu findings\n", ran, findings);
  if (given.empty()) {
    using clock = std::chrono::steady_clock;
    for (std::size_t t = 0; t < targets().size(); ++t) {
      if (!only.empty() && only != targets()[t].name) continue;
      const auto start = clock::now();
      std::size_t n = 0, bad = 0;
      const auto spent = [&] { return std::chrono::duration<double>(clock::now() - start).count(); };
      // The first findings of a target say enough of it.
      for (; bad < 3 && (seconds > 0 ? spent() < seconds : n < cases); ++n) {
        generator next(seed * 0x9e3779b97f4a7c15 + number_of(targets()[t].name) + n);
        std::vector<std::uint8_t> bytes(64 + next() % 64);
        for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(next());
        bytes[0] = static_cast<std::uint8_t>(t);
        bad += run(bytes) ? 0 : 1;
      }
      std::printf("%-52s %6zu cases, %zu findings, %.2f s\n", targets()[t].name, n, bad, spent());
      std::fflush(stdout);
      ran += n;
    }
  }
  findings += loose_bounds(tightness, declared);
  if (ran == 0) return std::fprintf(stderr, "no case was run\n"), 2;
  return findings == 0 ? 0 : 1;
}

#endif

}  // namespace tigon::fuzz

// Every way to memory of the heap goes through these in glibc, operator new among them. Sanitizers bring their own.
#if defined(__GLIBC__) && !defined(TIGON_FUZZ_LIBFUZZER) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(std::size_t);                 // NOLINT: glibc's names
void* __libc_memalign(std::size_t, std::size_t);  // NOLINT
void* malloc(std::size_t bytes) noexcept {
  ++tigon::fuzz::allocations;
  return __libc_malloc(bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  ++tigon::fuzz::allocations;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** to, std::size_t alignment, std::size_t bytes) noexcept {
  ++tigon::fuzz::allocations;
  *to = __libc_memalign(alignment, bytes);
  return *to == nullptr ? 12 : 0;  // ENOMEM
}
}
#endif

#if defined(TIGON_FUZZ_LIBFUZZER)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tigon::fuzz::tigon_fuzz_one(data, size);
}
#else
int main(int argc, char** argv) {
  try {
    return tigon::fuzz::run_main(argc, argv);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 2;
  }
}
#endif

#endif  // TIGON_TESTS_FUZZ_DRIVER_HPP

// What a row says about where it was measured.
#ifndef TIGON_BENCH_SUPPORT_MACHINE_HPP
#define TIGON_BENCH_SUPPORT_MACHINE_HPP

#include <cstddef>
#include <string>
#include <vector>

namespace tigon_bench {

std::string cpu_name();
std::string compiler_name();
std::string compiler_flags();
/// Instruction set that the flags of this build promise: "avx512_bf16", "avx2", ...
std::string target_name();
std::size_t last_level_cache_bytes();
/// Of the machine, or of the container where that is less.
std::size_t memory_bytes();
/// "YYYY-MM-DD HH:MM:SS", local time.
std::string timestamp();
std::string library_version();
/// Keeps the calling thread on the processor where it runs now. False where the system refuses.
bool pin_this_thread();

struct backend_description {
  std::string name, target;
  std::size_t lanes;  ///< of f32
};

/// The backends of this build.
std::vector<backend_description> describe_backends();

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_MACHINE_HPP

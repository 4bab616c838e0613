#include "support/machine.hpp"

#include <tigon/config.hpp>

#include <algorithm>
#include <ctime>
#include <fstream>

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

// The build passes the flags it compiles with; a build by hand may leave them out.
#ifndef TIGON_BENCH_FLAGS
#define TIGON_BENCH_FLAGS "(not recorded)"
#endif

namespace tigon_bench {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown CPU";
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "g++ " __VERSION__;
#else
  return "unknown compiler";
#endif
}

std::string compiler_flags() { return TIGON_BENCH_FLAGS; }

std::string target_name() { return TIGON_STRING(TIGON_TARGET); }

std::string library_version() { return TIGON_VERSION_STRING; }

std::size_t last_level_cache_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  for (const int level : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
    if (const long bytes = sysconf(level); bytes > 0) return static_cast<std::size_t>(bytes);
#endif
  return std::size_t{32} << 20;
}

std::size_t memory_bytes() {
  std::size_t bytes = std::size_t{4} << 30;
#if defined(_SC_PHYS_PAGES)
  if (const long pages = sysconf(_SC_PHYS_PAGES); pages > 0)
    bytes = static_cast<std::size_t>(pages) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
#endif
  for (const char* const path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    if (std::size_t limit = 0; std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  return bytes;
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

bool pin_this_thread() {
#if defined(__linux__)
  const int cpu = sched_getcpu();
  if (cpu < 0) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
#else
  return false;
#endif
}

}  // namespace tigon_bench

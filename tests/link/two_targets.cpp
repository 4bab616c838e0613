// One program, two instruction sets: each translation unit computes with its own lanes, whatever the link order.
// Exit code 77: this CPU lacks one of them.
#include "two_targets.hpp"

#include <cstdio>
#include <cstring>

namespace {

bool right(const answer (&answers)[backends_compared], const char* instruction_set, std::size_t lanes) {
  bool ok = true;
  for (const answer& a : answers) {
    const std::size_t expected = std::strcmp(a.backend, "generic") == 0 ? 1 : lanes;
    const bool good =
        a.lanes == expected && std::strcmp(a.instruction_set, instruction_set) == 0 && a.worst_error < 2e-6;
    std::printf("%-8s %-28s %2zu lanes, worst error %.1e%s\n", a.instruction_set, a.backend, a.lanes, a.worst_error,
                good ? "" : "   WRONG");
    ok = ok && good;
  }
  return ok;
}

}  // namespace

int main() {
  if (!__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    std::puts("skipped: this CPU has no AVX-512");
    return 77;
  }
  answer v3[backends_compared], v4[backends_compared];
  answer_of_v3(v3);
  answer_of_v4(v4);
  const bool ok = right(v3, "avx2", 8) & right(v4, "avx512", 16);
  return ok ? 0 : 1;
}

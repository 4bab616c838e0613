// What the two translation units of this test, built with different -m flags, tell the program.
#ifndef TIGON_TESTS_LINK_TWO_TARGETS_HPP
#define TIGON_TESTS_LINK_TWO_TARGETS_HPP

#include <cstddef>

struct answer {
  const char* backend;
  const char* instruction_set;
  std::size_t lanes;
  double worst_error;  // of all operators, against sums in double
};

constexpr std::size_t backends_compared = 5;
void answer_of_v3(answer (&answers)[backends_compared]);
void answer_of_v4(answer (&answers)[backends_compared]);

#endif  // TIGON_TESTS_LINK_TWO_TARGETS_HPP

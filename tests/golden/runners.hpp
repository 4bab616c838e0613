// Which operators can be run on which backend and in which element type: filled by the adapters that are linked in.
#ifndef TIGON_TESTS_GOLDEN_RUNNERS_HPP
#define TIGON_TESTS_GOLDEN_RUNNERS_HPP

#include <string_view>
#include <vector>

#include "../support/golden.hpp"

namespace golden {

struct runner {
  std::string_view op, backend, dtype;
  results (*run)(const problem&);  ///< every output and gradient that the operator can give for this case
};

inline std::vector<runner>& runners() {
  static std::vector<runner> all;
  return all;
}

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_RUNNERS_HPP

// A case that cannot be measured here, as opposed to one that fails.
#ifndef TIGON_BENCH_SUPPORT_UNSUPPORTED_HPP
#define TIGON_BENCH_SUPPORT_UNSUPPORTED_HPP

#include <stdexcept>

namespace tigon_bench {

/// The reason goes to stderr and into the row, beside NaN.
class unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_UNSUPPORTED_HPP

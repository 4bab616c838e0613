// Which entries of a gradient are compared with a numerical derivative, each of which costs one evaluation.
#ifndef TIGON_TESTS_SUPPORT_PROBES_HPP
#define TIGON_TESTS_SUPPORT_PROBES_HPP

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

namespace tigon::test {

/// All entries of a small tensor; of a large one both ends and a random choice, in order.
[[gnu::noinline]] inline std::vector<std::size_t> probes(std::size_t count, std::size_t most = 48) {
  std::vector<std::size_t> all(count), out;
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (count <= 4 * most) return all;
  std::sample(all.begin() + 2, all.end() - 2, std::back_inserter(out), most - 4, std::mt19937_64(count));
  out.insert(out.begin(), {0, 1});
  out.insert(out.end(), {count - 2, count - 1});
  return out;
}

[[gnu::noinline]] inline std::vector<double> pick(const std::vector<double>& values,
                                                  const std::vector<std::size_t>& at) {
  std::vector<double> out;
  for (const std::size_t i : at) out.push_back(values[i]);
  return out;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_PROBES_HPP

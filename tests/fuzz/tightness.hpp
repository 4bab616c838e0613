// How much of its bound each output's errors use, the outputs that are declared to use little (tests/tightness.txt),
// and by how much a bound may be exceeded.
#ifndef TIGON_TESTS_FUZZ_TIGHTNESS_HPP
#define TIGON_TESTS_FUZZ_TIGHTNESS_HPP

#include <compare>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

namespace tigon::fuzz {

/// How many times its bound an error may be. A bound is about three times the worst of 20,000 cases of a target. Of
/// millions, a few whose terms cancel exceed it by up to 3.5 times, and a fuzzer keeps those. libFuzzer's runs, kept
/// cases and long measurements (`--corpus`, `--repeats`, `--tightness`) have four bounds for that reason, other cases
/// one.
constexpr double margin_of_searches = 4;
#if defined(TIGON_FUZZ_LIBFUZZER)
inline double margin = margin_of_searches;
#else
inline double margin = 1;
#endif

/// The largest part of its bound that an error of an output reached, over all cases, where somebody asks for it.
struct output_name {
  std::string op, backend, type, output;
  auto operator<=>(const output_name&) const = default;
};
inline bool measure_tightness = false;
inline std::map<output_name, double> tightness;

/// Outputs that a list declares, as "op: output" or "op type: output". An entry is a line "op [type]: output,
/// output..." and lines with the reason; entries are a blank line apart.
inline std::set<std::string> declared_outputs(const std::string& list) {
  std::ifstream file(list);
  if (!file) throw std::runtime_error(list + " cannot be read");
  std::set<std::string> out;
  std::string line, of;
  bool reason = true;
  const auto end_entry = [&] {
    if (!reason) throw std::runtime_error(list + ": no reason is given for " + of);
    of.clear();
  };
  while (std::getline(file, line)) {
    if (line.starts_with('#')) continue;
    if (line.empty()) {
      end_entry();
    } else if (!of.empty()) {
      reason = true;
    } else {
      const std::size_t colon = line.find(": ");
      if (colon == std::string::npos) throw std::runtime_error(list + ": no outputs: " + line);
      of = line, reason = false;
      for (std::size_t at = colon + 2, end = 0; end != std::string::npos; at = end + 2) {
        end = line.find(", ", at);
        out.insert(line.substr(0, colon + 2) + line.substr(at, end == std::string::npos ? end : end - at));
      }
    }
  }
  end_entry();
  return out;
}

/// Prints outputs whose errors stay below a tenth of their bound, and counts those that are not declared. Prints those
/// that exceed it, too, by less than `margin`.
inline std::size_t loose_bounds(const std::map<output_name, double>& tightness, const std::set<std::string>& declared) {
  std::size_t undeclared = 0;
  for (const auto& [of, part] : tightness) {
    if (part > 1)
      std::printf("%s on %s %s, %s: %.2g times its bound\n", of.op.c_str(), of.backend.c_str(), of.type.c_str(),
                  of.output.c_str(), part);
    if (part >= 0.1) continue;
    const bool known =
        declared.contains(of.op + ": " + of.output) || declared.contains(of.op + ' ' + of.type + ": " + of.output);
    std::printf("%s on %s %s, %s: %.2g of its bound%s\n", of.op.c_str(), of.backend.c_str(), of.type.c_str(),
                of.output.c_str(), part, known ? ", as declared" : "");
    undeclared += known ? 0 : 1;
  }
  return undeclared;
}

}  // namespace tigon::fuzz

#endif  // TIGON_TESTS_FUZZ_TIGHTNESS_HPP

#ifndef EXAMPLE_SUPPORT_RANKS_HPP
#define EXAMPLE_SUPPORT_RANKS_HPP

#include <tigon/backend/select.hpp>
#include <tigon/comm/communicator.hpp>
#include <tigon/config.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "option_value.hpp"

namespace example {

/// The ranks of the program: those of mpirun, or this process alone. Only rank 0 is heard. Which of them is what the
/// program links: ranks.cpp with MPI or without it.
class ranks {
 public:
  ranks(int& argc, char**& argv);
  ~ranks();

  tigon::communicator_ref comm() const;
  bool first() const { return comm().rank() == 0; }
  /// Ends the others too, which would wait for this rank for ever.
  int leave(int code) const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

/// A fault that all ranks know of.
struct shared_fault : std::runtime_error {
  using runtime_error::runtime_error;
};

/// fn() on every rank; where it throws on one, all throw the same. One rank alone throws what fn throws.
template <class F>
void on_all_ranks(tigon::communicator_ref comm, F fn) {
  if (comm.size() == 1) return fn();
  try {
    tigon::comm::agree(comm, 0, fn);
  } catch (const tigon::error& fault) {
    throw shared_fault(fault.what());
  }
}

/// Refuses with `sentence` where `value` is not the same on all ranks.
inline void same_on_all_ranks(tigon::communicator_ref comm, std::uint64_t value, const std::string& sentence) {
  std::vector<std::uint64_t> all(comm.size());
  tigon::comm::all_gather<std::uint64_t>(comm, {&value, 1}, std::span(all));
  for (const std::uint64_t other : all)
    if (other != all[0]) throw shared_fault(sentence);
}

/// Refuses ranks of which one was given another option than the others, of those that all of them have in common.
inline void same_options_on_all_ranks(tigon::communicator_ref comm, const std::vector<option_value>& options) {
  for (const option_value& option : options)
    if (option.what != decides::own)
      same_on_all_ranks(comm, text_hash(option.value),
                        "the ranks begin with different options: different " + option.name);
}

/// What the bits of a step depend on, beside its options and data.
inline std::string kernels_of_program() {
  return std::string(tigon::default_backend::info.name) + " " + TIGON_STRING(TIGON_TARGET);
}

/// Refuses ranks whose updates differ in the last bits, so that their weights would drift apart.
inline void same_kernels_on_all_ranks(tigon::communicator_ref comm, const std::string& kernels = kernels_of_program()) {
  same_on_all_ranks(comm, text_hash(kernels), "the ranks are built for different backends or instruction sets");
}

}  // namespace example
#endif

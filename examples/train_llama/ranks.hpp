#ifndef EXAMPLE_TRAIN_LLAMA_RANKS_HPP
#define EXAMPLE_TRAIN_LLAMA_RANKS_HPP

#include <tigon/comm/communicator.hpp>
#if defined(TRAIN_LLAMA_MPI)
#include <tigon/comm/mpi.hpp>
#endif

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace example {

/// The ranks of the program: those of mpirun, or this process alone. Only rank 0 is heard.
class ranks {
 public:
#if defined(TRAIN_LLAMA_MPI)
  ranks(int& argc, char**& argv) : init_(argc, argv), comm_(MPI_COMM_WORLD) {
    if (first()) return;
    std::cerr.setstate(std::ios::failbit);
    if (std::freopen("/dev/null", "w", stdout) == nullptr) std::perror("/dev/null");
  }
  /// Ends the others too, which would wait for this rank for ever.
  int leave(int code) const {
    if (comm_.size() > 1) MPI_Abort(MPI_COMM_WORLD, code);
    return code;
  }
#else
  ranks(int&, char**&) {}
  int leave(int code) const { return code; }
#endif

  tigon::communicator_ref comm() const { return comm_; }
  bool first() const { return comm_.rank() == 0; }

 private:
#if defined(TRAIN_LLAMA_MPI)
  struct init {
    init(int& argc, char**& argv) {
      int provided = 0;
      MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);  // threads compute, the first one sends
    }
    ~init() { MPI_Finalize(); }
  } init_;
  tigon::comm::mpi comm_;
#else
  tigon::comm::serial comm_;
#endif
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

}  // namespace example
#endif

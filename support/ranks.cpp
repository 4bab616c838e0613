// The ranks of a program: compiled once without MPI and, for the program that mpirun starts, once with it.
#include "ranks.hpp"

#include <memory>

#if defined(EXAMPLE_MPI)
#include <tigon/comm/mpi.hpp>

#include <cstdio>
#include <iostream>
#endif

namespace example {

#if defined(EXAMPLE_MPI)
namespace {
struct mpi_init {
  mpi_init(int& argc, char**& argv) {
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);  // threads compute, the first one sends
  }
  ~mpi_init() { MPI_Finalize(); }
};
}  // namespace

struct ranks::state {
  mpi_init init;
  tigon::comm::mpi comm;

  state(int& argc, char**& argv) : init(argc, argv), comm(MPI_COMM_WORLD) {}
};

ranks::ranks(int& argc, char**& argv) : state_(std::make_unique<state>(argc, argv)) {
  if (first()) return;
  std::cerr.setstate(std::ios::failbit);
  if (std::freopen("/dev/null", "w", stdout) == nullptr) std::perror("/dev/null");
}
int ranks::leave(int code) const {
  if (state_->comm.size() > 1) MPI_Abort(MPI_COMM_WORLD, code);
  return code;
}
#else
struct ranks::state {
  tigon::comm::serial comm;
};

ranks::ranks(int&, char**&) : state_(std::make_unique<state>()) {}
int ranks::leave(int code) const { return code; }
#endif

ranks::~ranks() = default;
tigon::communicator_ref ranks::comm() const { return state_->comm; }

}  // namespace example

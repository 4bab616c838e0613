// The opt-in communicator names the package that it needs; without it nobody misses MPI.
// hide: mpi.h
// errors: 2
// expect: tigon: comm/mpi.hpp needs <mpi.h>; install libopenmpi-dev
#include <tigon/comm/threads.hpp>
#ifdef SHOULD_NOT_COMPILE
#include <tigon/comm/mpi.hpp>
#endif

static_assert(tigon::communicator<tigon::comm::threads>);

// Ranks of an MPI program. Opt-in: nothing else includes this header, and it needs <mpi.h> (libopenmpi-dev; mpicxx, or
// MPI::MPI_CXX of CMake).
#ifndef TIGON_COMM_MPI_HPP
#define TIGON_COMM_MPI_HPP

#if !__has_include(<mpi.h>)
#error "tigon: comm/mpi.hpp needs <mpi.h>; install libopenmpi-dev, and compile with mpicxx or link MPI::MPI_CXX"
#include <the_error_above_ends_compilation>
#endif
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1  // Open MPI's C++ classes, which the standard has removed
#endif
#include <mpi.h>

#include <tigon/comm/communicator.hpp>

#include <climits>

namespace tigon::comm {

/// The ranks of the caller's communicator, which has to outlive this. MPI is initialised and finalised by the caller.
/// What MPI calls an error becomes tigon::error (state), whatever the communicator's error handler, which stays as it
/// is. Elements travel as bytes: all machines have one representation of numbers.
class mpi {
 public:
  /// most: bytes of a rank that one call of MPI sends; more are sent in several. Equal on every rank.
  TIGON_TAGGED explicit mpi(MPI_Comm c, std::size_t most = INT_MAX) : comm_(c), most_(most) {
    int running = 0, over = 0, rank = 0, size = 1;
    MPI_Initialized(&running);
    MPI_Finalized(&over);
    if (running == 0 || over != 0)
      tigon::detail::fail(error_code::state, "tigon: comm::mpi: MPI is not running; expected MPI_Init before");
    if (c == MPI_COMM_NULL)
      tigon::detail::fail_argument(error_code::argument, "comm::mpi", "comm", "MPI_COMM_NULL", "a communicator");
    if (most == 0 || most > INT_MAX)
      tigon::detail::fail_argument(error_code::argument, "comm::mpi", "most", std::to_string(most),
                                   "from 1 to " + std::to_string(INT_MAX));
    call("MPI_Comm_rank", [&] { return MPI_Comm_rank(c, &rank); });
    call("MPI_Comm_size", [&] { return MPI_Comm_size(c, &size); });
    rank_ = static_cast<std::size_t>(rank), size_ = static_cast<std::size_t>(size);
  }

  TIGON_INLINE std::size_t rank() const { return rank_; }
  TIGON_INLINE std::size_t size() const { return size_; }
  TIGON_TAGGED void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    for (std::size_t begin = 0; begin < mine.size(); begin += most_) {
      const int n = static_cast<int>(std::min(most_, mine.size() - begin));
      // The ranks' parts lie mine.size() bytes apart, of which n come now.
      datatype part, spaced;
      call("MPI_Type_contiguous", [&] { return MPI_Type_contiguous(n, MPI_BYTE, &part.handle); });
      call("MPI_Type_create_resized",
           [&] { return MPI_Type_create_resized(part.handle, 0, static_cast<MPI_Aint>(mine.size()), &spaced.handle); });
      call("MPI_Type_commit", [&] { return MPI_Type_commit(&spaced.handle); });
      call("MPI_Allgather", [&] {
        return MPI_Allgather(mine.data() + begin, n, MPI_BYTE, all.data() + begin, 1, spaced.handle, comm_);
      });
    }
  }

  /// Throws for any code but MPI_SUCCESS, with MPI's own words.
  TIGON_TAGGED static void check(const char* function, int code) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING + 1] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    tigon::detail::fail(error_code::state,
                        "tigon: comm::mpi: " + std::string(function) + ": " + std::string(text, text + length));
  }

 private:
  /// Freed also where a later call fails.
  struct datatype {
    MPI_Datatype handle = MPI_DATATYPE_NULL;
    TIGON_TAGGED datatype() {}
    datatype(const datatype&) = delete;
    datatype& operator=(const datatype&) = delete;
    TIGON_TAGGED ~datatype() {
      if (handle != MPI_DATATYPE_NULL) (void)MPI_Type_free(&handle);
    }
  };

  /// f() while the communicator returns its errors.
  template <class F>
  TIGON_TAGGED void call(const char* function, F f) const {
    MPI_Errhandler before = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(comm_, &before);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    const int code = f();
    MPI_Comm_set_errhandler(comm_, before);
    MPI_Errhandler_free(&before);
    check(function, code);
  }

  MPI_Comm comm_;
  std::size_t most_, rank_ = 0, size_ = 1;
};

}  // namespace tigon::comm

#endif  // TIGON_COMM_MPI_HPP

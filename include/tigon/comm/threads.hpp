// Ranks as threads of one program: for tests, and for one machine without MPI.
#ifndef TIGON_COMM_THREADS_HPP
#define TIGON_COMM_THREADS_HPP

#include <tigon/comm/communicator.hpp>
#include <tigon/core/executor.hpp>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace tigon::comm {

/// A rank among threads:
///   comm::threads::run(4, [&](const comm::threads& c) { ... c.rank() ... });
/// Contexts belong to one rank each. A rank that waits for one that has returned or thrown throws tigon::error (state).
class threads {
 public:
  /// fn(c) on `ranks` threads at once; returns when all are done, and throws what was thrown first. Throws
  /// std::system_error where the system does not start so many threads, std::bad_alloc where memory is short, and calls
  /// fn on no rank then.
  template <class F>
  TIGON_TAGGED static void run(std::size_t ranks, F fn) {
    meeting place(ranks);
    {
      struct crew {  // joined, whatever happens
        meeting& place;
        std::vector<std::thread> threads;
        TIGON_TAGGED ~crew() {
          place.open(threads.size());
          for (std::thread& thread : threads) thread.join();
        }
      } all{place, {}};
      tigon::detail::start_threads("comm::threads", all.threads, ranks,
                                   [&place, &fn](std::size_t r) { place.attend([&] { fn(threads(place, r)); }); });
    }
    place.rethrow();
  }

  TIGON_INLINE std::size_t rank() const { return rank_; }
  TIGON_INLINE std::size_t size() const { return place_->mine.size(); }
  TIGON_TAGGED void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    meet(mine, [&](std::size_t r, std::span<const std::byte> of_rank) {
      std::memcpy(all.data() + r * mine.size(), of_rank.data(), of_rank.size());
    });
  }
  TIGON_TAGGED void all_to_all(std::span<const std::byte> mine, std::span<std::byte> all) const {
    const std::size_t part = mine.size() / size();
    meet(mine, [&](std::size_t r, std::span<const std::byte> of_rank) {
      std::memcpy(all.data() + r * part, of_rank.data() + rank_ * part, part);
    });
  }

 private:
  struct meeting {
    std::vector<std::span<const std::byte>> mine;

    TIGON_TAGGED explicit meeting(std::size_t ranks) : mine(ranks) {}
    TIGON_TAGGED ~meeting() {}

    /// Returns when all ranks are here.
    TIGON_TAGGED void wait() {
      std::unique_lock lock(mutex_);
      const std::size_t round = round_;
      if (gone_ == 0 && ++here_ == mine.size()) {
        here_ = 0;
        ++round_;
        all_here_.notify_all();
        return;
      }
      all_here_.wait(lock, [&] { return round_ != round || gone_ != 0; });
      if (round_ == round)
        tigon::detail::fail(error_code::state, "tigon: comm::threads: a rank is gone while others wait for it");
    }

    /// `started` ranks have been started, and no more will be: attend() lets them begin or, where ranks are missing,
    /// leave.
    TIGON_TAGGED void open(std::size_t started) {
      const std::lock_guard lock(mutex_);
      (started == mine.size() ? open_ : closed_) = true;
      all_here_.notify_all();
    }

    template <class F>
    TIGON_TAGGED void attend(F fn) {
      {
        std::unique_lock lock(mutex_);
        all_here_.wait(lock, [&] { return open_ || closed_; });
        if (closed_) return;
      }
      failure_.attempt(fn);
      const std::lock_guard lock(mutex_);
      ++gone_;
      all_here_.notify_all();
    }

    TIGON_TAGGED void rethrow() { failure_.rethrow(); }

   private:
    std::mutex mutex_;
    std::condition_variable all_here_;
    std::size_t here_ = 0, round_ = 0, gone_ = 0;
    bool open_ = false, closed_ = false;
    tigon::detail::first_exception failure_;
  };

  TIGON_INLINE threads(meeting& place, std::size_t rank) : place_(&place), rank_(rank) {}

  /// take(r, bytes of rank r) for every rank whose bytes are as many as mine.
  template <class Take>
  TIGON_TAGGED void meet(std::span<const std::byte> mine, Take take) const {
    place_->mine[rank_] = mine;
    place_->wait();
    bool even = true;
    for (std::size_t r = 0; r < size(); ++r) {
      const std::span<const std::byte> part = place_->mine[r];
      even = even && part.size() == mine.size();
      if (even && !part.empty()) take(r, part);
    }
    place_->wait();  // no rank returns before all have read its bytes
    if (!even)
      tigon::detail::fail_argument(error_code::shape, "comm::threads", "mine",
                                   "of " + std::to_string(mine.size()) + " bytes", "the same size on every rank");
  }

  meeting* place_;
  std::size_t rank_;
};

}  // namespace tigon::comm

#endif  // TIGON_COMM_THREADS_HPP

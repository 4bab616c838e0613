// Where the time of a step goes: scopes around the calls of operators, a table of them, and a trace for Perfetto or
// chrome://tracing.
#ifndef EXAMPLE_SUPPORT_PROFILE_HPP
#define EXAMPLE_SUPPORT_PROFILE_HPP

#include <tigon/core/executor.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace example {

/// What a call does at least: operations of its products, and bytes that it reads and writes.
struct work {
  double flops = 0, bytes = 0;
};

/// What the machine can do at best on so many threads, a second.
struct machine_limits {
  double flops = 0, bytes = 0;

  /// Seconds that this work takes at least.
  double seconds(work w) const { return std::max(w.flops / flops, w.bytes / bytes); }
};

/// Events of steps. It is the executor of the steps too: they run on all threads of a pool and on one, in turns, with
/// equal results.
class profile {
 public:
  /// Of a call, or of a part of a step (`pass` is empty then), in seconds from the beginning of the profile.
  struct event {
    std::string_view name, pass;
    work does;
    double begin = 0, end = 0;
    std::size_t step = 0;
  };

  explicit profile(tigon::thread_pool& pool) : pool_(pool) {}

  std::size_t workers() const { return alone_ ? 1 : pool_.workers(); }
  void run(std::size_t tasks, tigon::task_ref fn) {
    if (alone_)
      tigon::serial().run(tasks, fn);
    else
      pool_.run(tasks, fn);
  }

  /// Whether a step runs on one thread: every second one, if the pool has more.
  bool alone(std::size_t step) const { return pool_.workers() == 1 || step % 2 == 1; }
  std::size_t threads(std::size_t step) const { return alone(step) ? 1 : pool_.workers(); }
  std::size_t steps() const { return steps_; }
  const std::vector<event>& events() const { return events_; }

  /// The time from here to the end of the scope. Costs a comparison where there is no profile.
  class scope {
   public:
    scope(profile* to, std::string_view name, std::string_view pass, work does) : to_(to) {
      if (to_ != nullptr) at_ = to_->open(name, pass, does);
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      if (to_ != nullptr) to_->close(at_);
    }

   private:
    profile* to_;
    std::size_t at_ = 0;
  };

  /// A step, which contains everything else: outside of steps nothing is recorded.
  static scope step(profile* to) {
    if (to != nullptr) to->in_step_ = true, to->alone_ = to->alone(to->steps_++);
    return {to, whole, {}, {}};
  }
  /// A part of a step, such as its forward pass; calls within it are of this pass.
  static scope part(profile* to, std::string_view name) {
    if (to != nullptr) to->pass_ = name;
    return {in_step(to), name, {}, {}};
  }
  static scope call(profile* to, std::string_view name, work does) {
    to = in_step(to);
    return {to, name, to != nullptr ? to->pass_ : std::string_view(), does};
  }
  static constexpr std::string_view whole = "step";

  /// Steps that count: not the first of each kind, which touches memory for the first time, unless there are no others.
  bool counts(std::size_t step) const { return step >= first_counted(); }
  std::size_t first_counted() const {
    const std::size_t kinds = pool_.workers() == 1 ? 1 : 2;
    return steps_ > kinds ? kinds : 0;
  }

  /// A JSON array of complete events: the steps of all threads are those of tid 1, the others of tid 2.
  std::string trace() const {
    std::string out = "[";
    char line[512];
    for (const event& e : events_) {
      std::snprintf(
          line, sizeof line,
          "%s\n{\"name\":\"%.*s\",\"cat\":\"%.*s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":1,\"tid\":%d,"
          "\"args\":{\"step\":%zu,\"threads\":%zu,\"flops\":%.0f,\"bytes\":%.0f}}",
          out.size() > 1 ? "," : "", static_cast<int>(e.name.size()), e.name.data(), static_cast<int>(e.pass.size()),
          e.pass.data(), 1e6 * e.begin, 1e6 * (e.end - e.begin), threads(e.step) == 1 && pool_.workers() > 1 ? 2 : 1,
          e.step + 1, threads(e.step), e.does.flops, e.does.bytes);
      out += line;
    }
    return out + "\n]\n";
  }

 private:
  using clock = std::chrono::steady_clock;

  double now() const { return std::chrono::duration<double>(clock::now() - start_).count(); }
  std::size_t open(std::string_view name, std::string_view pass, work does) {
    events_.push_back({name, pass, does, 0, 0, steps_ - 1});
    events_.back().begin = now();
    return events_.size() - 1;
  }
  void close(std::size_t at) {
    events_[at].end = now();
    if (events_[at].name == whole) in_step_ = false;
  }
  static profile* in_step(profile* to) { return to != nullptr && to->in_step_ ? to : nullptr; }

  tigon::thread_pool& pool_;
  bool alone_ = false, in_step_ = false;
  std::size_t steps_ = 0;
  std::string_view pass_;
  std::vector<event> events_;
  clock::time_point start_ = clock::now();
};

/// The time of one operator in one pass, of a step.
struct profile_row {
  std::string_view name, pass;
  double calls = 0, seconds = 0, least_seconds = 0;
};

/// Means over the steps that count and ran on that many threads; the last row is what lies between the calls.
struct profile_summary {
  double step_seconds = 0;
  std::vector<profile_row> rows;

  profile_summary(const profile& p, std::size_t threads, const machine_limits& limits) {
    double steps = 0;
    for (const auto& e : p.events())
      steps += e.name == profile::whole && p.counts(e.step) && p.threads(e.step) == threads;
    if (steps == 0) return;
    double calls = 0;
    for (const auto& e : p.events()) {
      if (!p.counts(e.step) || p.threads(e.step) != threads) continue;
      const double seconds = (e.end - e.begin) / steps;
      if (e.name == profile::whole) step_seconds += seconds;
      if (e.pass.empty()) continue;
      auto row = std::find_if(rows.begin(), rows.end(),
                              [&](const profile_row& r) { return r.name == e.name && r.pass == e.pass; });
      if (row == rows.end()) row = rows.insert(rows.end(), {e.name, e.pass});
      row->calls += 1 / steps, row->seconds += seconds, row->least_seconds += limits.seconds(e.does) / steps;
      calls += seconds;
    }
    rows.push_back({"between the calls", "", 0, std::max(step_seconds - calls, 0.0), 0});
  }
};

}  // namespace example
#endif

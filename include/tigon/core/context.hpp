// What a call runs on: an executor, a workspace, a device's queue, and how many rows of logits a fused loss has at a
// time. Passed last, defaulted.
#ifndef TIGON_CORE_CONTEXT_HPP
#define TIGON_CORE_CONTEXT_HPP

#include <tigon/core/executor.hpp>
#include <tigon/core/workspace.hpp>

namespace tigon {

/// Where a backend of a device puts the work of a call, in order: a stream of the device's own kind, and what waits for
/// it. Backends of CPUs have none, and a call of theirs has ended when it returns.
struct device_queue {
  void* stream = nullptr;  ///< the device's handle, to which null may be a value
  /// Returns when all that was put there is done; throws what the device reports.
  void (*finish)(void* stream) = nullptr;
};

/// Executor, workspace and queue of a call. One call at a time per context. Outputs are ordered by the queue alone: who
/// has several uses a context, and a workspace, for each.
class context {
 public:
  TIGON_INLINE context(executor_ref executor, tigon::workspace& workspace, device_queue queue = {})
      : executor_(executor), workspace_(&workspace), queue_(queue) {}

  TIGON_INLINE executor_ref executor() const { return executor_; }
  TIGON_INLINE tigon::workspace& workspace() const { return *workspace_; }
  TIGON_INLINE bool has_queue() const { return queue_.finish != nullptr; }
  /// The stream of the queue; null without one.
  TIGON_INLINE void* stream() const { return queue_.stream; }
  /// Returns when all calls with this context are done: at once without a queue. Throws what the device reports.
  TIGON_INLINE void wait() const {
    if (queue_.finish != nullptr) queue_.finish(queue_.stream);
  }

  /// Rows of logits that a fused linear loss has in memory at a time, exactly; 0, the default: those of B::chunk. It
  /// decides the memory of a call, and of a result no more than its rounding. Workspace functions read it too.
  TIGON_INLINE std::size_t logit_rows() const { return logit_rows_; }
  TIGON_INLINE void logit_rows(std::size_t rows) { logit_rows_ = rows; }

 private:
  executor_ref executor_;
  tigon::workspace* workspace_;
  device_queue queue_;
  std::size_t logit_rows_ = 0;
};

/// The context of a call that names none: serial, with a growing workspace of the calling thread's own.
TIGON_TAGGED inline context& default_context() {
  thread_local workspace scratch;
  thread_local context instance(serial(), scratch);
  return instance;
}

/// The context of a call of backend B that names none: that of B, if it states one by a function of this name.
template <class B>
TIGON_INLINE context& default_context() {
  if constexpr (requires { B::default_context(); })
    return B::default_context();
  else
    return default_context();
}

}  // namespace tigon

#endif  // TIGON_CORE_CONTEXT_HPP

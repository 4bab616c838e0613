// What a call runs on: an executor, a workspace, and how many rows of logits a fused loss has at a time. Passed last,
// defaulted.
#ifndef TIGON_CORE_CONTEXT_HPP
#define TIGON_CORE_CONTEXT_HPP

#include <tigon/core/executor.hpp>
#include <tigon/core/workspace.hpp>

namespace tigon {

/// Executor and workspace of a call. One call at a time per context.
class context {
 public:
  TIGON_INLINE context(executor_ref executor, tigon::workspace& workspace)
      : executor_(executor), workspace_(&workspace) {}

  TIGON_INLINE executor_ref executor() const { return executor_; }
  TIGON_INLINE tigon::workspace& workspace() const { return *workspace_; }

  /// Rows of logits that a fused linear loss has in memory at a time, exactly; 0, the default: those of B::chunk. It
  /// decides the memory of a call, and of a result no more than its rounding. Workspace functions read it too.
  TIGON_INLINE std::size_t logit_rows() const { return logit_rows_; }
  TIGON_INLINE void logit_rows(std::size_t rows) { logit_rows_ = rows; }

 private:
  executor_ref executor_;
  tigon::workspace* workspace_;
  std::size_t logit_rows_ = 0;
};

/// The context of a call that names none: serial, with a growing workspace of the calling thread's own.
TIGON_TAGGED inline context& default_context() {
  thread_local workspace scratch;
  thread_local context instance(serial(), scratch);
  return instance;
}

}  // namespace tigon

#endif  // TIGON_CORE_CONTEXT_HPP

// What a call runs on: an executor and a workspace. Passed last, defaulted.
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

 private:
  executor_ref executor_;
  tigon::workspace* workspace_;
};

/// The context of a call that names none: serial, with a growing workspace of the calling thread's own.
TIGON_TAGGED inline context& default_context() {
  thread_local workspace scratch;
  thread_local context instance(serial(), scratch);
  return instance;
}

}  // namespace tigon

#endif  // TIGON_CORE_CONTEXT_HPP

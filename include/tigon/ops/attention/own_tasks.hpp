// Tasks that call other operators, each in a context of its own.
#ifndef TIGON_OPS_ATTENTION_OWN_TASKS_HPP
#define TIGON_OPS_ATTENTION_OWN_TASKS_HPP

#include <tigon/backend/host.hpp>

#include <cstddef>
#include <span>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Calls f(task, own) for every task of backend B; own is a serial context on the worker's share of the workspace.
template <class B, class F>
void for_tasks(context& ctx, std::size_t tasks, std::size_t bytes_of_worker, F f) {
  workspace::frame frame(ctx.workspace());
  std::byte* memory = frame.take<std::byte>(bytes_of_worker * ctx.executor().workers());
  for_host_tasks<B>(ctx, tasks, [&](std::size_t task, std::size_t worker) {
    workspace share(std::span(memory + worker * bytes_of_worker, bytes_of_worker));
    context own(serial(), share);
    f(task, own);
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_OWN_TASKS_HPP

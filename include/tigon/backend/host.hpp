// Where the data of a backend are, and the loops over data that run on the host.
#ifndef TIGON_BACKEND_HOST_HPP
#define TIGON_BACKEND_HOST_HPP

#include <tigon/core/context.hpp>

#include <cstddef>

namespace tigon {

/// Whether the host reads and writes the arguments of a backend, as it does on CPUs. A backend of a device with memory
/// of its own says `static constexpr bool host_memory = false`, which its children inherit: loops over data on the host
/// are then refused by a sentence.
template <class B>
inline constexpr bool host_memory = [] {
  if constexpr (requires { B::host_memory; })
    return static_cast<bool>(B::host_memory);
  else
    return true;
}();

namespace detail {
inline namespace TIGON_ABI {

/// True for a backend whose data may be looped over on the host; a sentence otherwise.
template <class B>
consteval bool loops_on_host() {
  static_assert(
      host_memory<B>,
      "tigon: this kernel loops over data on the host, and the memory of this backend is elsewhere: its driver "
      "(its type rows) has to run the rows, or the operator needs a kernel of its own (docs/add_a_backend.md)");
  return true;
}
/// fn(task, worker) for every task, on the executor: a loop of backend B over data.
template <class B, class F>
TIGON_INLINE void for_host_tasks(context& ctx, std::size_t tasks, F&& fn) {
  static_assert(loops_on_host<B>());
  ctx.executor().run(tasks, fn);
}

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_BACKEND_HOST_HPP

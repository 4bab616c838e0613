// The provider `plain` beside the backends of an operator.
#ifndef TIGON_BENCH_PLAIN_PROVIDER_HPP
#define TIGON_BENCH_PLAIN_PROVIDER_HPP

#include "plain/passes.hpp"
#include "support/backends.hpp"

#include <concepts>
#include <utility>

namespace tigon_bench {

using backends_and_plain = decltype(all_backends{} + backend_list<plain>{});

/// Adds `plain` to the providers of an operator; make is a generic callable that makes the plan of a backend, or of
/// `plain`, and a type. Elementary steps have the default variant alone.
template <class Make>
op_entry with_plain(op_entry entry, Make make) {
  entry.backends = backends_and_plain::names();
  entry.make_plan = [make](const request& r) {
    if (r.backend == plain::info.name && r.variant != "default")
      throw unsupported("plain has the variant default alone");
    return with_types<plan, backends_and_plain>(r,
                                                [&]<class B, class T>() { return make.template operator()<B, T>(r); });
  };
  return entry;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_PLAIN_PROVIDER_HPP

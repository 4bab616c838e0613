// The provider `plain` beside the backends of an operator.
#ifndef TIGON_BENCH_PLAIN_PROVIDER_HPP
#define TIGON_BENCH_PLAIN_PROVIDER_HPP

#include "plain/passes.hpp"
#include "support/backends.hpp"

#include <algorithm>
#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tigon_bench {

using backends_and_plain = decltype(all_backends{} + backend_list<plain>{});

/// Adds `plain` to the providers of an operator; make is a generic callable that makes the plan of a backend, or of
/// `plain`, and a type. Elementary steps have these variants alone.
template <class Make>
op_entry with_plain(op_entry entry, Make make, std::vector<std::string> variants = {"default"}) {
  entry.backends = backends_and_plain::names();
  entry.make_plan = [make, variants](const request& r) {
    if (r.backend == plain::info.name && std::find(variants.begin(), variants.end(), r.variant) == variants.end())
      throw unsupported("plain has no variant " + r.variant);
    return with_types<plan, backends_and_plain>(r,
                                                [&]<class B, class T>() { return make.template operator()<B, T>(r); });
  };
  return entry;
}

/// The intermediate results of elementary steps; nothing where B is a backend.
template <class B, class Steps, class... Arguments>
std::shared_ptr<Steps> steps_for(Arguments... arguments) {
  if constexpr (std::same_as<B, plain>)
    return std::make_shared<Steps>(arguments...);
  else
    return nullptr;
}

template <class Steps>
std::size_t bytes_of(const std::shared_ptr<Steps>& steps) {
  return steps == nullptr ? 0 : steps->bytes();
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_PLAIN_PROVIDER_HPP

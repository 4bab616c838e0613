// Every backend of the registry that this build can have, as a list of types in the registry's order.
#ifndef TIGON_TOOLS_TIGON_INFO_ALL_BACKENDS_HPP
#define TIGON_TOOLS_TIGON_INFO_ALL_BACKENDS_HPP

#include <tigon/backend/found.hpp>
#include <tigon/tigon.hpp>

using tigon::backend_list;
using all_backends = tigon::found_backends;  // tests/backend/registry_test.cpp counts them

/// The same, and before them the default backend where it is one of the program's own, as a vendor's or a mix.
template <class Default, class... B>
using with_default =
    std::conditional_t<(std::same_as<Default, B> || ...), backend_list<B...>, backend_list<Default, B...>>;
using shown_backends = decltype([]<class... B>(backend_list<B...>) {
  return with_default<tigon::default_backend, B...>{};
}(all_backends{}));

/// Who provides what: a constant, compared with the lists of overrides by tests/backend/registry_test.cpp.
constexpr auto coverage_of = []<class... B>(backend_list<B...>) {
  return tigon::coverage_table<B...>(tigon::all_ops{});
};
constexpr auto coverage_here = coverage_of(all_backends{});

#endif  // TIGON_TOOLS_TIGON_INFO_ALL_BACKENDS_HPP

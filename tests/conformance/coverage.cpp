// Whose kernels a backend runs, printed; and that what it claims about itself holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <tigon/tigon.hpp>

#include "support/backends.hpp"

namespace {

using B = TIGON_CONFORMANCE_BACKEND;

template <class... Ops>
std::size_t print(tigon::op_list<Ops...> ops) {
  // A mix is the provider of what it takes, and shows where from.
  std::size_t own = (std::size_t{std::same_as<tigon::provider_t<Ops, B>, B>} + ... + 0), named = 0;
  for (const auto& [op, provider] : tigon::coverage<B>(ops)) {
    std::printf("  %-28s %s\n", std::string(op).c_str(), std::string(provider).c_str());
    named += provider == B::info.name;
  }
  return std::max(own, named);
}

/// Operators that B lists and the library does not have.
template <class... Ops>
std::size_t print_vendor_only(tigon::op_list<Ops...>) {
  std::size_t count = 0;
  const auto one = [&]<class Op>(tigon::op_list<Op> op) {
    if constexpr (!tigon::all_ops::contains<Op>) count += print(op);
  };
  (one(tigon::op_list<Ops>{}), ...);
  return count;
}

TEST(coverage, is_what_the_backend_lists) {
  static_assert(tigon::audit<B>(tigon::all_ops{}));
  const std::string name(B::info.name);
  std::printf("backend %s\n", name.c_str());
  const std::size_t own = print(tigon::all_ops{}), vendor_only = print_vendor_only(typename B::overrides{});
  std::printf("%s adapts %zu of %zu operators and adds %zu\n", name.c_str(), own, tigon::all_ops::size, vendor_only);
  EXPECT_EQ(own + vendor_only, B::overrides::size)
      << "`overrides` is inherited and has to be restated, or two backends are called " << name;
}

/// A default device is of use only if the backend becomes the default there: linking it must be enough.
TEST(coverage, default_devices_make_it_the_default) {
  if (!B::info.default_devices.contains(tigon::device::TIGON_DEVICE))
    GTEST_SKIP() << "opt-in on " << TIGON_STRING(TIGON_DEVICE) << ": reached by name alone";
  EXPECT_TRUE((std::same_as<tigon::default_backend, B>))
      << "the default on " << TIGON_STRING(TIGON_DEVICE) << " is " << tigon::default_backend::info.name
      << " (tigon_register_backend, or TIGON_BACKEND and TIGON_BACKEND_HEADER)";
}

}  // namespace

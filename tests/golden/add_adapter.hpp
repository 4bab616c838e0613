// An operator's adapter on every backend.
#ifndef TIGON_TESTS_GOLDEN_ADD_ADAPTER_HPP
#define TIGON_TESTS_GOLDEN_ADD_ADAPTER_HPP

#include <tigon/config.hpp>

#include "../support/backend_list.hpp"
#include "runners.hpp"
#if !defined(TIGON_CONFORMANCE_BACKEND)
#include <tigon/backends/ascend/backend.hpp>
#endif

namespace golden {

// An adapter of an operator without products is compiled once for backends that differ in products alone.
template <class Adapter>
concept makes_products = requires { requires Adapter::products; };
template <class Adapter, class B>
using code = std::conditional_t<makes_products<Adapter>, B, tigon::row_backend<B>>;

template <class Adapter, class B, class T>
void add(std::string_view op) {
  runners().push_back({op, B::info.name, tigon::element_name<T>(), &Adapter::template run<code<Adapter, B>, T>});
}

template <class Adapter, class... B>
void add_all(std::string_view op, tigon::test::list<B...>) {
  ((add<Adapter, B, float>(op), add<Adapter, B, tigon::bfloat16>(op)), ...);
}

/// Adds the cases of `op` for every backend of the build; true, so that it can initialise something.
template <class Adapter>
bool add_adapter(std::string_view op) {
  add_all<Adapter>(op, tigon::test::all_backends{});
#if !defined(TIGON_CONFORMANCE_BACKEND)
  add_all<Adapter>(op, tigon::test::list<tigon::backends::ascend>{});
#endif
  return true;
}

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_ADD_ADAPTER_HPP

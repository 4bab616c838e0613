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

// A child that overrides the product alone has its parent's row programs: an adapter of an operator without products is
// compiled once for both.
template <class Adapter>
concept makes_products = requires { requires Adapter::products; };
template <class B>
inline constexpr bool products_alone = false;
template <class B>
  requires(tigon::parent_t<B>::row == B::row && tigon::parent_t<B>::relaxed_16bit == B::relaxed_16bit)
inline constexpr bool products_alone<B> = std::same_as<typename B::overrides, tigon::op_list<tigon::op::gemm>>;
template <class B, class Adapter, bool Parent = products_alone<B> && !makes_products<Adapter>>
struct code {
  using backend = B;
};
template <class B, class Adapter>
struct code<B, Adapter, true> : code<tigon::parent_t<B>, Adapter, false> {};

template <class Adapter, class B, class T>
void add(std::string_view op) {
  runners().push_back(
      {op, B::info.name, tigon::element_name<T>(), &Adapter::template run<typename code<B, Adapter>::backend, T>});
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

// One operator on every backend. Compiled once an operator, with its name in TIGON_GOLDEN_OP.
#include <tigon/config.hpp>

#include "../support/backend_list.hpp"
#include "runners.hpp"
#if !defined(TIGON_CONFORMANCE_BACKEND)
#include <tigon/backends/ascend/backend.hpp>
#endif

// Spaces, which clang-format would insert, become part of the path.
// clang-format off
#define TIGON_GOLDEN_PATH_(op) adapters/op.hpp
// clang-format on
#define TIGON_GOLDEN_PATH(op) TIGON_GOLDEN_PATH_(op)
#include TIGON_STRING(TIGON_GOLDEN_PATH(TIGON_GOLDEN_OP))

namespace golden {
namespace {

using adapter = adapters::TIGON_GOLDEN_OP;

// A child that overrides the product alone has its parent's row programs: an adapter of an operator without products is
// compiled once for both.
template <class A>
concept makes_products = requires { requires A::products; };
template <class B>
inline constexpr bool products_alone = false;
template <class B>
  requires(tigon::parent_t<B>::row == B::row && tigon::parent_t<B>::relaxed_16bit == B::relaxed_16bit)
inline constexpr bool products_alone<B> = std::same_as<typename B::overrides, tigon::op_list<tigon::op::gemm>>;
template <class B, bool Parent = products_alone<B> && !makes_products<adapter>>
struct code {
  using backend = B;
};
template <class B>
struct code<B, true> : code<tigon::parent_t<B>, false> {};

template <class B, class T>
void add() {
  runners().push_back({TIGON_STRING(TIGON_GOLDEN_OP), B::info.name, tigon::element_name<T>(),
                       &adapter::run<typename code<B>::backend, T>});
}

template <class... B>
bool add_all(tigon::test::list<B...>) {
  ((add<B, float>(), add<B, tigon::bfloat16>()), ...);
  return true;
}

const bool added = add_all(tigon::test::all_backends{});
#if !defined(TIGON_CONFORMANCE_BACKEND)
const bool added_npu = add_all(tigon::test::list<tigon::backends::ascend>{});
#endif

}  // namespace
}  // namespace golden

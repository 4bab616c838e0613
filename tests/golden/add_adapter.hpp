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
#if defined(__AVX512BF16__) && !defined(TIGON_CONFORMANCE_BACKEND)
// Products of bf16 are all that differs from the parent: f32 is the code of the parent, which has a test of its own.
template <class B, class T>
inline constexpr bool has_products = !(std::same_as<B, tigon::backends::avx512_bf16> && std::same_as<T, float>);
#elif TIGON_FLAGS_arm_bf16 && !defined(TIGON_CONFORMANCE_BACKEND)
template <class B, class T>
inline constexpr bool has_products = !(std::same_as<B, tigon::backends::arm_bf16> && std::same_as<T, float>);
#else
template <class B, class T>
inline constexpr bool has_products = true;
#endif
template <class Adapter, class B, class T>
using code =
    tigon::test::usual_if<std::conditional_t<makes_products<Adapter> && has_products<B, T>, B, tigon::row_backend<B>>>;

template <class Adapter, class B, class T>
void add(std::string_view op) {
  runners().push_back({op, B::info.name, tigon::element_name<T>(), &Adapter::template run<code<Adapter, B, T>, T>});
}

// The default's lanes and, in bf16, the products of its children; with TIGON_TESTS_ENGINES every engine and tiles.
#if defined(TIGON_CONFORMANCE_BACKEND)
using compared = tigon::test::all_backends;
#elif defined(TIGON_TESTS_ENGINES) || defined(TIGON_TESTS_ALL_PAIRS)
using compared = decltype(tigon::test::all_backends{} + tigon::test::list<tigon::backends::ascend>{});
#else
using compared = decltype(tigon::test::list<tigon::backends::highway>{} + tigon::test::dot_backends{});
#endif

// What is not the default: in f32 alone, because bf16 is tested in tests/simd and what an engine can break of it are
// loads, stores and lanes; and with one vector a step.
#if defined(TIGON_CONFORMANCE_BACKEND) || defined(TIGON_TESTS_ALL_PAIRS)
template <class B>
inline constexpr bool is_other_engine = false;
template <class B>
using stepping = B;
#else
template <class B>
inline constexpr bool is_other_engine =
    std::same_as<B, tigon::backends::eigen> || std::same_as<B, tigon::backends::xsimd>;
template <class B>
using stepping = std::conditional_t<is_other_engine<B>, tigon::test::one_vector_a_step<B>, B>;
#endif

template <class B>
inline constexpr bool has_bf16 = !is_other_engine<B>;

template <class Adapter, class B>
void add_types(std::string_view op) {
  add<Adapter, stepping<B>, float>(op);
  if constexpr (has_bf16<B>) add<Adapter, B, tigon::bfloat16>(op);
}
template <class Adapter, class... B>
void add_all(std::string_view op, tigon::test::list<B...>) {
  (add_types<Adapter, B>(op), ...);
}

/// Adds the cases of `op` for every backend of the build; true, so that it can initialise something.
template <class Adapter>
bool add_adapter(std::string_view op) {
  static_assert(!Adapter::op::name.empty(), "an adapter names the operator that it is for: using op = ...");
  add_all<Adapter>(op, compared{});
  return true;
}

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_ADD_ADAPTER_HPP

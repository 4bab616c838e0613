// Every backend that this build has. In a conformance suite (cmake/tigon_conformance.cmake) that is one, a user's own:
// TIGON_CONFORMANCE_BACKEND is its type, TIGON_CONFORMANCE_HEADER where it is defined.
#ifndef TIGON_TESTS_SUPPORT_BACKEND_LIST_HPP
#define TIGON_TESTS_SUPPORT_BACKEND_LIST_HPP

#include <tigon/backend/kernel.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <type_traits>
#if defined(TIGON_CONFORMANCE_BACKEND)
#include TIGON_CONFORMANCE_HEADER
#else
#include <tigon/backend/found.hpp>
#endif

#if defined(TIGON_TESTS_LINKED_KERNELS)
#include "linked.hpp"
#endif

namespace tigon::test {

template <class... T>
struct list {};
template <class... A, class... B>
list<A..., B...> operator+(list<A...>, list<B...>);

/// Backends of the suite, where the build says so with kernels that are compiled once for all of its programs.
#if defined(TIGON_TESTS_LINKED_KERNELS)
template <class B>
using shared = linked<B>;
#else
template <class B>
using shared = B;
#endif

#if defined(TIGON_CONFORMANCE_BACKEND)

using usual_backend = TIGON_CONFORMANCE_BACKEND;
using single_numbers = backends::generic;
using bf16_backend = usual_backend;
using engine_backends = list<usual_backend>;
using all_backends = engine_backends;
using half_backends = engine_backends;

#else

/// The single numbers.
using single_numbers = shared<backends::generic>;
/// What a test builds on that needs some backend with products of its own.
using usual_backend = shared<backends::highway>;

/// The backends of a list of which Keep<B>::value, the last first.
template <template <class> class Keep, class List>
struct kept_backends {
  using type = list<>;
};
template <template <class> class Keep, class First, class... More>
struct kept_backends<Keep, backend_list<First, More...> > {
  using type = decltype(typename kept_backends<Keep, backend_list<More...> >::type{} +
                        std::conditional_t<Keep<First>::value, list<First>, list<> >{});
};
template <template <class> class Keep>
using found_where = typename kept_backends<Keep, found_backends>::type;

template <class B>
inline constexpr bool is_engine = std::is_void_v<parent_t<B> > || std::is_same_v<parent_t<B>, backends::generic>;
template <class B>
inline constexpr bool links_library = B::info.name == "onednn";  // to a library that the build may not have found
template <class B>
struct runs_engine : std::bool_constant<B::info.devices.contains(device::cpu) && is_engine<B> > {};
template <class B>
struct has_products : std::bool_constant<B::info.devices.contains(device::cpu) && !is_engine<B> && !links_library<B> > {
};
template <class B>
struct links_products : std::bool_constant<links_library<B> > {};

/// One backend an engine: what row programs are tested on.
using engine_backends = found_where<runs_engine>;
/// Their children, which have products of their own.
using dot_backends = found_where<has_products>;
/// The default where bf16 is multiplied by instructions, if the flags have them.
#if defined(__AVX512BF16__)
using bf16_backend = shared<backends::avx512_bf16>;
#elif TIGON_FLAGS_arm_bf16
using bf16_backend = shared<backends::arm_bf16>;
#else
using bf16_backend = usual_backend;
#endif
#if defined(TIGON_TESTS_ONEDNN)  // the build found libdnnl, and links it
using onednn_backends = found_where<links_products>;
#else
using onednn_backends = list<>;
#endif
/// With the children, which have products of their own but the row programs of their parents.
using all_backends = decltype(engine_backends{} + dot_backends{} + onednn_backends{});

/// An engine with one vector in flight where loops have four: the same loads, stores and lanes in half of the code.
/// Loops of four vectors are tested on the default's lanes; on all of them in tests/rows and training/convergence.
template <class B>
struct one_vector_a_step : B {
  static constexpr row_tuning row{.unroll = 1};
};

/// Half of the engines: the single numbers and the default.
using half_backends = list<single_numbers, usual_backend>;

#endif

/// B, but what the suite shares of it: the usual backend and the one of products in bf16.
template <class B>
using usual_if = std::conditional_t<std::is_same_v<shared<B>, usual_backend> || std::is_same_v<shared<B>, bf16_backend>,
                                    shared<B>, B>;

/// What provides Op on the usual backend, linked or not.
#if defined(TIGON_TESTS_LINKED_KERNELS)
template <class Op>
using usual_provider = provider_t<Op, backends::highway>;
#else
template <class Op>
using usual_provider = provider_t<Op, usual_backend>;
#endif

}  // namespace tigon::test

namespace tigon::backends {
inline namespace TIGON_ABI {

/// A few rows, pairs or sums at a time, by the kernels of Parent.
template <class Parent, std::size_t Bytes, std::size_t LeastRows = 0>
struct small_chunks_of : Parent {
  using parent = Parent;
  using chunked = small_chunks_of;
  using unchunked = Parent;
  static constexpr backend_info info{"small_chunks", {device::cpu}};
  using overrides = op_list<>;
  static constexpr chunk_tuning chunk{.logits_bytes = Bytes, .row_multiple = 2, .least_rows = LeastRows};
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

#endif  // TIGON_TESTS_SUPPORT_BACKEND_LIST_HPP

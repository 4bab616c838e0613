// Every backend that this build has.
#ifndef TIGON_TESTS_SUPPORT_BACKEND_LIST_HPP
#define TIGON_TESTS_SUPPORT_BACKEND_LIST_HPP

#include <tigon/backends/eigen/backend.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#include <tigon/backends/xsimd/backend.hpp>
#if defined(__AVX512BF16__)
#include <tigon/backends/avx512_bf16/backend.hpp>
#endif

namespace tigon::test {

template <class... T>
struct list {};
template <class... A, class... B>
list<A..., B...> operator+(list<A...>, list<B...>);

/// One backend an engine: what row programs are tested on.
using engine_backends = list<backends::generic, backends::eigen, backends::xsimd, backends::highway>;

/// With the children, which have products of their own but the row programs of their parents.
#if defined(__AVX512BF16__)
using all_backends = decltype(engine_backends{} + list<backends::avx512_bf16>{});
#else
using all_backends = engine_backends;
#endif

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_BACKEND_LIST_HPP

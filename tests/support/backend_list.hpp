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

using all_backends = list<backends::generic, backends::eigen, backends::xsimd, backends::highway
#if defined(__AVX512BF16__)
                          ,
                          backends::avx512_bf16
#endif
                          >;

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_BACKEND_LIST_HPP

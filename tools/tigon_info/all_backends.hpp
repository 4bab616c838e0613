// Every backend of the registry that this build can have, as a list of types in the registry's order.
#ifndef TIGON_EXAMPLES_TIGON_INFO_ALL_BACKENDS_HPP
#define TIGON_EXAMPLES_TIGON_INFO_ALL_BACKENDS_HPP

#include <tigon/tigon.hpp>
// tests/backend/registry_test.cpp counts them.
#include <tigon/backends/generic/backend.hpp>
#if TIGON_FOUND_hwy
#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#endif
#if TIGON_FOUND_dnnl
#include <tigon/backends/onednn/backend.hpp>
#endif
#if TIGON_FOUND_hwy && TIGON_FLAGS_amx
#include <tigon/backends/amx/backend.hpp>
#endif
#if TIGON_FOUND_hwy && TIGON_FLAGS_avx512_bf16
#include <tigon/backends/avx512_bf16/backend.hpp>
#endif
#if TIGON_FOUND_hwy && TIGON_FLAGS_arm_bf16
#include <tigon/backends/arm_bf16/backend.hpp>
#endif
#if TIGON_FOUND_xsimd
#include <tigon/backends/xsimd/backend.hpp>
#endif
#if TIGON_FOUND_eigen
#include <tigon/backends/eigen/backend.hpp>
#endif

using tigon::backend_list;

using all_backends = decltype(backend_list<>{}
#if TIGON_FOUND_hwy
                              + backend_list<tigon::backends::ascend>{}
#endif
#if TIGON_FOUND_hwy && TIGON_FLAGS_amx
                              + backend_list<tigon::backends::amx>{}
#endif
#if TIGON_FOUND_hwy && TIGON_FLAGS_avx512_bf16
                              + backend_list<tigon::backends::avx512_bf16>{}
#endif
#if TIGON_FOUND_hwy && TIGON_FLAGS_arm_bf16
                              + backend_list<tigon::backends::arm_bf16>{}
#endif
#if TIGON_FOUND_hwy
                              + backend_list<tigon::backends::highway>{}
#endif
#if TIGON_FOUND_dnnl
                              + backend_list<tigon::backends::onednn>{}
#endif
#if TIGON_FOUND_xsimd
                              + backend_list<tigon::backends::xsimd>{}
#endif
#if TIGON_FOUND_eigen
                              + backend_list<tigon::backends::eigen>{}
#endif
                              + backend_list<tigon::backends::generic>{});

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

#endif  // TIGON_EXAMPLES_TIGON_INFO_ALL_BACKENDS_HPP

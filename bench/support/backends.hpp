// The backends of this build, as a list of types and by name. Include it after the operator's header: a backend brings
// its overrides, which need the operator's contract.
#ifndef TIGON_BENCH_SUPPORT_BACKENDS_HPP
#define TIGON_BENCH_SUPPORT_BACKENDS_HPP

#include <tigon/backends/generic/backend.hpp>
#if __has_include(<Eigen/Core>)
#include <tigon/backends/eigen/backend.hpp>
#endif
#if __has_include(<xsimd/xsimd.hpp>)
#include <tigon/backends/xsimd/backend.hpp>
#endif
#if __has_include(<hwy/highway.h>)
#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#if defined(__AVX512BF16__)
#include <tigon/backends/avx512_bf16/backend.hpp>
#endif
#if TIGON_FLAGS_arm_bf16
#include <tigon/backends/arm_bf16/backend.hpp>
#endif
#if TIGON_FLAGS_amx
#include <tigon/backends/amx/backend.hpp>
#endif
#if defined(TIGON_BENCH_ONEDNN)
#include <tigon/backends/onednn/backend.hpp>
#endif
#endif
// One that the library has never heard of: TIGON_BACKEND names it (docs/add_a_backend.md).
#if defined(TIGON_BACKEND_HEADER)
#include TIGON_BACKEND_HEADER

#include <tigon/backend/default.hpp>
#endif

#include "support/registry.hpp"

#include <string>
#include <type_traits>
#include <vector>

namespace tigon_bench {

template <class... B>
struct backend_list {
  static std::vector<std::string> names() { return {std::string(B::info.name)...}; }

  /// f(std::type_identity<B>) for the backend of that name.
  template <class R, class F>
  static R call(const std::string& name, F&& f) {
    R result{};
    if (!((name == B::info.name && (result = f(std::type_identity<B>{}), true)) || ...))
      throw unsupported("backend " + name + " is not in this build");
    return result;
  }
};

template <class... A, class... B>
backend_list<A..., B...> operator+(backend_list<A...>, backend_list<B...>);

using generic_list = backend_list<tigon::backends::generic>;
#if __has_include(<Eigen/Core>)
using eigen_list = backend_list<tigon::backends::eigen>;
#else
using eigen_list = backend_list<>;
#endif
#if __has_include(<xsimd/xsimd.hpp>)
using xsimd_list = backend_list<tigon::backends::xsimd>;
#else
using xsimd_list = backend_list<>;
#endif
#if __has_include(<hwy/highway.h>)
using ascend_list = backend_list<tigon::backends::ascend>;
#else
using ascend_list = backend_list<>;
#endif
#if __has_include(<hwy/highway.h>) && defined(TIGON_BENCH_ONEDNN)  // the build found libdnnl, and links it
using onednn_list = backend_list<tigon::backends::onednn>;
#else
using onednn_list = backend_list<>;
#endif
#if defined(TIGON_BACKEND_HEADER)
using own_list = backend_list<tigon::default_backend>;
#else
using own_list = backend_list<>;
#endif
#if __has_include(<hwy/highway.h>) && TIGON_FLAGS_amx
using highway_list = backend_list<tigon::backends::highway, tigon::backends::avx512_bf16, tigon::backends::amx>;
#elif __has_include(<hwy/highway.h>) && defined(__AVX512BF16__)
using highway_list = backend_list<tigon::backends::highway, tigon::backends::avx512_bf16>;
#elif __has_include(<hwy/highway.h>) && TIGON_FLAGS_arm_bf16
using highway_list = backend_list<tigon::backends::highway, tigon::backends::arm_bf16>;
#elif __has_include(<hwy/highway.h>)
using highway_list = backend_list<tigon::backends::highway>;
#else
using highway_list = backend_list<>;
#endif

// TIGON_BENCH_QUICK: the default engine, and a backend of your own, in f32 and bf16 alone, which compiles in a fifth of
// the time.
#if defined(TIGON_BENCH_QUICK)
using all_backends = decltype(highway_list{} + onednn_list{} + own_list{});
inline std::vector<dtype> all_dtypes() { return {dtype::f32, dtype::bf16}; }
#else
using all_backends = decltype(generic_list{} + eigen_list{} + xsimd_list{} + highway_list{} + onednn_list{} +
                              ascend_list{} + own_list{});
inline std::vector<dtype> all_dtypes() { return {dtype::f32, dtype::bf16, dtype::f16, dtype::f64}; }
#endif

/// f.template operator()<B, T>() for the backend, one of a list, and the element type that the request names.
template <class R, class Backends = all_backends, class F>
R with_types(const request& r, F&& f) {
  return Backends::template call<R>(r.backend, [&]<class B>(std::type_identity<B>) -> R {
    switch (r.element) {
      case dtype::f32: return f.template operator()<B, float>();
      case dtype::bf16: return f.template operator()<B, tigon::bfloat16>();
#if defined(TIGON_BENCH_QUICK)
      default: break;
#else
      case dtype::f16: return f.template operator()<B, tigon::float16>();
      case dtype::f64: return f.template operator()<B, double>();
      case dtype::i8: break;
#endif
    }
    throw unsupported("has no such dtype");
  });
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_BACKENDS_HPP

// The backends of this build, as a list of types and by name. Include it after the operator's header: a backend brings
// its overrides, which need the operator's contract.
#ifndef TIGON_BENCH_SUPPORT_BACKENDS_HPP
#define TIGON_BENCH_SUPPORT_BACKENDS_HPP

#include <tigon/backend/found.hpp>
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

/// Whether the build links what a backend needs.
template <class B>
inline constexpr bool is_linked = true;
#if TIGON_FOUND_dnnl && !defined(TIGON_BENCH_ONEDNN)
template <>
inline constexpr bool is_linked<tigon::backends::onednn> = false;
#endif
/// Of the default engine, on the CPU.
template <class B>
inline constexpr bool is_quick = B::info.devices.contains(tigon::device::cpu) &&
                                 std::same_as<typename B::engine, typename tigon::default_backend::engine>;

#if defined(TIGON_BACKEND_HEADER)
using own_list = backend_list<tigon::default_backend>;
#else
using own_list = backend_list<>;
#endif
// TIGON_BENCH_QUICK: the default engine, and a backend of your own, in f32 and bf16 alone, which compiles in a fifth of
// the time.
#if defined(TIGON_BENCH_QUICK)
template <class B>
inline constexpr bool is_wanted = is_linked<B> && is_quick<B>;
inline std::vector<dtype> all_dtypes() { return {dtype::f32, dtype::bf16}; }
#else
template <class B>
inline constexpr bool is_wanted = is_linked<B>;
inline std::vector<dtype> all_dtypes() { return {dtype::f32, dtype::bf16, dtype::f16, dtype::f64}; }
#endif
/// Those of the registry, and one of your own behind them.
template <class... B>
auto wanted(tigon::backend_list<B...>)
    -> decltype((backend_list<>{} + ... + std::conditional_t<is_wanted<B>, backend_list<B>, backend_list<>>{}));
using all_backends = decltype(wanted(tigon::found_backends{}) + own_list{});

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

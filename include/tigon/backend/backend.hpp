// What a backend is. No operator and no SIMD is known here.
#ifndef TIGON_BACKEND_BACKEND_HPP
#define TIGON_BACKEND_BACKEND_HPP

#include <tigon/backend/device.hpp>
#include <tigon/backend/tuning.hpp>
#include <tigon/core/element.hpp>

#include <concepts>
#include <string_view>

namespace tigon {

/// Name of a backend, devices it runs on, devices for which it is the default.
struct backend_info {
  std::string_view name;
  device_set devices;
  device_set default_devices;

  consteval backend_info(std::string_view n, device_set d, device_set defaults = {})
      : name(n), devices(d), default_devices(defaults) {
    if (n.empty()) detail::refuse("tigon: a backend needs a name");
    if (d.empty()) detail::refuse("tigon: a backend supports at least one device");
    if (!d.contains(defaults)) detail::refuse("tigon: default devices of a backend must be among its devices");
  }
};

/// The operators that a backend adapts itself.
template <class... Ops>
struct op_list {
  static constexpr std::size_t size = sizeof...(Ops);
  template <class Op>
  static constexpr bool contains = (std::same_as<Op, Ops> || ...);
};

namespace detail {
template <class L>
inline constexpr bool is_op_list = false;
template <class... Ops>
inline constexpr bool is_op_list<op_list<Ops...>> = true;
}  // namespace detail

/// A type that states (or inherits) where its kernels come from and which numbers steer them:
///   info       name and devices; a type that inherits it is its base with other numbers, under the base's name
///   parent     the backend whose kernels it inherits, void at the root; restated wherever `info` is
///   self       the type itself, in a backend from which such types without a name may derive
///   engine     the SIMD library behind the lanes
///   overrides  op_list of the operators it adapts itself
///   row, chunk, attention, hyper_connections, gemm   tuning values
///   tile_capacity_bits  scratch memory of one core, from which tiles are derived
///   error_scale  by what factor it loosens every documented error (precision trait)
///   host_memory  false: the host does not read its data (backend/host.hpp); `shared` then lists the operators whose
///                kernels of row programs it runs
///   relaxed_16bit  whether functions may be only as exact as a result of 16 bits shows (precision trait)
template <class B>
concept backend = requires {
  typename B::parent;
  typename B::engine;
  typename B::overrides;
  { B::info } -> std::convertible_to<const backend_info&>;
  { B::row } -> std::convertible_to<row_tuning>;
  { B::chunk } -> std::convertible_to<chunk_tuning>;
  { B::attention } -> std::convertible_to<attention_tuning>;
  { B::hyper_connections } -> std::convertible_to<hyper_connection_tuning>;
  { B::tile_capacity_bits } -> std::convertible_to<std::size_t>;
  { B::error_scale } -> std::convertible_to<double>;
  { B::relaxed_16bit } -> std::convertible_to<bool>;
} && detail::is_op_list<typename B::overrides> && (B::row.unroll == 1 || B::row.unroll == 2 || B::row.unroll == 4);

namespace detail {

template <class B>
struct parent_of {
  using type = typename B::parent;
};
template <const backend_info*>
struct stated {};
// B restates no info, so `parent` too is its base's and would skip the base.
template <class B>
  requires(!std::same_as<B, typename B::self> && std::same_as<stated<&B::info>, stated<&B::self::info>>)
struct parent_of<B> {
  using type = typename B::self;
};

}  // namespace detail

/// The next backend on the chain, void after the root: B::parent, or what B::info belongs to where B inherits that.
template <class B>
using parent_t = typename detail::parent_of<B>::type;

/// True for a backend and an element type that may be used together; otherwise a sentence at compile time.
template <class B, class T>
consteval bool admits() {
  static_assert(backend<B>,
                "tigon: the first template argument is not a backend: it needs parent, info, engine, overrides and "
                "tuning values; derive it from one of tigon::backends (docs/backends.md)");
  static_assert(element<T>,
                "tigon: elements are float, double, tigon::bfloat16 or tigon::float16; convert before the call");
  return backend<B> && element<T>;
}

}  // namespace tigon

#endif  // TIGON_BACKEND_BACKEND_HPP

// The backends of a program, its own and the library's, and how one is found for a device: while compiling by the
// device's name, and when the program runs by which devices are there.
#ifndef TIGON_BACKEND_LOOKUP_HPP
#define TIGON_BACKEND_LOOKUP_HPP

#include <tigon/backend/default.hpp>
#include <tigon/core/error.hpp>

#include <string>
#include <type_traits>
#include <utility>

namespace tigon {

/// Backends as types, in order of preference.
template <class... B>
struct backend_list {
  static constexpr std::size_t size = sizeof...(B);
};
template <class... A, class... B>
backend_list<A..., B...> operator+(backend_list<A...>, backend_list<B...>);

/// The first line that is a default on the device of that name and that this translation unit can use; else the first
/// that runs there; else null.
template <class Lines>
constexpr TIGON_INLINE const registered_backend* find_backend(std::string_view device_name, const Lines& lines) {
  for (const bool by_default : {true, false})
    for (const registered_backend& line : lines)
      if (line.found && (by_default ? line.info.default_devices : line.info.devices).contains(device_name))
        return &line;
  return nullptr;
}

namespace detail {

consteval bool in_library(std::string_view name) {
  for (const registered_backend& line : library_backends)
    if (line.info.name == name) return true;
  return false;
}

inline namespace TIGON_ABI {
template <std::size_t N>
struct registry_lines {
  registered_backend at[N];

  static constexpr TIGON_INLINE std::size_t size() { return N; }
  constexpr TIGON_INLINE const registered_backend* begin() const { return at; }
  constexpr TIGON_INLINE const registered_backend* end() const { return at + N; }
  constexpr TIGON_INLINE const registered_backend& operator[](std::size_t i) const { return at[i]; }
};
}  // namespace TIGON_ABI

// Static, as the constants of the registry are without `inline`.
template <class... Own>
static constexpr auto lines_with = [] {
  constexpr std::size_t library = std::size(library_backends),
                        own = (std::size_t{!in_library(Own::info.name)} + ... + 0);
  auto lines = []<std::size_t... i>(std::index_sequence<i...>) {
    return registry_lines<sizeof...(i)>{{(static_cast<void>(i), library_backends[0])...}};
  }(std::make_index_sequence<own + library>{});
  std::size_t at = 0;
  ((in_library(Own::info.name) ? void() : void(lines.at[at++] = {Own::info, true, "nothing"})), ...);
  for (const registered_backend& line : library_backends) lines.at[at++] = line;
  return lines;
}();

}  // namespace detail

/// The registry with your own backends before those of the library: begin(), end(), size() and operator[].
template <class... Own>
constexpr TIGON_INLINE const auto& registered_with(backend_list<Own...> = {}) {
  return detail::lines_with<Own...>;
}

/// The registry of this translation unit as a range of registered_backend: the default backend, where it is none of the
/// library's, then library_backends.
class registry {
 public:
  template <class Default = default_backend>
  constexpr TIGON_INLINE const registered_backend* begin() const {
    return registered_with<Default>().begin();
  }
  template <class Default = default_backend>
  constexpr TIGON_INLINE const registered_backend* end() const {
    return registered_with<Default>().end();
  }
};
constexpr registry registered_backends{};

/// find_backend in the registry of this translation unit.
template <class Default = default_backend>
constexpr TIGON_INLINE const registered_backend* find_backend(std::string_view device_name) {
  return find_backend(device_name, registered_with<Default>());
}

namespace detail {

template <const device& D, class... B>
struct find_type {
  using type = void;
};
template <const device& D, class First, class... More>
struct find_type<D, First, More...>
    : std::conditional_t<First::info.default_devices.contains(D), std::type_identity<First>, find_type<D, More...>> {};
template <const device& D, class List>
struct find_type_in;
template <const device& D, class... B>
struct find_type_in<D, backend_list<B...>> : find_type<D, B...> {};

template <class... B>
struct find_present {
  using type = void;
};
template <class First, class... More>
struct find_present<First, More...>
    : std::conditional_t<First::info.default_devices.present(), std::type_identity<First>, find_present<More...>> {};
template <class List>
struct find_present_in;
template <class... B>
struct find_present_in<backend_list<B...>> : find_present<B...> {};

inline namespace TIGON_ABI {

inline void name_backend(std::string& names, const backend_info& info) {
  names += (names.empty() ? "" : ", ") + std::string(info.name) + " (";
  for (const device& d : info.default_devices)
    names += (&d == info.default_devices.begin() ? "" : " and ") + std::string(d.name);
  names += info.default_devices.empty() ? "opt-in)" : ")";
}

template <class F, class First, class... More>
decltype(auto) call_at(std::size_t at, F& f) {
  if constexpr (sizeof...(More) == 0)
    return f.template operator()<First>();
  else
    return at == 0 ? f.template operator()<First>() : call_at<F, More...>(at - 1, f);
}

// f of the first backend for which suits(info).
template <class F, class Suits, class... B>
decltype(auto) call_suited(const std::string& wanted, Suits suits, F& f) {
  const backend_info* const all[] = {&B::info...};
  std::size_t at = 0;
  while (at < sizeof...(B) && !suits(*all[at])) ++at;
  if (at == sizeof...(B)) {
    std::string names;
    for (const backend_info* info : all) name_backend(names, *info);
    fail(error_code::state, "tigon: no backend is a default on " + wanted + "; there are " + names);
  }
  return call_at<F, B...>(at, f);
}

}  // namespace TIGON_ABI
}  // namespace detail

/// The first backend of a list that is a default on a device: backend_on<device::npu, backend_list<acme, ascend>>. void
/// if there is none.
template <const device& D, class List>
using backend_on = typename detail::find_type_in<D, List>::type;

/// The first backend of a list one of whose default devices is there, where every device's function is constexpr. void
/// if there is none.
template <class List>
using present_backend = typename detail::find_present_in<List>::type;

/// f.operator()<B>() for the first backend B of a list one of whose default devices is there now, or, with a device's
/// name, which is a default on that device. Throws tigon::error (state) where there is none, or no such device now.
///
///   tigon::with_present_backend(tigon::backend_list<acme, highway>{},
///                               [&]<class B>() { tigon::softmax_forward<B>(x, y); });
template <class... B, class F>
  requires(sizeof...(B) != 0)
decltype(auto) with_present_backend(backend_list<B...>, F f) {
  const auto there = [](const backend_info& info) { return info.default_devices.present(); };
  return detail::call_suited<F, decltype(there), B...>("a device that is there", there, f);
}
template <class... B, class F>
  requires(sizeof...(B) != 0)
decltype(auto) with_present_backend(backend_list<B...>, std::string_view device_name, F f) {
  const auto there = [=](const backend_info& info) {
    for (const device& d : info.default_devices)
      if (d.name == device_name && d.present()) return true;
    return false;
  };
  return detail::call_suited<F, decltype(there), B...>("device " + std::string(device_name) + ", or it is not there",
                                                       there, f);
}

}  // namespace tigon

#endif  // TIGON_BACKEND_LOOKUP_HPP

// Row programs that are made of numbers in memory, which the host need not be able to read.
#ifndef TIGON_BACKEND_MADE_LATE_HPP
#define TIGON_BACKEND_MADE_LATE_HPP

#include <tigon/backend/host.hpp>
#include <tigon/config.hpp>

#include <utility>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// A program that is made where it runs, since its numbers are in the device's memory: Make has program().
template <class Make>
struct made_late : Make {
  using made = decltype(std::declval<const Make&>().program());

  template <class... X>
    requires requires(const made& p, X... x) { p.reduce(x...); }
  TIGON_INLINE auto reduce(X... x) const {
    return this->program().reduce(x...);
  }
  template <class... X>
    requires requires(const made& p, X... x) { p.direct(x...); }
  TIGON_INLINE auto direct(X... x) const {
    return this->program().direct(x...);
  }
  template <class... X>
    requires requires(const made& p, X... x) { p.finish(x...); }
  TIGON_INLINE auto finish(X... x) const {
    return this->program().finish(x...);
  }
  template <class Value>
  TIGON_INLINE auto save(const Value& value) const {
    return this->program().save(value);
  }
  template <class Value>
    requires requires(const made& p, const Value& value) { p.in_f64(value); }
  TIGON_INLINE auto in_f64(const Value& value) const {
    return this->program().in_f64(value);
  }
  template <class V>
    requires requires(const made& p, V v) { p.prepare(v); }
  TIGON_INLINE auto prepare(V v) const {
    return this->program().prepare(v);
  }
  template <class... X>
    requires requires(const made& p, X... x) { p.map(x...); }
  TIGON_INLINE auto map(X... x) const {
    return this->program().map(x...);
  }
};
template <class Make>
made_late(Make) -> made_late<Make>;

/// The program that `make` makes of numbers in memory, by its program(): made at once where the host reads the memory
/// of B, and otherwise where its rows run.
template <class B, class Make>
TIGON_INLINE auto made_of(const Make& make) {
  if constexpr (host_memory<B>)
    return make.program();
  else
    return made_late<Make>{make};
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_BACKEND_MADE_LATE_HPP

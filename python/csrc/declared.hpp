// Operators of one declaration: a function over plain arguments, operands first and then numbers, as an entry of a
// table.
#ifndef TIGON_TORCH_DECLARED_HPP
#define TIGON_TORCH_DECLARED_HPP

#include <tuple>
#include <type_traits>
#include <utility>

#include "call.hpp"

namespace tigon_torch {

template <class P>
constexpr char kind_of() {
  if constexpr (std::is_same_v<P, matrix>) return 'm';
  if constexpr (std::is_same_v<P, wide_matrix>) return 'w';
  if constexpr (std::is_same_v<P, vector>) return 'v';
  if constexpr (std::is_same_v<P, narrow_vector>) return 'n';
  if constexpr (std::is_same_v<P, id_vector>) return 'i';
  if constexpr (std::is_same_v<P, heads>) return 'h';
  if constexpr (std::is_same_v<P, cube>) return 'c';
  return '\0';
}

/// The next operand, or the next number.
template <class P>
P take(const operand*& operands, const double*& numbers) {
  if constexpr (kind_of<P>() == '\0') {
    return static_cast<P>(*numbers++);
  } else {
    const operand& o = *operands++;
    P made;
    if constexpr (std::is_base_of_v<matrix, P>)
      static_cast<matrix&>(made) = {o.data, o.of, o.sizes[0], o.sizes[1], o.strides[0]};
    else if constexpr (std::is_base_of_v<vector, P>)
      static_cast<vector&>(made) = {o.data, o.of, o.sizes[0]};
    else if constexpr (std::is_same_v<P, heads>)
      made = {o.data, o.of, o.sizes[0], o.sizes[1], o.sizes[2], o.sizes[3], o.strides[0], o.strides[1], o.strides[2]};
    else
      made = {o.data, o.of, {o.sizes[0], o.sizes[1], o.sizes[2]}};
    return made;
  }
}

template <auto f>
struct unpacked;
template <class... P, void (*f)(const host&, P...)>
struct unpacked<f> {
  static constexpr std::size_t operands = ((kind_of<P>() != '\0') + ... + 0);
  static constexpr char all[] = {kind_of<P>()..., '\0'};  // numbers are zeros, which end it

  static void run(const host& h, const operand* from, const double* numbers) {
    const std::tuple<P...> arguments{take<P>(from, numbers)...};  // in this order, as braces have it
    std::apply([&](const P&... p) { f(h, p...); }, arguments);
  }
};

/// f(host, operands..., numbers...) under a name; no function for an operator that this table has no kernel of.
template <auto f, class Op = void>
constexpr declared_operator declared(const char* name) {
  using of = unpacked<f>;
  return {name, of::all, sizeof(of::all) - 1 - of::operands, entry<Op>(&of::run)};
}
template <std::size_t n>
constexpr declared_operators declared_in(const declared_operator (&table)[n]) {
  return {table, n};
}

}  // namespace tigon_torch

#endif  // TIGON_TORCH_DECLARED_HPP

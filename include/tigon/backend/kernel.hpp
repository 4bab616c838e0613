// Which code runs: kernel<Op, P>, the provider of an operator for a backend, and the audit of what a backend claims.
//
// A kernel is found by name, never by being callable: a specialisation with a wrong signature is a hard error at the
// call, not a silent fall-back to the parent. Forward, backward and the type of what is saved between them are members
// of one struct, so they always come from one provider.
#ifndef TIGON_BACKEND_KERNEL_HPP
#define TIGON_BACKEND_KERNEL_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/backend/default.hpp>
#include <tigon/backend/host.hpp>

#include <array>
#include <string_view>

namespace tigon {

namespace op {
struct gemm;
}

/// The code of one operator as provider P writes it. A specialisation declares
///   template <class T> using saved = ...          what forward leaves for backward (no_state where nothing)
///   template <backend B, ...> static void forward(...)
///   template <backend B, ...> static void backward(...)     or: using forward_only = void;
/// B is the most derived backend: code from the provider, tuning and precision from B.
template <class Op, class P>
struct kernel {
  using not_provided = void;
};

/// `saved` of an operator whose backward needs nothing but its inputs and outputs.
struct no_state {};

namespace detail {

template <class Op, class P>
inline constexpr bool has_kernel = !requires { typename kernel<Op, P>::not_provided; };

// Finds a member called forward (backward) by its name alone: it makes the same name in a second base ambiguous.
struct named_forward {
  void forward();
};
struct named_backward {
  void backward();
};
template <class K>
struct forward_probe : K, named_forward {};
template <class K>
struct backward_probe : K, named_backward {};

template <class K>
inline constexpr bool names_forward = !requires { &forward_probe<K>::forward; };
template <class K>
inline constexpr bool names_backward = !requires { &backward_probe<K>::backward; };
template <class K>
inline constexpr bool names_saved = requires { typename K::template saved<float>; };

template <class K>
inline constexpr bool complete_kernel =
    names_forward<K> && (requires { typename K::forward_only; } || (names_backward<K> && names_saved<K>));

template <class Op, class P>
struct find_provider {
  using type = typename find_provider<Op, parent_t<P>>::type;
};
template <class Op, class P>
  requires has_kernel<Op, P>
struct find_provider<Op, P> {
  using type = P;
};
template <class Op>
struct find_provider<Op, void> {
  using type = void;
};

template <class B, class L>
inline constexpr bool has_kernel_of = false;
template <class B, class... Ops>
inline constexpr bool has_kernel_of<B, op_list<Ops...>> = (has_kernel<Ops, B> || ...);

// Is `overrides` B's own? A list that equals the parent's is taken for an inherited one, unless B says that it states
// everything itself (`self`) or has a kernel of the list.
template <class B>
inline constexpr bool states_overrides =
    !std::same_as<typename B::overrides, typename parent_t<B>::overrides> || has_kernel_of<B, typename B::overrides>;
template <class B>
  requires std::is_void_v<parent_t<B>> || (requires { requires std::same_as<B, typename B::self>; })
inline constexpr bool states_overrides<B> = true;

template <class Op, class P>
consteval bool audit_op() {
  constexpr bool listed = P::overrides::template contains<Op>;
  constexpr bool present = has_kernel<Op, P>;
  static_assert(!(listed && !present && states_overrides<P>),
                "tigon: this backend lists the operator in `overrides`, but no kernel<Op, Backend> is visible: include "
                "the header with its specialisation before the first use; where the list is inherited, restate `info` "
                "and `parent` too");
  static_assert(std::is_void_v<parent_t<P>> || !(present && !listed),
                "tigon: a kernel<Op, Backend> exists, but the backend does not list the operator in `overrides`");
  if constexpr (present)
    static_assert(complete_kernel<kernel<Op, P>>,
                  "tigon: a kernel supplies `saved`, `forward` and `backward` together, or declares `forward_only`");
  return true;
}

template <class Op, class P>
consteval bool audit_chain() {
  if constexpr (std::is_void_v<P>) {
    return true;
  } else {
    return audit_op<Op, P>() && audit_chain<Op, parent_t<P>>();
  }
}

template <class B, class L>
struct audit_list;
template <class B, class... Ops>
struct audit_list<B, op_list<Ops...>> {
  static consteval bool run() { return (audit_op<Ops, B>() && ... && true); }
};

// Whether the operator's kernel, or rather that of its provider, works where the data of B are. A backend with memory
// of its own lists in `shared` the operators that are made of row programs alone, which its driver runs.
template <class Op, class B>
inline constexpr bool reaches_data = [] {
  if constexpr (host_memory<B> || !host_memory<typename find_provider<Op, B>::type>)
    return true;
  else if constexpr (requires { typename B::shared; })
    return B::shared::template contains<Op>;
  else
    return false;
}();

template <class Op, class B>
consteval bool resolved() {
  if constexpr (admits<B, float>()) {
    static_assert(runs_where_wanted<B>());
    static_assert(audit_chain<Op, B>());
    static_assert(!std::is_void_v<typename find_provider<Op, B>::type>,
                  "tigon: this operator has no kernel in the chosen backend or any of its parents; it belongs to "
                  "another vendor's backend, or its header is not included");
    static_assert(
        reaches_data<Op, B>,
        "tigon: the kernel of this operator is written for memory that the host reads, and that of the chosen "
        "backend is elsewhere: supply a kernel, or list the operator in `shared` (docs/add_a_backend.md)");
  }
  return true;
}

}  // namespace detail

/// The nearest backend on the chain B, B::parent, ... that has a kernel for Op; void if there is none.
template <class Op, class B>
using provider_t = typename detail::find_provider<Op, B>::type;

/// The kernel that a public function calls for backend B. Refuses, with a sentence, what the rules forbid.
template <class Op, class B>
  requires(detail::resolved<Op, B>())
using kernel_for = kernel<Op, provider_t<Op, B>>;

namespace detail {
/// Whose kernel a provider runs: its own, but for one that passes all calls of Op on.
template <class Op, class Provider>
struct kernel_owner : std::type_identity<Provider> {};
template <class Op, class B, class Owner>
inline constexpr bool runs_kernel_of = std::same_as<typename kernel_owner<Op, provider_t<Op, B>>::type, Owner>;

template <class Overrides>
inline constexpr bool products_at_most =
    std::same_as<Overrides, op_list<>> || std::same_as<Overrides, op_list<op::gemm>>;
// No backend of the chain but the root has rows of its own, which may be steered by numbers of their own.
template <class B>
inline constexpr bool roots_rows = products_at_most<typename B::overrides> && roots_rows<parent_t<B>>;
template <class B>
  requires std::is_void_v<parent_t<B>>
inline constexpr bool roots_rows<B> = true;

template <class B>
struct find_row_backend {
  using type = B;
};
template <class B>
  requires(std::same_as<typename B::overrides, op_list<op::gemm>> && !std::is_void_v<parent_t<B>> && roots_rows<B>)
struct find_row_backend<B> {
  using P = parent_t<B>;
  static constexpr bool alike =
      std::same_as<typename B::engine, typename P::engine> && B::row == P::row && B::relaxed_16bit == P::relaxed_16bit;
  using type = typename std::conditional_t<alike, find_row_backend<P>, std::type_identity<B>>::type;
};
}  // namespace detail

/// The backend whose row programs are B's: its parent, where B overrides products alone and keeps what steers rows. An
/// operator of rows and products runs its rows on it, so that they are compiled once for all such backends.
template <class B>
using row_backend = typename detail::find_row_backend<B>::type;

/// What forward of Op leaves for backward, in the provider's own type.
template <class Op, class B, class T>
using saved_t = typename kernel_for<Op, B>::template saved<T>;

/// True if every operator that B lists has a complete kernel; a compile-time error otherwise.
template <backend B>
consteval bool audit() {
  return detail::audit_list<B, typename B::overrides>::run();
}

/// The same, and no kernel exists for an operator of the list that B does not list.
template <backend B, class... Ops>
consteval bool audit(op_list<Ops...> all) {
  return audit<B>() && detail::audit_list<B, decltype(all)>::run();
}

namespace detail {
template <class Op, class P>
inline constexpr std::string_view provider_name = P::info.name;
template <class Op>
inline constexpr std::string_view provider_name<Op, void> = {};

// The largest f.operator()<P>() of B and, where B is a mix or derived from one, of the backends that it is made of.
template <class B, class F>
constexpr std::size_t most_of_parts(const F& f) {
  std::size_t most = f.template operator()<B>();
  if constexpr (requires { typename B::parts; }) {
    const std::size_t of_parts = B::parts::most(f);
    if (of_parts > most) most = of_parts;
  }
  return most;
}
}  // namespace detail

struct coverage_row {
  std::string_view op;
  std::string_view provider;  ///< "generic on xsimd" where a mix takes it from there; empty: another vendor's operator
};

/// (operator, provider) for every operator of the list.
template <backend B, class... Ops>
constexpr std::array<coverage_row, sizeof...(Ops)> coverage(op_list<Ops...>) {
  return {{coverage_row{Ops::name, detail::provider_name<Ops, provider_t<Ops, B>>}...}};
}

template <std::size_t N>
struct coverage_line {
  std::string_view op;
  std::array<std::string_view, N> providers;
};

/// The table operator x backend: who provides what, a line an operator, a column a backend.
template <backend... B, class... Ops>
constexpr std::array<coverage_line<sizeof...(B)>, sizeof...(Ops)> coverage_table(op_list<Ops...> all) {
  std::array<coverage_line<sizeof...(B)>, sizeof...(Ops)> table{coverage_line<sizeof...(B)>{Ops::name, {}}...};
  const auto column = [&](std::size_t at, const auto& rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) table[i].providers[at] = rows[i].provider;
  };
  std::size_t at = 0;
  (column(at++, coverage<B>(all)), ...);
  return table;
}

}  // namespace tigon

#endif  // TIGON_BACKEND_KERNEL_HPP

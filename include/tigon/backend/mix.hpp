// A backend that takes single operators from other backends.
#ifndef TIGON_BACKEND_MIX_HPP
#define TIGON_BACKEND_MIX_HPP

#include <tigon/backend/kernel.hpp>

#include <algorithm>
#include <array>

namespace tigon {
inline namespace TIGON_ABI {

/// In a mix: backend C and the operators that are taken from it.
template <class C, class... Ops>
struct from;

/// Backend B, but the operators of every `from` run on the backend that it names, with that backend's kernels, lanes
/// and numbers:
///
///   using mine = tigon::mix<acme, tigon::from<tigon::backends::generic, tigon::op::softmax>>;
///
/// It is a backend as any other: a template argument of a call, or a base of one with a name of its own. It runs where
/// all of its backends run (B's own ancestors wherever B does), is opt-in, and is called acme_with_generic. What a
/// taken operator is made of runs on the backend that it was taken from, unless the mix takes it from another. Of a
/// product the kernel is taken and the numbers stay B's. TIGON_BACKEND_OF_<op> makes the default backend such a mix
/// (backend/choices.hpp).
template <class B, class... From>
struct mix;

}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {

template <class B>
inline constexpr bool is_defined = requires { sizeof(B); };

template <class From>
struct from_parts;
template <class C, class... Ops>
struct from_parts<from<C, Ops...>> {
  static_assert(
      is_defined<C>,
      "tigon: a mix takes an operator from a backend that is not defined here: include its header, or name it "
      "in TIGON_BACKEND_HEADER (from<Backend, op>, TIGON_BACKEND_OF_<op>)");
  static_assert(sizeof...(Ops) != 0, "tigon: a mix takes no operator from this backend: from<Backend, op::softmax>");
  using backend = C;
  using ops = op_list<Ops...>;
};

template <class... Lists>
struct joined_ops;
template <>
struct joined_ops<> {
  using type = op_list<>;
};
template <class... A>
struct joined_ops<op_list<A...>> {
  using type = op_list<A...>;
};
template <class... A, class... B, class... More>
struct joined_ops<op_list<A...>, op_list<B...>, More...> : joined_ops<op_list<A..., B...>, More...> {};

template <class List>
inline constexpr bool each_once = true;
template <class Op, class... Ops>
inline constexpr bool each_once<op_list<Op, Ops...>> =
    !op_list<Ops...>::template contains<Op> && each_once<op_list<Ops...>>;

/// The backend that Op is taken from.
template <class Op, class... From>
struct taken_from;
template <class Op, class First, class... More>
struct taken_from<Op, First, More...> : taken_from<Op, More...> {};
template <class Op, class C, class... Ops, class... More>
  requires(op_list<Ops...>::template contains<Op>)
struct taken_from<Op, from<C, Ops...>, More...> {
  using type = C;
};

/// C is B, or one of those from whom B inherits its kernels.
template <class C, class B>
consteval bool is_ancestor() {
  if constexpr (std::is_void_v<B> || std::same_as<C, B>)
    return !std::is_void_v<B>;
  else
    return is_ancestor<C, parent_t<B>>();
}
/// Where kernels of C may run in a mix of B: those of its ancestors B would inherit.
template <class C, class B>
inline constexpr device_set devices_in_mix = is_ancestor<C, B>() ? B::info.devices : C::info.devices;

/// Text that is made of others, each of them once, and ends with a 0.
template <std::size_t N>
struct made_text {
  std::array<char, 256> text{};
  std::size_t size = 0;

  consteval made_text(const std::array<std::string_view, N>& parts, const std::array<std::string_view, 2>& between) {
    for (std::size_t i = 0, taken = 0; i < N; ++i) {
      bool again = false;
      for (std::size_t k = 0; k < i; ++k) again = again || parts[k] == parts[i];
      if (again) continue;
      if (taken != 0) add(between[taken == 1 ? 0 : 1]);
      add(parts[i]);
      ++taken;
    }
  }
  constexpr std::string_view view() const { return {text.data(), size}; }

 private:
  consteval void add(std::string_view s) {
    if (size + s.size() >= text.size()) refuse("tigon: the name of this mix has 256 characters or more");
    for (const char c : s) text[size++] = c;
  }
};
template <class... B>
inline constexpr made_text<sizeof...(B)> name_of_mix{{B::info.name...}, {"_with_", "_"}};

/// kernel<Op, P> run on On, whatever backend its caller names.
template <class Op, class P, class On>
struct kernel_on : kernel<Op, P> {
  template <class, class... T, class... X>
  static TIGON_INLINE decltype(auto) forward(X&&... x) {
    return kernel<Op, P>::template forward<On, T...>(static_cast<X&&>(x)...);
  }
  template <class, class... T, class... X>
  static TIGON_INLINE decltype(auto) backward(X&&... x) {
    return kernel<Op, P>::template backward<On, T...>(static_cast<X&&>(x)...);
  }
};
// Callers hand operands over in braces. Its kernels bring lanes of their own, or widen elements with the caller's.
template <class P, class On>
struct kernel_on<op::gemm, P, On> : kernel<op::gemm, P> {};

}  // namespace TIGON_ABI
}  // namespace detail

inline namespace TIGON_ABI {

template <class B, class... From>
struct mix : B {
  static_assert(backend<B>, "tigon: the first argument of a mix is not a backend");
  static_assert((backend<typename detail::from_parts<From>::backend> && ...),
                "tigon: a mix takes operators from backends alone: from<Backend, op::softmax>");
  using self = mix;
  using parent = B;
  using overrides = typename detail::joined_ops<typename detail::from_parts<From>::ops...>::type;
  static_assert(detail::each_once<overrides>, "tigon: a mix takes every operator from one backend");
  static_assert(((host_memory<typename detail::from_parts<From>::backend> == host_memory<B>)&&...),
                "tigon: a mix takes an operator from a backend whose data are in another memory (host_memory)");

 private:
  static constexpr device_set common =
      (B::info.devices & ... & detail::devices_in_mix<typename detail::from_parts<From>::backend, B>);
  static_assert(!common.empty(), "tigon: the backends of a mix have no device in common");

 public:
  /// For what is reserved before it is known which of the backends computes.
  struct parts {
    template <class F>
    static constexpr std::size_t most(const F& f) {
      return std::max(
          {f.template operator()<B>(), f.template operator()<typename detail::from_parts<From>::backend>()...});
    }
  };
  static constexpr backend_info info{detail::name_of_mix<B, typename detail::from_parts<From>::backend...>.view(),
                                     common};
};

}  // namespace TIGON_ABI

/// The kernel of the backend that Op is taken from.
template <class Op, class B, class... From>
  requires(mix<B, From...>::overrides::template contains<Op>)
struct kernel<Op, mix<B, From...>>
    : detail::kernel_on<Op, provider_t<Op, typename detail::taken_from<Op, From...>::type>,
                        mix<typename detail::taken_from<Op, From...>::type, From...>> {
  static_assert(!std::is_void_v<provider_t<Op, typename detail::taken_from<Op, From...>::type>>,
                "tigon: a mix takes an operator from a backend that has no kernel for it, or its header is not "
                "included");
};

namespace detail {
inline namespace TIGON_ABI {

template <class Op, class C>
inline constexpr made_text<2> provider_on{{provider_name<Op, provider_t<Op, C>>, C::info.name}, {" on ", ""}};

template <class B>
inline constexpr bool is_mix = false;
template <class B, class... From>
inline constexpr bool is_mix<mix<B, From...>> = true;

}  // namespace TIGON_ABI

// Whose kernel, and on which backend if that is another: "onednn", "generic on xsimd".
template <class Op, class B, class... From>
inline constexpr std::string_view provider_name<Op, mix<B, From...>> = [] {
  using C = typename taken_from<Op, From...>::type;
  if constexpr (std::same_as<provider_t<Op, C>, C> || is_mix<provider_t<Op, C>> || std::same_as<Op, op::gemm>)
    return provider_name<Op, provider_t<Op, C>>;
  else
    return provider_on<Op, C>.view();
}();

}  // namespace detail
}  // namespace tigon

#endif  // TIGON_BACKEND_MIX_HPP

// What every operator header begins with: how a backend is found, and the checks of the types of a call.
#ifndef TIGON_BACKEND_OPERATOR_HPP
#define TIGON_BACKEND_OPERATOR_HPP

#include <tigon/backend/default.hpp>
#include <tigon/backend/kernel.hpp>
#include <tigon/core/arguments.hpp>
#include <tigon/core/context.hpp>

namespace tigon {

namespace backends {
inline namespace TIGON_ABI {
struct generic;  // the root of every chain: operators write their canonical kernels for it
}
}  // namespace backends

namespace detail {
inline namespace TIGON_ABI {
template <class V>
struct view_element;
template <class T>
struct view_element<vector_view<T>> {
  using type = std::remove_const_t<T>;
};
template <class V>
using view_element_t = typename view_element<std::remove_cvref_t<V>>::type;

template <class T, class... Ranges>
struct first_parameter {
  using type = T;
};
template <class T, class R, class... Ranges>
struct first_parameter<T, R, Ranges...> : first_parameter<T, Ranges...> {};
template <class T, class R, class... Ranges>
  requires(!std::same_as<std::remove_cvref_t<R>, absent_t>)
struct first_parameter<T, R, Ranges...> {
  using type = typename vector_element<R>::type;
};

/// Bits of a result of element type T, for functions that need not be more exact; all where the backend says so.
template <class B, class T>
inline constexpr std::size_t result_bits = !B::relaxed_16bit || sizeof(T) > 2 ? 53
                                           : std::same_as<T, float16>         ? 11
                                                                              : 8;

}  // namespace TIGON_ABI
}  // namespace detail

/// The element type that the given ranges share; T where all are absent.
template <class T, class... Ranges>
using parameter_element_t = typename detail::first_parameter<T, Ranges...>::type;

/// True if parameters of these views may be used with activations of type T; a sentence otherwise.
template <class T, class First, class... Views>
consteval bool admits_parameter() {
  using P = detail::view_element_t<First>;
  static_assert(mixes_with<T, P>, "tigon: double parameters go only with double activations; convert one of them");
  static_assert((std::same_as<P, detail::view_element_t<Views>> && ... && true),
                "tigon: parameters of one call and their gradients have one element type");
  return true;
}

namespace detail {
/// An argument of any kind, a list in braces, too.
struct any_argument {
  any_argument() = default;
  template <class T>
  any_argument(const T&) {}
  any_argument(std::initializer_list<any_argument>) {}
};

/// The element type of an aggregate of views that is given ranges instead, for its deduction guide: a sentence. clang++
/// names this type before it looks whether the guide's constraints hold, so it refuses ranges and nothing else.
template <class... R>
struct ranges_in_place_of_views {
  static_assert(
      !(range_of_elements<R> || ...),
      "tigon: the matrices of a layer and of gradients are views; expected tigon::matrix_view(data, rows, cols), "
      "not a std::vector or another range in their place");
  using type = float;
};
}  // namespace detail

}  // namespace tigon

/// Behind the functions of this name: a sentence where none of them takes the arguments, in place of the compiler's
/// list of templates whose types it could not deduce, which -DTIGON_CANDIDATES brings back. The first one is for ranges
/// in the place of views, the second one for all else, such as outputs in braces, which name no element type. Its
/// parameters are conversions by constructors, worse than that of any argument by which a function deduces its types.
#ifndef TIGON_CANDIDATES
#define TIGON_EXPLAINS(function)                                                                                      \
  TIGON_EXPLAINS_RANGES(function)                                                                                     \
  template <class B = default_backend>                                                                                \
  void function(detail::any_argument, TIGON_THREE_ARGUMENTS, TIGON_THREE_ARGUMENTS, TIGON_THREE_ARGUMENTS, ...) {     \
    static_assert(std::is_void_v<B>,                                                                                  \
                  "tigon: " #function                                                                                 \
                  " does not take these arguments; expected those of its contract, matrices by their names, such as " \
                  "tigon::matrix_view(data, rows, cols): outputs in braces have no element type");                    \
  }
/// The first of the two alone, for a function whose views have a fixed element type: they may be in braces.
#define TIGON_EXPLAINS_RANGES(function)                                                                             \
  template <class B = default_backend, class... A>                                                                  \
    requires((detail::range_of_elements<A> || ...) &&                                                               \
             !requires(A&&... a) { tigon::function<B>(std::forward<A>(a)...); })                                    \
  void function(A&&...) {                                                                                           \
    static_assert(sizeof...(A) == 0,                                                                                \
                  "tigon: " #function                                                                               \
                  " does not take these arguments; expected views, such as tigon::"                                 \
                  "matrix_view(data, rows, cols) for a matrix, not a std::vector or another range in their place"); \
  }
#define TIGON_THREE_ARGUMENTS detail::any_argument = {}, detail::any_argument = {}, detail::any_argument = {}
#else
#define TIGON_EXPLAINS(function)
#define TIGON_EXPLAINS_RANGES(function)
#endif

#endif  // TIGON_BACKEND_OPERATOR_HPP

// A choice for single operators: TIGON_BACKEND_OF_<op>, the name of a backend, as TIGON_BACKEND is one for all. The
// default backend is then a mix (backend/mix.hpp), so that calls stay as they are and symbols name the choice.
//
//   -DTIGON_BACKEND_OF_softmax=xsimd -DTIGON_BACKEND_OF_gemm=generic
//
// The names are those of the registry, whose headers select.hpp brings, or of TIGON_BACKEND_HEADER. What is set to
// nothing is not set.
#ifndef TIGON_BACKEND_CHOICES_HPP
#define TIGON_BACKEND_CHOICES_HPP

#include <tigon/backend/operators.hpp>
#include <tigon/config.hpp>

#include <string_view>
#include <type_traits>

// The name that is set for an operator; one that begins with TIGON_BACKEND_OF_ where none is.
#define TIGON_FIRST_OF_(first, ...) first
#define TIGON_FIRST_OF(...) TIGON_FIRST_OF_(__VA_ARGS__)
#define TIGON_NAME_OR_(none, ...) TIGON_FIRST_OF(__VA_ARGS__ __VA_OPT__(, ) none)
#define TIGON_NAME_OR(none, ...) TIGON_NAME_OR_(none, __VA_ARGS__)
#define TIGON_CHOICE_OF(op) TIGON_NAME_OR(TIGON_BACKEND_OF_nothing, TIGON_BACKEND_OF_##op)

// For the preprocessor, while the line of a backend is read: whether an operator names it.
#define TIGON_IS_(line, name) TIGON_IS_##line##_##name
#define TIGON_IS(line, name) TIGON_IS_(line, name)
#define TIGON_OR_CHOSEN(op) | TIGON_IS(TIGON_LINE, TIGON_BACKEND_OF_##op)

namespace tigon {

namespace op {
#define TIGON_DECLARE_OP(op) struct op;
TIGON_OPERATORS(TIGON_DECLARE_OP)
#undef TIGON_DECLARE_OP
}  // namespace op

namespace backends {
inline namespace TIGON_ABI {
#define TIGON_DECLARE_CHOICE(op) struct TIGON_CHOICE_OF(op);
TIGON_OPERATORS(TIGON_DECLARE_CHOICE)
#undef TIGON_DECLARE_CHOICE
}  // namespace TIGON_ABI
}  // namespace backends

inline namespace TIGON_ABI {
template <class C, class... Ops>
struct from;
template <class B, class... From>
struct mix;
}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {

template <class Op, class C, bool Set>
struct choice;
struct no_choice;
constexpr bool is_choice(std::string_view name) { return !name.starts_with("TIGON_BACKEND_OF_"); }

#define TIGON_OR_CHOICE(op) || is_choice(TIGON_STRING(TIGON_CHOICE_OF(op)))
/// Whether any operator has one. Without `inline`: translation units of one program may be configured differently.
constexpr bool any_choice = false TIGON_OPERATORS(TIGON_OR_CHOICE);
#undef TIGON_OR_CHOICE

/// B, or the mix of it with what is chosen and is not B.
template <class B, class Mix, class... Choice>
struct chosen_backend;
template <class B, class Mix>
struct chosen_backend<B, Mix, no_choice> {
  using type = Mix;
};
template <class B, class Mix, class Op, class C, bool Set, class... More>
struct chosen_backend<B, Mix, choice<Op, C, Set>, More...> : chosen_backend<B, Mix, More...> {};
template <class B, class Op, class C, class... More>
  requires(!std::is_same_v<B, C>)
struct chosen_backend<B, B, choice<Op, C, true>, More...> : chosen_backend<B, mix<B, from<C, Op>>, More...> {};
template <class B, class... From, class Op, class C, class... More>
  requires(!std::is_same_v<B, C>)
struct chosen_backend<B, mix<B, From...>, choice<Op, C, true>, More...>
    : chosen_backend<B, mix<B, From..., from<C, Op>>, More...> {};

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#define TIGON_CHOICE(op_) \
  detail::choice<op::op_, backends::TIGON_CHOICE_OF(op_), detail::is_choice(TIGON_STRING(TIGON_CHOICE_OF(op_)))>,

#endif  // TIGON_BACKEND_CHOICES_HPP

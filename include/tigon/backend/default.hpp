// The default backend by name, or a mix of several (backend/choices.hpp). The types are only declared here; select.hpp,
// at the end of every operator header, brings their definitions and their kernels.
#ifndef TIGON_BACKEND_DEFAULT_HPP
#define TIGON_BACKEND_DEFAULT_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/backend/choices.hpp>
#include <tigon/backend/registry.hpp>

#include <string_view>
#include <type_traits>

// clang-format off
#define TIGON_BACKEND_PATH_(name) tigon/backends/name/backend.hpp
// clang-format on
#define TIGON_BACKEND_PATH(name) TIGON_STRING(TIGON_BACKEND_PATH_(name))

#if !defined(TIGON_BACKEND_HEADER) && !__has_include(TIGON_BACKEND_PATH(TIGON_BACKEND))
// clang-format off
static_assert(false, "tigon: no backend is called " TIGON_STRING(TIGON_BACKEND) " (TIGON_BACKEND, device "
                     TIGON_STRING(TIGON_DEVICE) "); there are "
#define TIGON_LINES_AS_TEXT
#include <tigon/backend/library.hpp>
#undef TIGON_LINES_AS_TEXT
                     "and one of your own with TIGON_BACKEND_HEADER (docs/backends.md)");
// clang-format on
// No further errors follow this sentence.
#undef TIGON_BACKEND
#define TIGON_BACKEND generic
#endif

namespace tigon {
namespace backends {
inline namespace TIGON_ABI {
struct TIGON_BACKEND;
}
}  // namespace backends

/// What a public function uses when it is given no backend.
using default_backend = std::conditional_t<detail::any_choice,
                                           detail::chosen_backend<backends::TIGON_BACKEND, backends::TIGON_BACKEND,
                                                                  TIGON_OPERATORS(TIGON_CHOICE) detail::no_choice>,
                                           std::type_identity<backends::TIGON_BACKEND>>::type;

/// Why it is that one, for logs. Without `inline`: translation units of one program may be configured differently.
#if TIGON_BACKEND_NAMED
#define TIGON_REASON "TIGON_BACKEND names it"
#else
#define TIGON_REASON "the first registered backend that is a default on device " TIGON_STRING(TIGON_DEVICE)
#endif
constexpr std::string_view default_backend_reason =
    detail::any_choice ? TIGON_REASON ", with TIGON_BACKEND_OF_<op> for single operators" : TIGON_REASON;
#undef TIGON_REASON

namespace detail {

/// At a public function, where the backend's definition is known: the default one has to run on TIGON_DEVICE.
template <class B>
consteval bool runs_where_wanted() {
  if constexpr (std::same_as<B, default_backend>)
    // clang-format off
    static_assert(B::info.devices.contains(TIGON_STRING(TIGON_DEVICE)),
                  "tigon: backend " TIGON_STRING(TIGON_BACKEND) " does not run on device " TIGON_STRING(TIGON_DEVICE)
                  " (TIGON_BACKEND, TIGON_DEVICE); there are "
#define TIGON_LINES_AS_TEXT
#include <tigon/backend/library.hpp>
#undef TIGON_LINES_AS_TEXT
                  "and one of your own with TIGON_BACKEND_HEADER (docs/backends.md)");
  // clang-format on
  return true;
}

}  // namespace detail
}  // namespace tigon

#endif  // TIGON_BACKEND_DEFAULT_HPP

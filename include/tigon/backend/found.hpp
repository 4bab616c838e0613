// Every backend of the library that this translation unit can use, with its header and as a list of types: for programs
// that go over all of them, as tools/tigon_info. Others include the header of theirs. Include it after headers of
// operators, because backends bring their kernels.
#ifndef TIGON_BACKEND_FOUND_HPP
#define TIGON_BACKEND_FOUND_HPP

#include <tigon/backend/lookup.hpp>
#include <tigon/backend/select.hpp>

#define TIGON_LINES_FOUND
#include <tigon/backend/library.hpp>
#undef TIGON_LINES_FOUND

namespace tigon {

// clang-format off
/// In the order of the registry.
using found_backends = decltype(backend_list<>{}
#define TIGON_LINES_AS_TYPES
#include <tigon/backend/library.hpp>
#undef TIGON_LINES_AS_TYPES
);
// clang-format on

}  // namespace tigon

#endif  // TIGON_BACKEND_FOUND_HPP

// What a backend's line becomes. Whoever includes backend/library.hpp defines one of these before it, and undefines it
// behind it:
//
//   TIGON_LINES_AS_ROWS      rows of the array library_backends
//   TIGON_LINES_AS_TEXT      "name (devices), " for the sentences of static assertions
//   TIGON_LINES_AS_TYPES     + backend_list<type> of those that are found
//   TIGON_LINES_FOUND        their headers
//   TIGON_LINES_CHOSEN       headers of those that are chosen for single operators (backend/choices.hpp)
//   TIGON_FIND_DEFAULT       TIGON_BACKEND, the first that is a default on TIGON_DEVICE and whose flags are there
// clang-format off
#if defined(TIGON_LINES_AS_ROWS)
{{TIGON_STRING(TIGON_LINE), {TIGON_LINE_DEVICES}, {TIGON_LINE_DEFAULTS}}, TIGON_LINE_FOUND, TIGON_LINE_NEEDS},
#elif defined(TIGON_LINES_AS_TEXT)
TIGON_STRING(TIGON_LINE) " (" TIGON_LINE_ON "), "
#elif defined(TIGON_LINES_AS_TYPES)
#if TIGON_LINE_FOUND
+ tigon::backend_list<tigon::backends::TIGON_LINE>{}
#endif
#elif defined(TIGON_LINES_FOUND)
#if TIGON_LINE_FOUND
#include TIGON_BACKEND_PATH(TIGON_LINE)
#endif
#elif defined(TIGON_LINES_CHOSEN)
#if 0 TIGON_OPERATORS(TIGON_OR_CHOSEN)
#include TIGON_BACKEND_PATH(TIGON_LINE)
#endif
#endif
// clang-format on

#undef TIGON_LINE
#undef TIGON_LINE_ON
#undef TIGON_LINE_DEVICES
#undef TIGON_LINE_DEFAULTS
#undef TIGON_LINE_FOUND
#undef TIGON_LINE_NEEDS

// Brings the default backend, and those that are chosen for single operators: traits, then kernels. Included last in
// every operator header, so that a vendor's override finds the operator's contract declared.
#ifndef TIGON_BACKEND_SELECT_HPP
#define TIGON_BACKEND_SELECT_HPP

#include <tigon/backend/default.hpp>
#include <tigon/backend/kernel.hpp>
#include <tigon/backend/lookup.hpp>
#include <tigon/backend/mix.hpp>
#include <tigon/backends/generic/backend.hpp>

// A backend of the library, unless TIGON_BACKEND_HEADER says where to find one that the library has never heard of.
#if defined(TIGON_BACKEND_HEADER)
#include TIGON_BACKEND_HEADER
#else
#include TIGON_BACKEND_PATH(TIGON_BACKEND)
#endif
#define TIGON_LINES_CHOSEN
#include <tigon/backend/library.hpp>
#undef TIGON_LINES_CHOSEN

#endif  // TIGON_BACKEND_SELECT_HPP

// Brings the default backend: its traits, then its kernels. Included last in every operator header, so that a vendor's
// override finds the operator's contract declared.
#ifndef TIGON_BACKEND_SELECT_HPP
#define TIGON_BACKEND_SELECT_HPP

#include <tigon/backend/default.hpp>
#include <tigon/backend/kernel.hpp>
#include <tigon/backends/generic/backend.hpp>

// A backend of the library, unless TIGON_BACKEND_HEADER says where to find one that the library has never heard of.
#if defined(TIGON_BACKEND_HEADER)
#include TIGON_BACKEND_HEADER
#else
#include TIGON_BACKEND_PATH(TIGON_BACKEND)
#endif

#endif  // TIGON_BACKEND_SELECT_HPP

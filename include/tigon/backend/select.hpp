// Brings the default backend: its traits, then its kernels. Included last in every operator header, so that a vendor's
// override finds the operator's contract declared.
#ifndef TIGON_BACKEND_SELECT_HPP
#define TIGON_BACKEND_SELECT_HPP

#include <tigon/backend/default.hpp>
#include <tigon/backend/kernel.hpp>

#define TIGON_BACKEND_PATH_(name) tigon/backends/name/backend.hpp
#define TIGON_BACKEND_PATH(name) TIGON_BACKEND_PATH_(name)
#ifndef TIGON_BACKEND_HEADER
#define TIGON_BACKEND_HEADER TIGON_STRING(TIGON_BACKEND_PATH(TIGON_BACKEND))
#endif

#include TIGON_BACKEND_HEADER

#endif  // TIGON_BACKEND_SELECT_HPP

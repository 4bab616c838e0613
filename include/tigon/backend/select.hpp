// Brings the default backend: its traits, then its kernels. Included last in every operator header, so that a vendor's
// override finds the operator's contract declared.
#ifndef TIGON_BACKEND_SELECT_HPP
#define TIGON_BACKEND_SELECT_HPP

#include <tigon/backend/default.hpp>
#include <tigon/backend/kernel.hpp>

// clang-format off: a path, not a quotient
#define TIGON_BACKEND_PATH_(name) tigon/backends/name/backend.hpp
// clang-format on
#define TIGON_BACKEND_PATH(name) TIGON_BACKEND_PATH_(name)
#ifndef TIGON_BACKEND_HEADER
#define TIGON_BACKEND_HEADER TIGON_STRING(TIGON_BACKEND_PATH(TIGON_BACKEND))
#endif

#if TIGON_DEVICE_NUMBER(TIGON_DEVICE) == 0
static_assert(false, "tigon: TIGON_DEVICE is " TIGON_STRING(TIGON_DEVICE) "; expected cpu or npu");
#elif defined(__has_include) && !__has_include(TIGON_BACKEND_HEADER)
static_assert(false, "tigon: no backend is called " TIGON_STRING(TIGON_BACKEND) " (TIGON_BACKEND, device " TIGON_STRING(
                         TIGON_DEVICE) "); there are " TIGON_REGISTERED);
#else
#include TIGON_BACKEND_HEADER
#endif

#endif  // TIGON_BACKEND_SELECT_HPP

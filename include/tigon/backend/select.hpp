// Brings the default backend: its traits, then its kernels. Included last in every operator header, so that a vendor's
// override finds the operator's contract declared.
#ifndef TIGON_BACKEND_SELECT_HPP
#define TIGON_BACKEND_SELECT_HPP

#include <tigon/backend/default.hpp>
#include <tigon/backend/kernel.hpp>

// A backend of the library, unless TIGON_BACKEND_HEADER says where to find one that the library has never heard of.
// clang-format off
#define TIGON_BACKEND_PATH_(name) tigon/backends/name/backend.hpp
// clang-format on
#define TIGON_BACKEND_PATH(name) TIGON_STRING(TIGON_BACKEND_PATH_(name))

#if TIGON_DEVICE_NUMBER(TIGON_DEVICE) == 0
static_assert(false, "tigon: TIGON_DEVICE is " TIGON_STRING(TIGON_DEVICE) "; expected cpu or npu");
#elif defined(TIGON_BACKEND_HEADER)
#include TIGON_BACKEND_HEADER
#elif __has_include(TIGON_BACKEND_PATH(TIGON_BACKEND))
#include TIGON_BACKEND_PATH(TIGON_BACKEND)
#else
static_assert(false, "tigon: no backend is called " TIGON_STRING(TIGON_BACKEND) " (TIGON_BACKEND, device " TIGON_STRING(
                         TIGON_DEVICE) "); there are " TIGON_REGISTERED);
#endif

#endif  // TIGON_BACKEND_SELECT_HPP

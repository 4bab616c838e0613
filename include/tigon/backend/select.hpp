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
#if TIGON_CHOICES
#if TIGON_CHOSEN & TIGON_BACKEND_BIT_eigen
#include TIGON_BACKEND_PATH(eigen)
#endif
#if TIGON_CHOSEN & TIGON_BACKEND_BIT_xsimd
#include TIGON_BACKEND_PATH(xsimd)
#endif
#if TIGON_CHOSEN & TIGON_BACKEND_BIT_highway
#include TIGON_BACKEND_PATH(highway)
#endif
#if TIGON_CHOSEN & TIGON_BACKEND_BIT_avx512_bf16
#include TIGON_BACKEND_PATH(avx512_bf16)
#endif
#if TIGON_CHOSEN & TIGON_BACKEND_BIT_amx
#include TIGON_BACKEND_PATH(amx)
#endif
#if TIGON_CHOSEN & TIGON_BACKEND_BIT_arm_bf16
#include TIGON_BACKEND_PATH(arm_bf16)
#endif
#if TIGON_CHOSEN & TIGON_BACKEND_BIT_onednn
#include TIGON_BACKEND_PATH(onednn)
#endif
#if TIGON_CHOSEN & TIGON_BACKEND_BIT_ascend
#include TIGON_BACKEND_PATH(ascend)
#endif
#endif

#endif  // TIGON_BACKEND_SELECT_HPP

// The backends that are chosen without being asked for, by device and in order of preference. Adding a vendor's
// backend to this list is one entry here; a backend in a repository of its own needs none (define TIGON_BACKEND).
#ifndef TIGON_BACKENDS_REGISTRY_HPP
#define TIGON_BACKENDS_REGISTRY_HPP

#include <tigon/config.hpp>

// What the library brings, for the sentence about a name that is not among them.
#define TIGON_REGISTERED "generic, eigen, xsimd, highway, avx512_bf16 (tigon/backends/registry.hpp)"

#if !defined(TIGON_BACKEND)
#if TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_cpu
// highway, else the canonical kernels on scalar lanes, said aloud because they are slow.
#if defined(__has_include) && __has_include(<hwy/highway.h>)
#define TIGON_BACKEND highway
#else
#pragma message("tigon: <hwy/highway.h> was not found, the backend is generic (scalar); install libhwy-dev")
#define TIGON_BACKEND generic
#endif
#else
#define TIGON_BACKEND none
#endif
#endif

#endif  // TIGON_BACKENDS_REGISTRY_HPP

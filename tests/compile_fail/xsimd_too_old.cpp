// errors: 2
// expect: tigon: xsimd 8.1 or newer is needed
// flags: -DTIGON_BACKEND=generic
#include <xsimd/xsimd.hpp>
#ifdef SHOULD_NOT_COMPILE
#undef XSIMD_VERSION_MAJOR
#define XSIMD_VERSION_MAJOR 7
#endif
#include <tigon/backends/xsimd/backend.hpp>

// A compiler that cannot compile the headers, as far as its macros say.
// flags: -DTIGON_BACKEND=generic
// reject flags: -D_MSC_VER=1940 -U__clang__
// errors: 2
// expect: tigon: MSVC cannot compile the headers; use g++ or clang++
#include <tigon/ops/rms_norm.hpp>

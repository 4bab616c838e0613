// Asked for and not installed: the package is named.
// errors: 2
// expect: tigon: backend xsimd needs <xsimd/xsimd.hpp>; install libxsimd-dev
// flags: -DTIGON_BACKEND=xsimd
// hide rejected: xsimd
#include <tigon/ops/rms_norm.hpp>

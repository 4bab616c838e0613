// Asked for and not installed: the package is named.
// errors: 2
// expect: tigon: backend highway needs <hwy/highway.h>; install libhwy-dev
// flags: -DTIGON_BACKEND=highway
// hide rejected: hwy
#include <tigon/ops/rms_norm.hpp>

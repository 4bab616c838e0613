// errors: 2
// expect: tigon: -ffast-math breaks NaN, infinities and compensated sums; remove it or define TIGON_ALLOW_FAST_MATH
// reject flags: -ffast-math
#include <tigon/ops/rms_norm.hpp>

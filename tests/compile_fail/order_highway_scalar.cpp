// Highway told to use less than the flags promise.
// expect: but Highway was configured for less; remove HWY_COMPILE_ONLY_SCALAR, HWY_COMPILE_ONLY_EMU128
// flags: -march=x86-64-v3 -DTIGON_BACKEND=highway
// reject flags: -DHWY_COMPILE_ONLY_SCALAR
#include <tigon/ops/rms_norm.hpp>

// -DTIGON_BACKEND alone defines it as 1. What cannot be a name meets the same sentence, before anything is declared.
// expect: tigon: no backend is called 1 (TIGON_BACKEND, device cpu); there are
// reject flags: -DTIGON_BACKEND
#include <tigon/ops/rms_norm.hpp>

// A backend whose instructions the flags do not promise.
// errors: 2
// expect: tigon: backend avx512_bf16 needs a CPU with AVX512_BF16; compile with -mavx512bf16 or -march=cooperlake
// flags: -DTIGON_BACKEND=avx512_bf16 -march=sapphirerapids
// reject flags: -mno-avx512bf16
#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::default_backend::info.name == "avx512_bf16");

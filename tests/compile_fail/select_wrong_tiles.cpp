// A backend whose tile instructions the flags do not promise.
// errors: 2
// expect: tigon: backend amx needs a CPU with AMX_TILE, AMX_BF16 and AMX_INT8; compile with -march=sapphirerapids
// flags: -DTIGON_BACKEND=amx -march=sapphirerapids
// reject flags: -mno-amx-bf16
#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::default_backend::info.name == "amx");

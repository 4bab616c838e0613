// What the registry says of backend avx512_bf16 (backend/library.hpp reads it, several times).
#define TIGON_LINE avx512_bf16
#define TIGON_LINE_ON "cpu"
#define TIGON_LINE_DEVICES device::cpu
#if TIGON_FLAGS_avx512_bf16
#define TIGON_LINE_DEFAULTS device::cpu
#define TIGON_LINE_FOUND TIGON_FOUND_hwy
#define TIGON_LINE_NEEDS "<hwy/highway.h>; install libhwy-dev"
#else
#define TIGON_LINE_DEFAULTS
#define TIGON_LINE_FOUND 0
#define TIGON_LINE_NEEDS "AVX512_BF16; compile with -march=cooperlake and later"
#endif
#if defined(TIGON_FIND_DEFAULT) && TIGON_FLAGS_avx512_bf16 && TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_cpu
#undef TIGON_FIND_DEFAULT
#define TIGON_BACKEND avx512_bf16
#endif
#define TIGON_IS_avx512_bf16_avx512_bf16 1
#include <tigon/backend/read_line.hpp>

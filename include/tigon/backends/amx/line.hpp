// What the registry says of backend amx (backend/library.hpp reads it, several times).
#define TIGON_LINE amx
#define TIGON_LINE_ON "cpu"
#define TIGON_LINE_DEVICES device::cpu
#if TIGON_FLAGS_amx
#define TIGON_LINE_DEFAULTS device::cpu
#define TIGON_LINE_FOUND TIGON_FOUND_hwy
#define TIGON_LINE_NEEDS "<hwy/highway.h>; install libhwy-dev"
#else
#define TIGON_LINE_DEFAULTS
#define TIGON_LINE_FOUND 0
#define TIGON_LINE_NEEDS "AMX_BF16 and AMX_INT8; compile with -march=sapphirerapids and later"
#endif
#if defined(TIGON_FIND_DEFAULT) && TIGON_FLAGS_amx && TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_cpu
#undef TIGON_FIND_DEFAULT
#define TIGON_BACKEND amx
#endif
#define TIGON_IS_amx_amx 1
#include <tigon/backend/read_line.hpp>

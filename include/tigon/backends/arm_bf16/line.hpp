// What the registry says of backend arm_bf16 (backend/library.hpp reads it, several times).
#define TIGON_LINE arm_bf16
#define TIGON_LINE_ON "cpu"
#define TIGON_LINE_DEVICES device::cpu
#if TIGON_FLAGS_arm_bf16
#define TIGON_LINE_DEFAULTS device::cpu
#define TIGON_LINE_FOUND TIGON_FOUND_hwy
#define TIGON_LINE_NEEDS "<hwy/highway.h>; install libhwy-dev"
#else
#define TIGON_LINE_DEFAULTS
#define TIGON_LINE_FOUND 0
#define TIGON_LINE_NEEDS "ARM's bf16; compile with -march=armv8.2-a+bf16 or armv8.6-a"
#endif
#if defined(TIGON_FIND_DEFAULT) && TIGON_FLAGS_arm_bf16 && TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_cpu
#undef TIGON_FIND_DEFAULT
#define TIGON_BACKEND arm_bf16
#endif
#define TIGON_IS_arm_bf16_arm_bf16 1
#include <tigon/backend/read_line.hpp>

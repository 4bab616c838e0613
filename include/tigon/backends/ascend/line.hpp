// What the registry says of backend ascend (backend/library.hpp reads it, several times).
#define TIGON_LINE ascend
#define TIGON_LINE_ON "npu"
#define TIGON_LINE_DEVICES device::npu
#define TIGON_LINE_DEFAULTS device::npu
#define TIGON_LINE_FOUND TIGON_FOUND_hwy
#define TIGON_LINE_NEEDS "<hwy/highway.h>; install libhwy-dev"
#if defined(TIGON_FIND_DEFAULT) && TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_npu
#undef TIGON_FIND_DEFAULT
#define TIGON_BACKEND ascend
#endif
#define TIGON_IS_ascend_ascend 1
#include <tigon/backend/read_line.hpp>

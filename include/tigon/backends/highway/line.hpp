// What the registry says of backend highway (backend/library.hpp reads it, several times).
#define TIGON_LINE highway
#define TIGON_LINE_ON "cpu"
#define TIGON_LINE_DEVICES device::cpu
#define TIGON_LINE_DEFAULTS device::cpu
#define TIGON_LINE_FOUND TIGON_FOUND_hwy
#define TIGON_LINE_NEEDS "<hwy/highway.h>; install libhwy-dev"
#if defined(TIGON_FIND_DEFAULT) && TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_cpu
#undef TIGON_FIND_DEFAULT
#define TIGON_BACKEND highway
#endif
#define TIGON_IS_highway_highway 1
#include <tigon/backend/read_line.hpp>

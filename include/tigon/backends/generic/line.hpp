// What the registry says of backend generic (backend/library.hpp reads it, several times).
#define TIGON_LINE generic
#define TIGON_LINE_ON "cpu and npu"
#define TIGON_LINE_DEVICES device::cpu, device::npu
#define TIGON_LINE_DEFAULTS
#define TIGON_LINE_FOUND 1
#define TIGON_LINE_NEEDS "nothing"
#define TIGON_IS_generic_generic 1
#include <tigon/backend/read_line.hpp>

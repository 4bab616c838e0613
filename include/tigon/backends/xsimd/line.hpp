// What the registry says of backend xsimd (backend/library.hpp reads it, several times).
#define TIGON_LINE xsimd
#define TIGON_LINE_ON "cpu"
#define TIGON_LINE_DEVICES device::cpu
#define TIGON_LINE_DEFAULTS
#define TIGON_LINE_FOUND TIGON_FOUND_xsimd
#define TIGON_LINE_NEEDS "<xsimd/xsimd.hpp>; install libxsimd-dev"
#define TIGON_IS_xsimd_xsimd 1
#include <tigon/backend/read_line.hpp>

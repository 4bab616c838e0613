// What the registry says of backend onednn (backend/library.hpp reads it, several times).
#define TIGON_LINE onednn
#define TIGON_LINE_ON "cpu"
#define TIGON_LINE_DEVICES device::cpu
#define TIGON_LINE_DEFAULTS
#define TIGON_LINE_FOUND TIGON_FOUND_dnnl
#define TIGON_LINE_NEEDS "<oneapi/dnnl/dnnl.hpp>; install libdnnl-dev"
#define TIGON_IS_onednn_onednn 1
#include <tigon/backend/read_line.hpp>

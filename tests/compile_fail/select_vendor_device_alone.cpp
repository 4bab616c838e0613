// A device that the library has no backend for needs one that is named with its header.
// errors: 1
// expect: tigon: TIGON_DEVICE is card; expected cpu, gpu or npu, or a device of a vendor's backend, which TIGON_BACKEND and TIGON_BACKEND_HEADER name
#ifdef SHOULD_NOT_COMPILE
#define TIGON_DEVICE card
#define TIGON_BACKEND generic
#else
#define TIGON_DEVICE card
#define TIGON_BACKEND mine
#define TIGON_BACKEND_HEADER "select_vendor_device.hpp"
#endif
#include <tigon/ops/rms_norm.hpp>

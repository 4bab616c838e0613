// Device code is nvcc's: another compiler knows nothing of a device.
// errors: 2
// expect: tigon: TIGON_DEVICE_CODE is for nvcc, which compiles functions for host and device
// reject flags: -DTIGON_DEVICE_CODE
#include <tigon/config.hpp>

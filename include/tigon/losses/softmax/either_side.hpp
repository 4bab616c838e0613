// A word for functions that threads of a device call as well as the host. On CPUs it says nothing, so that compilers decide
// there what they inline, as of any other function.
#ifndef TIGON_LOSSES_SOFTMAX_EITHER_SIDE_HPP
#define TIGON_LOSSES_SOFTMAX_EITHER_SIDE_HPP

#include <tigon/config.hpp>

#if defined(TIGON_DEVICE_CODE)
#define TIGON_EITHER_SIDE __host__ __device__
#else
#define TIGON_EITHER_SIDE
#endif

#endif  // TIGON_LOSSES_SOFTMAX_EITHER_SIDE_HPP

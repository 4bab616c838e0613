// errors: 1
// expect: tigon: TIGON_VECTOR_CORES is -2; expected a positive number, written as one number
#ifdef SHOULD_NOT_COMPILE
#define TIGON_VECTOR_CORES -2
#else
#define TIGON_VECTOR_CORES 2
#endif
#include <tigon/backend/capacity.hpp>

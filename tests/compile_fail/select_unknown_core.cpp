// errors: 1
// expect: tigon: TIGON_CORE is pentium; expected intel, zen4, zen5 or other
#ifdef SHOULD_NOT_COMPILE
#define TIGON_CORE pentium
#else
#define TIGON_CORE zen4
#endif
#include <tigon/backend/cores.hpp>

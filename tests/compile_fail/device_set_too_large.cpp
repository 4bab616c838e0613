// expect: tigon: a backend has eight devices at most
#include <tigon/backend/device.hpp>

constexpr tigon::device_set set{{"1"}, {"2"}, {"3"}, {"4"}, {"5"}, {"6"}, {"7"}, {"8"},
#ifdef SHOULD_NOT_COMPILE
                                {"9"}
#else
                                {"8"}
#endif
};

// errors: 2
// expect: tigon: C++20 is needed (-std=c++20)
// reject flags: -std=c++17
#include <tigon/ops/rms_norm.hpp>

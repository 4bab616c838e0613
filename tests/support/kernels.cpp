// The kernels of one operator for all programs that link them: TIGON_TESTS_OPERATOR is the name of its header,
// TIGON_TESTS_OPERATOR_HEADER its path.
#include TIGON_TESTS_OPERATOR_HEADER

#include "kernels.hpp"
#include "linked.hpp"
#include "shared_products.hpp"

#define TIGON_TESTS_COMPILE(header) TIGON_TESTS_KERNELS(, header)
TIGON_TESTS_COMPILE(TIGON_TESTS_OPERATOR)

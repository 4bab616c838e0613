#include "shared_products.hpp"

TIGON_TESTS_PRODUCTS()

// What the registry says of backend eigen (backend/library.hpp reads it, several times).
#define TIGON_LINE eigen
#define TIGON_LINE_ON "cpu"
#define TIGON_LINE_DEVICES device::cpu
#define TIGON_LINE_DEFAULTS
#define TIGON_LINE_FOUND TIGON_FOUND_eigen
#define TIGON_LINE_NEEDS "<Eigen/Core>; install libeigen3-dev"
#define TIGON_IS_eigen_eigen 1
#include <tigon/backend/read_line.hpp>

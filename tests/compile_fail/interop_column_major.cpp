// expect: tigon: a column-major matrix has no rows of adjacent elements; declare it Eigen::RowMajor, or view its transpose by transposed_from_eigen
#include <tigon/interop/eigen.hpp>

#ifdef SHOULD_NOT_COMPILE
using matrix = Eigen::MatrixXf;
#else
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
#endif
auto view(matrix& m) { return tigon::interop::matrix_from_eigen(m); }

// expect: tigon: the transpose of a row-major matrix has no rows of adjacent elements; view the matrix itself by matrix_from_eigen
#include <tigon/interop/eigen.hpp>

#ifndef SHOULD_NOT_COMPILE
using matrix = Eigen::MatrixXf;
#else
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
#endif
auto view(matrix& m) { return tigon::interop::transposed_from_eigen(m); }

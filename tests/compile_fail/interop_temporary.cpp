// expect: tigon: a temporary matrix is gone before its view is used; give it a name
#include <tigon/interop/eigen.hpp>

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
auto rows(matrix& m) {
#ifdef SHOULD_NOT_COMPILE
  return tigon::interop::matrix_from_eigen(matrix(m)).rows;
#else
  return tigon::interop::matrix_from_eigen(m).rows;
#endif
}

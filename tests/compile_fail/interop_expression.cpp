// expect: tigon: an expression has no memory; view the matrix that it is assigned to
#include <tigon/interop/eigen.hpp>

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
auto rows(matrix& m) {
#ifdef SHOULD_NOT_COMPILE
  return tigon::interop::matrix_from_eigen(m + m).rows;
#else
  return tigon::interop::matrix_from_eigen(m.topRows(1)).rows;
#endif
}

// expect: tigon: a matrix of Eigen is viewed as float, double, tigon::bfloat16, tigon::float16 or integers; Eigen::half and Eigen::bfloat16 are other types
#include <tigon/interop/eigen.hpp>

#ifdef SHOULD_NOT_COMPILE
using scalar = Eigen::bfloat16;
#else
using scalar = tigon::bfloat16;
#endif
auto view(Eigen::Map<Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> m) {
  return tigon::interop::matrix_from_eigen(m);
}

// expect: tigon: a vector has one column or one row by its type, as Eigen::VectorXf has
#include <tigon/interop/eigen.hpp>

#ifdef SHOULD_NOT_COMPILE
using vector = Eigen::MatrixXf;
#else
using vector = Eigen::VectorXf;
#endif
auto view(vector& v) { return tigon::interop::span_from_eigen(v); }

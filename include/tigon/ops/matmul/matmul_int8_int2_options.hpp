// The tag of matmul_int8_int2.
#ifndef TIGON_OPS_MATMUL_MATMUL_INT8_INT2_OPTIONS_HPP
#define TIGON_OPS_MATMUL_MATMUL_INT8_INT2_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct matmul_int8_int2 {
  static constexpr std::string_view name = "matmul_int8_int2";
};
}  // namespace op

}  // namespace tigon

#endif  // TIGON_OPS_MATMUL_MATMUL_INT8_INT2_OPTIONS_HPP

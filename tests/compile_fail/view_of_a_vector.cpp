// expect: tigon: matrix_view takes a pointer to the first element; expected tigon::matrix_view(v.data(), rows, cols), not the vector or another range v itself
// errors: 1
#include <tigon/core/views.hpp>
#include <vector>

tigon::matrix_view<const float> use(std::vector<float>& v) {
  const float array[6] = {};
  static_cast<void>(tigon::matrix_view(array, 2, 3));
  static_cast<void>(tigon::matrix_view<const float>({}, 0, 0));
#ifdef SHOULD_NOT_COMPILE
  return tigon::matrix_view(v, 2, 3);
#else
  return tigon::matrix_view(v.data(), 2, 3);
#endif
}

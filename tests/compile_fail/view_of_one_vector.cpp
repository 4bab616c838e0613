// expect: tigon: matrix_view takes a pointer to the first element; expected tigon::matrix_view(v.data(), rows, cols), not the vector or another range v itself
// errors: 1
#include <tigon/core/views.hpp>
#include <type_traits>
#include <vector>

using floats = std::vector<float>;
static_assert(!std::is_convertible_v<floats&, tigon::matrix_view<const float>>);

tigon::matrix_view<const float> use(floats& v) {
#ifdef SHOULD_NOT_COMPILE
  return tigon::matrix_view(v);
#else
  const tigon::matrix_view view(v.data(), v.size(), 1);
  const tigon::matrix_view copy(view);
  return copy;
#endif
}

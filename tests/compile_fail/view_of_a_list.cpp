// expect: tigon: matrix_view takes a pointer to the first element; expected tigon::matrix_view(v.data(), rows, cols), not a list of elements, which nobody owns
// errors: 1
#include <tigon/core/views.hpp>

float use() {
#ifdef SHOULD_NOT_COMPILE
  const tigon::matrix_view view({1.0f, 2.0f}, 1, 2);
#else
  const float v[] = {1.0f, 2.0f};
  const tigon::matrix_view view(v, 1, 2);
#endif
  return view.data[1];
}

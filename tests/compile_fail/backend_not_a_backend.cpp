// A type that is not a backend is told so in a sentence.
// expect: tigon: the first template argument is not a backend
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

#ifdef SHOULD_NOT_COMPILE
struct mine {};
#else
struct mine : tigon::backends::generic {
  using parent = tigon::backends::generic;
  using overrides = tigon::op_list<>;
};
#endif

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward<mine>(x, w, y, rstd);
}

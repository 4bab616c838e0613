// A backend whose info is a name and no more.
// expect: tigon: the first template argument is not a backend: it needs parent, info, engine
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct mine : tigon::backends::generic {
  using parent = tigon::backends::generic;
#ifdef SHOULD_NOT_COMPILE
  static constexpr std::string_view info = "mine";
#else
  static constexpr tigon::backend_info info{"mine", {tigon::device::cpu}};
#endif
};

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward<mine>(x, w, y, rstd);
}

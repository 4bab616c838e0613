// A backend that derives from nobody and states everything but its name and devices.
// expect: tigon: the first template argument is not a backend: it needs parent, info, engine
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct mine {
  using parent = tigon::backends::generic;
  using engine = parent::engine;
  using overrides = tigon::op_list<>;
#ifndef SHOULD_NOT_COMPILE
  static constexpr tigon::backend_info info{"mine", {tigon::device::cpu}};
#endif
  static constexpr tigon::row_tuning row{};
  static constexpr tigon::chunk_tuning chunk{};
  static constexpr tigon::attention_tuning attention{};
  static constexpr double error_scale = 1;
};

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward<mine>(x, w, y, rstd);
}

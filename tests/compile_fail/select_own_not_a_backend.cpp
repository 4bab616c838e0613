// A backend of the user's own, named by TIGON_BACKEND, that lacks what a backend states.
// expect: tigon: the first template argument is not a backend: it needs parent, info, engine
// flags: -DTIGON_BACKEND=mine '-DTIGON_BACKEND_HEADER="select_own_not_a_backend.hpp"'
#include <tigon/ops/rms_norm.hpp>

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward(x, w, y, rstd);
}

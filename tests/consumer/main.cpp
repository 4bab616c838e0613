// A user's program: the whole library, nothing but what its documentation promises.
#include <cmath>
#include <cstdio>
#include <tigon/tigon.hpp>
#include <vector>

int main() {
  std::vector<float> x{1, -2, 3, -4, 5, -6}, w{1, 1, 1}, y(6), rstd(2), p(6);
  const tigon::matrix_view rows(y.data(), 2, 3);
  tigon::rms_norm_forward(tigon::matrix_view(x.data(), 2, 3), w, rows, rstd, {.eps = 0});
  tigon::softmax_forward(rows, tigon::matrix_view(p.data(), 2, 3));
  const float sum = p[3] + p[4] + p[5];
  std::printf("tigon %s on %s: rstd %.4f, sum %.4f\n", TIGON_VERSION_STRING, tigon::default_backend::info.name.data(),
              static_cast<double>(rstd[0]), static_cast<double>(sum));
  return std::abs(rstd[0] - std::sqrt(3.0f / 14.0f)) < 1e-6f && std::abs(sum - 1) < 1e-6f ? 0 : 1;
}

// RMSNorm forward and backward on the default backend: the program of docs/first_steps.md.
#include <cstdio>
#include <tigon/ops/rms_norm.hpp>
#include <vector>

int main() {
  constexpr std::size_t tokens = 4, hidden = 1000;
  std::vector<float> x(tokens * hidden, 0.5f), w(hidden, 2.0f), dy(tokens * hidden, 1.0f);
  std::vector<float> y(x.size()), dx(x.size()), dw(hidden), rstd(tokens);
  const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), tokens, hidden); };

  tigon::rms_norm_forward(rows(x), w, rows(y), rstd);
  tigon::rms_norm_backward(rows(dy), rows(x), w, rstd, rows(dx), dw);

  std::printf("rstd %.3f  y %.3f  dx %.3f  dw %.3f\n", rstd[0], y[0], dx[0], dw[0]);
}

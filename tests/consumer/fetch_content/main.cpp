// A user's training step: rms_norm and cross_entropy, forward and backward. docs/install.md has the project around it.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <vector>

int main() {
  constexpr std::size_t tokens = 4, vocab = 100;
  std::vector<float> x(tokens * vocab), w(vocab, 1.0f), logits(x.size()), rstd(tokens), loss(1), dlogits(x.size()),
      dx(x.size()), dw(vocab);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  const std::vector<std::int64_t> target{6, 3, 0, 4};
  const auto rows = [](std::vector<float>& v) { return tigon::matrix_view(v.data(), tokens, vocab); };

  float before = 0;
  for (int step = 0; step < 2; ++step) {
    tigon::rms_norm_forward(rows(x), w, rows(logits), rstd);
    tigon::cross_entropy_forward(rows(logits), target, loss, rows(dlogits));
    tigon::rms_norm_backward(rows(dlogits), rows(x), w, rstd, rows(dx), dw);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= dw[i];
    if (step == 0) before = loss[0];
  }
  std::printf("loss %.4f, then %.4f\n", static_cast<double>(before), static_cast<double>(loss[0]));
  return std::isfinite(loss[0]) && loss[0] < before ? 0 : 1;
}

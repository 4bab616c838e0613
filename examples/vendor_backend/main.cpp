// A program of acme's customer. It names no backend: linking acme::acme has made acme the default.
#include <acme/clip.hpp>
#include <cstdio>
#include <string>
#include <tigon/tigon.hpp>
#include <vector>

namespace {

template <class B>
void print_coverage() {
  const auto print = [](const auto& rows) {
    for (const auto& [op, provider] : rows)
      std::printf("  %-27s %s\n", std::string(op).c_str(), std::string(provider).c_str());
  };
  print(tigon::coverage<B>(tigon::all_ops{}));
  print(tigon::coverage<B>(tigon::op_list<acme::clip>{}));
}

}  // namespace

int main() {
  using B = tigon::default_backend;
  static_assert(tigon::audit<B>(tigon::all_ops{}));

  std::vector<float> x{1, 2, 3, 4}, y(4), p(4);
  acme::clip_forward(tigon::matrix_view(x.data(), 1, 4), tigon::matrix_view(y.data(), 1, 4), 2.5);
  tigon::softmax_forward(tigon::matrix_view(y.data(), 1, 4), tigon::matrix_view(p.data(), 1, 4));

  std::printf("backend %s\n", std::string(B::info.name).c_str());
  print_coverage<B>();
  std::printf("clip %g %g %g %g\nsoftmax %.3f %.3f %.3f %.3f\n", y[0], y[1], y[2], y[3], p[0], p[1], p[2], p[3]);
}

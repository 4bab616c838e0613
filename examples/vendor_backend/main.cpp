// A program of acme's customer. It names no backend: linking acme::acme has made acme the default.
#include <acme/clip.hpp>
#include <cstdio>
#include <string>
#include <tigon/tigon.hpp>
#include <vector>

namespace {

/// What this program could use, acme's own first.
void print_devices() {
  for (const tigon::registered_backend& line : tigon::registered_backends) {
    std::printf("%s:", std::string(line.info.name).c_str());
    for (const tigon::device& d : line.info.devices)
      std::printf(" %s%s", std::string(d.name).c_str(), d.present() ? "" : " (not there)");
    std::puts(line.found ? "" : " (not in this build)");
  }
}

template <class B>
void print_coverage() {
  const auto print = [](const auto& rows) {
    for (const auto& [op, provider] : rows)
      std::printf("  %-27s %s\n", std::string(op).c_str(), std::string(provider).c_str());
  };
  print(tigon::coverage<B>(tigon::all_ops{}));
  print(tigon::coverage<B>(tigon::op_list<acme::clip>{}));
  const auto balanced = tigon::coverage<acme::balanced>(tigon::op_list<tigon::op::softmax, acme::clip>{});
  std::printf("%s: softmax by %s, clip by %s\n", std::string(acme::balanced::info.name).c_str(),
              std::string(balanced[0].provider).c_str(), std::string(balanced[1].provider).c_str());
}

}  // namespace

int main() try {
  using B = tigon::default_backend;
  static_assert(tigon::audit<B>(tigon::all_ops{}));

  std::vector<float> x{1, 2, 3, 4}, y(4), p(4);
  acme::clip_forward(tigon::matrix_view(x.data(), 1, 4), tigon::matrix_view(y.data(), 1, 4), 2.5);
  tigon::softmax_forward(tigon::matrix_view(y.data(), 1, 4), tigon::matrix_view(p.data(), 1, 4));

  print_devices();
  std::printf("backend %s\n", std::string(B::info.name).c_str());
  print_coverage<B>();
  std::printf("clip %g %g %g %g\nsoftmax %.3f %.3f %.3f %.3f\n", y[0], y[1], y[2], y[3], p[0], p[1], p[2], p[3]);
} catch (const tigon::error& e) {  // as of a card that is too small
  std::puts(e.what());
  return 1;
}

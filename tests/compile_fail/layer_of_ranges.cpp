// expect: tigon: the matrices of a layer and of gradients are views; expected tigon::matrix_view(data, rows, cols), not a std::vector or another range in their place
// flags: -DTIGON_BACKEND=generic
#include <tigon/losses/linear/linear_layer.hpp>
#include <vector>

void use(std::vector<float>& x, std::vector<float>& w) {
#ifdef SHOULD_NOT_COMPILE
  const tigon::linear_layer layer{x, w};
#else
  const tigon::linear_layer layer{tigon::matrix_view(x.data(), 1, x.size()), tigon::matrix_view(w.data(), 1, w.size())};
#endif
  static_cast<void>(layer);
}

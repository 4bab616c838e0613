#include <tigon/ops/embedding.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct embedding {
  using op = tigon::op::embedding;

  template <class B, class T>
  static results run(const problem& p) {
    const matrix<T> weight(p.input("weight")), dy(p.upstream("y"));
    const auto ids = vector_of<std::int64_t>(p.input("indices"));
    matrix<T> y(dy.rows, dy.cols), dweight(weight.rows, weight.cols);
    tigon::embedding_forward<B>(weight, ids, y.view());
    tigon::embedding_backward<B>(dy, ids, dweight.view());
    return {{"y", values_of(y)}, {"d_weight", values_of(dweight)}};
  }
};

}  // namespace golden::adapters

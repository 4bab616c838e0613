#ifndef EXAMPLE_SUPPORT_PRODUCTS_HPP
#define EXAMPLE_SUPPORT_PRODUCTS_HPP

#include <tigon/core/executor.hpp>
#include <tigon/gemm/gemm.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace example {

template <class T>
using matrix = tigon::matrix_view<T>;
template <class T>
using vector = tigon::vector_view<T>;

/// y = x w^T: a projection, with w as [out, in].
template <class T>
void product_xwt(tigon::in_matrix<T> x, tigon::in_matrix<T> w, matrix<T> y, tigon::context& ctx) {
  tigon::gemm(x, w, y, {.b = tigon::transpose::yes}, ctx);
}

/// dx = dy w: back through the projection.
template <class T>
void product_xw(tigon::in_matrix<T> dy, tigon::in_matrix<T> w, matrix<T> dx, tigon::context& ctx) {
  tigon::gemm(dy, w, dx, {}, ctx);
}

/// dw = dy^T x: the projection's own gradient, kept in f32 also where dy and x have 16 bits.
template <class T, class Out>
void product_xty(tigon::in_matrix<T> dy, tigon::in_matrix<T> x, matrix<Out> dw, tigon::context& ctx,
                 tigon::gradient mode = tigon::gradient::overwrite) {
  tigon::gemm(dy, x, dw, {.beta = mode == tigon::gradient::accumulate ? 1.0 : 0.0, .a = tigon::transpose::yes}, ctx);
}

/// The first of several summands overwrites.
constexpr tigon::gradient accumulate_after(std::size_t first) {
  return first == 0 ? tigon::gradient::overwrite : tigon::gradient::accumulate;
}

/// Many small products, each on one worker: a serial context for every worker.
class each_alone {
 public:
  explicit each_alone(tigon::context& ctx) : ctx_(ctx) {
    for (std::size_t i = 0; i < ctx.executor().workers(); ++i) own_.push_back(std::make_unique<own>());
  }
  /// fn(i, context) for every i in [0, count).
  template <class F>
  void run(std::size_t count, const F& fn) {
    ctx_.executor().run(count, [&](std::size_t task, std::size_t worker) { fn(task, own_[worker]->ctx); });
  }
  std::size_t peak_bytes() const {
    std::size_t sum = 0;
    for (const auto& one : own_) sum += one->workspace.high_water();
    return sum;
  }

 private:
  struct own {
    tigon::workspace workspace;
    tigon::context ctx{tigon::serial(), workspace};
  };
  tigon::context& ctx_;
  std::vector<std::unique_ptr<own>> own_;
};

}  // namespace example
#endif

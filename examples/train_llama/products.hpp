#ifndef EXAMPLE_TRAIN_LLAMA_PRODUCTS_HPP
#define EXAMPLE_TRAIN_LLAMA_PRODUCTS_HPP
// TEMPORARY naive
#include <tigon/ops/contract.hpp>
#include <tigon/backend/select.hpp>
#include <tigon/core/views.hpp>
#include <span>
#include <memory>
#include <vector>

namespace example {

template <class T>
using matrix = tigon::matrix_view<T>;
template <class T>
using vector = tigon::vector_view<T>;

constexpr tigon::gradient accumulate_after(std::size_t first) {
  return first == 0 ? tigon::gradient::overwrite : tigon::gradient::accumulate;
}

template <class T>
void product_xwt(tigon::in_matrix<T> x, tigon::in_matrix<T> w, matrix<T> y, tigon::context& ctx) {
  ctx.executor().run(x.rows, [&](std::size_t i, std::size_t){ for (std::size_t j=0;j<w.rows;++j){ float s=0; for(std::size_t k=0;k<x.cols;++k) s+=float(x.row(i)[k])*float(w.row(j)[k]); y.row(i)[j]=T(s);} });
}
template <class T>
void product_xw(tigon::in_matrix<T> x, tigon::in_matrix<T> w, matrix<T> y, tigon::context& ctx) {
  ctx.executor().run(x.rows, [&](std::size_t i, std::size_t){ std::vector<float> s(w.cols); for(std::size_t k=0;k<x.cols;++k) for (std::size_t j=0;j<w.cols;++j) s[j]+=float(x.row(i)[k])*float(w.row(k)[j]); for (std::size_t j=0;j<w.cols;++j) y.row(i)[j]=T(s[j]); });
}
template <class T, class Out>
void product_xty(tigon::in_matrix<T> x, tigon::in_matrix<T> y, matrix<Out> out, tigon::context& ctx, tigon::gradient mode = tigon::gradient::overwrite) {
  ctx.executor().run(x.cols, [&](std::size_t i, std::size_t){ std::vector<float> s(y.cols); for(std::size_t k=0;k<x.rows;++k) for (std::size_t j=0;j<y.cols;++j) s[j]+=float(x.row(k)[i])*float(y.row(k)[j]); for (std::size_t j=0;j<y.cols;++j) out.row(i)[j]=Out(s[j]+(mode==tigon::gradient::accumulate?float(out.row(i)[j]):0)); });
}
template <class T>
void embed(std::span<const std::int32_t> ids, matrix<const float> table, matrix<T> y, tigon::context&) {
  for (std::size_t i=0;i<ids.size();++i) for (std::size_t j=0;j<y.cols;++j) y.row(i)[j]=T(table.row(ids[i])[j]);
}
template <class T>
void embed_backward(std::span<const std::int32_t> ids, matrix<T> dy, matrix<float> dtable, tigon::context&) {
  std::fill(dtable.data, dtable.data+dtable.rows*dtable.cols, 0.f);
  for (std::size_t i=0;i<ids.size();++i) for (std::size_t j=0;j<dy.cols;++j) dtable.row(ids[i])[j]+=float(dy.row(i)[j]);
}

/// Many small products, each on a thread of its own: serial contexts, one for each worker.
class each_alone {
 public:
  explicit each_alone(tigon::context& ctx) : ctx_(ctx) {
    for (std::size_t i = 0; i < ctx.executor().workers(); ++i) own_.push_back(std::make_unique<own>());
  }
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

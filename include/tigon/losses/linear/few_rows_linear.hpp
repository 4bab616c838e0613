// A linear layer in front of a loss of few rows. The memory of its weight takes the time of such a call, so everything
// after it is computed in f64, and each result rounded once.
#ifndef TIGON_LOSSES_LINEAR_FEW_ROWS_LINEAR_HPP
#define TIGON_LOSSES_LINEAR_FEW_ROWS_LINEAR_HPP

#include <tigon/backend/registry.hpp>
#include <tigon/gemm/few_rows.hpp>
#include <tigon/losses/linear/kept_linear.hpp>

#include <algorithm>
#include <array>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Most rows of a call that is computed so: those of the call, whichever count, because the bits of a row must not
/// depend on others.
inline constexpr std::size_t few_rows = 8;

/// Whether the products of B are by one of the library's backends: a vendor's are called for any number of rows.
template <class B>
inline constexpr bool has_products_of_library = std::ranges::any_of(
    library_backends, [](const registered_backend& of) { return of.info.name == provider_t<op::gemm, B>::info.name; });

/// Whether a call of few rows of a layer T is: one of f32, on a CPU, where no kernel of Ops is a backend's own.
template <class B, layer_types T, class... Ops>
inline constexpr bool few_rows_in_f64 =
    has_products_of_library<B> && std::same_as<input_t<T>, float> && std::same_as<weight_t<T>, float> &&
    std::same_as<weight_gradient_t<T>, float> && B::info.devices.contains(device::cpu) &&
    (runs_kernel_of<Ops, B, backends::generic> && ...);

template <layer_types T>
linear_layer<in_f64<T>> layer_in_f64(const linear_layer<T>& layer) {
  return {layer.x, layer.w, layer.bias, {}};
}
template <layer_types T>
linear_gradients<in_f64<T>> gradients_in_f64(const linear_gradients<T>& out) {
  return {out.dx, out.dw, out.dbias, out.mode};
}
/// The same numbers in f64.
template <class T>
std::span<const double> numbers_in_f64(workspace::frame& frame, std::span<const T> numbers) {
  if (numbers.data() == nullptr) return {};
  double* wide = frame.template take<double>(numbers.size());
  std::copy(numbers.begin(), numbers.end(), wide);
  return {wide, numbers.size()};
}

/// One chunk, with a layer that takes and makes rows where they are.
template <class B, layer_types T>
class kept_linear<B, in_f64<T>> {
 public:
  using A = double;
  using X = input_t<T>;
  using products = few_rows_products<row_backend<B>>;

  kept_linear(workspace::frame& frame, linear_layer<in_f64<T>> head, linear_gradients<in_f64<T>> out, chosen_rows kept,
              kept_chunk, matrix_view<X>, context& ctx)
      : head_(head),
        out_(out),
        kept_(kept),
        ctx_(ctx),
        x_(frame.template take<A>(products::padded_rows(kept.n) * products::padded_cols(head.x.cols))) {
    if (out.dx.data != nullptr) shares_ = frame.template take<A>(products::shares_of(kept.n, head.x.cols, head.w.rows));
  }
  /// Bytes that it takes of up to so many rows.
  static constexpr std::size_t bytes(layer_extents of) {
    return workspace::bytes_for<A>(products::padded_rows(of.rows), products::padded_cols(of.hidden)) +
           workspace::bytes_for<A>(products::shares_of(of.rows, of.hidden, of.vocab));
  }

  void logits(std::size_t, matrix_view<A> z) const {
    const auto x = products::widen(x_, kept_.n, head_.x.cols, [&](std::size_t k) { return head_.x.row(row(k)); });
    products::logits(x, head_.w, head_.bias.data(), z, ctx_);
  }

  /// A row of zeros in d contributes nothing and has a dx of zeros, whatever x and w hold.
  void backward(std::size_t, matrix_view<A> d) {
    std::array<std::size_t, few_rows> rows;
    std::array<const A*, few_rows> of;
    std::array<X*, few_rows> dx;
    std::size_t n = 0;
    for (std::size_t k = 0; k < d.rows; ++k) {
      if (std::all_of(d.row(k), d.row(k) + d.cols, [](A v) { return v == A(0); })) continue;
      rows[n] = row(k), of[n] = d.row(k);
      if (out_.dx.data != nullptr) dx[n] = out_.dx.row(rows[n]);
      ++n;
    }
    const auto x = products::widen(x_, n, head_.x.cols, [&](std::size_t k) { return head_.x.row(rows[k]); });
    const bool add = out_.mode == gradient::accumulate;
    products::backward(of.data(), n, x, head_.w,
                       typename products::template gradients<X, weight_gradient_t<T>>{
                           out_.dx.data == nullptr ? nullptr : dx.data(), out_.dw, out_.dbias.data(), add},
                       shares_, ctx_);
    clear_other_rows<B>(out_.dx, chosen_rows(rows.data(), n), ctx_);
    done_ = true;
  }

  /// Without rows there was no call of backward.
  void finish() {
    if (!done_ && out_.any()) backward(0, matrix_view<A>(nullptr, 0, head_.w.rows));
  }

 private:
  std::size_t row(std::size_t k) const { return kept_.all() ? k : kept_.row[k]; }

  linear_layer<in_f64<T>> head_;
  linear_gradients<in_f64<T>> out_;
  chosen_rows kept_;
  context& ctx_;
  A *x_, *shares_ = nullptr;
  bool done_ = false;
};

/// Bytes that a loss of few rows takes of one layer: its logits, what kernels of rows take, and kept_linear.
template <class B, layer_types T>
std::size_t few_rows_workspace(layer_extents of, const context& ctx) {
  return workspace::bytes_for<double>(of.rows, of.vocab) + simd::scratch_workspace<B, double>(of.vocab, 1, ctx) +
         kept_linear<B, in_f64<T>>::bytes(of);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_LINEAR_FEW_ROWS_LINEAR_HPP

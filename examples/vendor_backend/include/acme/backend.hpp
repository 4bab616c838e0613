// Acme's backend, in acme's own repository: a child of highway for a core with little memory near it and a fast exp.
// tigon has never heard of it, nor of acme's card; what links acme::acme has it as the default on cpu (CMakeLists.txt).
#ifndef ACME_BACKEND_HPP
#define ACME_BACKEND_HPP

#include <acme/card.hpp>
#include <acme/clip.hpp>
#include <acme/tile_rows.hpp>
#include <tigon/backend/mix.hpp>
#include <tigon/backends/highway/backend.hpp>
#include <tigon/ops/softmax.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {

/// What is not stated is highway's: the traits because they are inherited, the kernels because `parent` says so.
struct acme : highway {
  using self = acme;
  using parent = highway;
  static constexpr backend_info info{"acme", {device::cpu, ::acme::card}, {device::cpu, ::acme::card}};
  using overrides = op_list<op::softmax, ::acme::clip, ::acme::clip_norm>;
  static constexpr row_tuning row{.unroll = 2};
  static constexpr std::size_t tile_capacity_bits = 16 * 8192;  ///< what every chip of acme's has
  static std::size_t query_tile_capacity_bits() { return ::acme::card_memory_bits(); }
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

/// Without a scratch row: the exponentials are computed twice instead of being kept. Backward is the generic one.
template <>
struct tigon::kernel<tigon::op::softmax, tigon::backends::acme>
    : tigon::kernel<tigon::op::softmax, tigon::backends::generic> {
  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const A scale = static_cast<A>(opt.scale);
    for_rows<B, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
      const A m = row.max(tigon::reads(x), [](auto v) { return v; });
      const A r = A(1) / row.sum(tigon::reads(x), [=](auto v) { return exp_nonpositive((v - m) * scale); });
      row.map(tigon::reads(x), tigon::writes(y), [=](auto v) { return exp_nonpositive((v - m) * scale) * r; });
    });
  }
};

/// The kernels of every backend; acme's driver runs their programs.
template <>
struct tigon::kernel<acme::clip, tigon::backends::acme> {
  using anywhere = kernel<::acme::clip, backends::generic>;
  template <class>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, double limit, context& ctx) {
    anywhere::forward<::acme::on_tiles<B>, T>(x, y, limit, ctx);
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, matrix_view<T> dx, double limit, context& ctx) {
    anywhere::backward<::acme::on_tiles<B>, T>(dy, x, dx, limit, ctx);
  }
};
template <>
struct tigon::kernel<acme::clip_norm, tigon::backends::acme> {
  using forward_only = void;

  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, double limit, context& ctx) {
    kernel<::acme::clip_norm, backends::generic>::forward<::acme::on_tiles<B>, T>(x, y, limit, ctx);
  }
};

namespace acme {

/// For long rows, whose exponentials acme would compute twice: softmax by its parent, all else by acme.
using balanced = tigon::mix<tigon::backends::acme, tigon::from<tigon::backends::highway, tigon::op::softmax>>;

}  // namespace acme

#endif  // ACME_BACKEND_HPP

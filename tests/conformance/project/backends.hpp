// Two backends of a stranger, in a namespace of his own: one kernel with an error of sixteen units in the last place,
// which one of them owns up to.
#ifndef STRANGER_BACKENDS_HPP
#define STRANGER_BACKENDS_HPP

#include <tigon/backends/generic/backend.hpp>
#include <tigon/ops/softmax.hpp>

namespace stranger {
inline namespace TIGON_ABI {

struct coarse : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"coarse", {tigon::device::cpu}};
  using overrides = tigon::op_list<tigon::op::softmax>;
  static constexpr double error_scale = 16;
};

struct wrong : coarse {
  using parent = coarse;
  static constexpr tigon::backend_info info{"wrong", {tigon::device::cpu}};
  using overrides = tigon::op_list<>;
  static constexpr double error_scale = 1;
};

}  // namespace TIGON_ABI
}  // namespace stranger

template <>
struct tigon::kernel<tigon::op::softmax, stranger::coarse>
    : tigon::kernel<tigon::op::softmax, tigon::backends::generic> {
  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const A scale = static_cast<A>(opt.scale), off = 1 + 16 * std::numeric_limits<A>::epsilon();
    for_rows<B, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
      const A m = row.max(tigon::reads(x), [](auto v) { return v; });
      const A r = off / row.sum(tigon::reads(x), [=](auto v) { return exp_nonpositive((v - m) * scale); });
      row.map(tigon::reads(x), tigon::writes(y), [=](auto v) { return exp_nonpositive((v - m) * scale) * r; });
    });
  }
};

#endif  // STRANGER_BACKENDS_HPP

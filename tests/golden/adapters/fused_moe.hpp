#include <tigon/ops/moe.hpp>

#include "../tensors.hpp"

namespace golden::adapters {

struct fused_moe {
  using op = tigon::op::moe;
  static constexpr bool products = true;

  template <class B, class T>
  static results run(const problem& p) {
    const auto experts = static_cast<std::size_t>(p.opt.number("experts"));
    const matrix<T> x(p.input("x")), dy(p.upstream("y"));
    matrix<T> gate_up(p.input("gate_up")), down(p.input("down")), weights(p.input("top_k_weights"));
    auto index = vector_of<std::int32_t>(p.input("top_k_index"));
    const tigon::moe_choices choices{tigon::matrix_view(index.data(), weights.rows, weights.cols), weights.view()};
    const tigon::moe_weights w{gate_up.view(), down.view(), experts};
    matrix<T> y(x.rows, x.cols), dx(x.rows, x.cols), dgate_up(gate_up.rows, gate_up.cols), ddown(down.rows, down.cols),
        dweights(weights.rows, weights.cols), memory(index.size(), 2 * down.cols);
    tigon::moe_saved<T> saved{memory.view()};
    tigon::moe_forward<B>(x, choices, w, y.view(), saved);
    tigon::moe_backward<B>(dy, x, choices, w, saved,
                           tigon::moe_gradients{dx.view(), dgate_up.view(), ddown.view(), dweights.view()});
    return {{"y", values_of(y)},
            {"d_x", values_of(dx)},
            {"d_gate_up", values_of(dgate_up)},
            {"d_down", values_of(ddown)},
            {"d_top_k_weights", values_of(dweights)}};
  }
};

}  // namespace golden::adapters

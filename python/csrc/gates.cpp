// Gated activations and rotary position embedding.
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/swiglu.hpp>

#include <optional>

#include "call.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

matrix rows_from(matrix m, std::size_t first, std::size_t count) {
  const std::size_t bytes = m.of == type::f64 ? 8 : m.of == type::f32 ? 4 : 2;
  if (m.data != nullptr) m.data = static_cast<char*>(m.data) + first * m.stride * bytes;
  m.rows = count;
  return m;
}

/// backward(dy, gate, up, dgate, dup, ctx) of views. Where one gradient is not wanted, what the door makes of it goes
/// to a few rows that stay in the cache.
template <class T, class Backward>
void by_wanted(const host& h, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup, Backward backward) {
  const bool both = dgate.data != nullptr && dup.data != nullptr;
  constexpr std::size_t elements = std::size_t{1} << 16;
  // On CUDA there is no such cache, and a launch for a few rows costs more than memory.
  const std::size_t part = both || TIGON_TORCH_CUDA
                               ? std::max<std::size_t>(dy.rows, 1)
                               : std::max<std::size_t>(h.workers * elements / std::max<std::size_t>(dy.cols, 1), 1);
  const std::size_t block = std::min(part, dy.rows);
  std::optional<matrix> other;
  if (!both && block != 0)
    other = matrix{h.scratch(h.memory, block * dy.cols * sizeof(T)), dy.of, block, dy.cols, dy.cols};
  run(h, [&](tigon::context& ctx) {
    for (std::size_t i = 0; i == 0 || i < dy.rows; i += part) {
      const std::size_t n = std::min(part, dy.rows - i);
      const auto rows = [&](matrix m) { return rows_from(m, i, n); };
      const auto to = [&](matrix m) {
        return view<T>(m.data != nullptr || !other ? rows(m) : rows_from(*other, 0, n));
      };
      backward(view<const T>(rows(dy)), view<const T>(rows(gate)), view<const T>(rows(up)), to(dgate), to(dup), ctx);
    }
  });
}

tigon::swiglu_options options_of(const swiglu_options& o) {
  tigon::swiglu_options opt;
  opt.gate_multiplier = o.gate_multiplier, opt.down_multiplier = o.down_multiplier;
  opt.limit = o.limit, opt.slope = o.slope, opt.up_offset = o.up_offset;
  return opt;
}

void swiglu(const host& h, matrix gate, matrix up, matrix y, const swiglu_options& o) {
  with_type<tigon::op::swiglu>("swiglu", gate.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::swiglu_forward(view<const T>(gate), view<const T>(up), view<T>(y), options_of(o), ctx);
    });
  });
}

void swiglu_backward(const host& h, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup,
                     const swiglu_options& o) {
  with_type<tigon::op::swiglu>("swiglu_backward", gate.of, [&]<class T>() {
    by_wanted<T>(h, dy, gate, up, dgate, dup, [&](auto d, auto g, auto u, auto dg, auto du, tigon::context& ctx) {
      tigon::swiglu_backward(d, g, u, dg, du, options_of(o), ctx);
    });
  });
}

tigon::geglu_options geglu_form(bool tanh) { return {.form = tanh ? tigon::gelu_form::tanh : tigon::gelu_form::erf}; }

void geglu(const host& h, matrix gate, matrix up, matrix y, bool tanh) {
  with_type<tigon::op::geglu>("geglu", gate.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::geglu_forward(view<const T>(gate), view<const T>(up), view<T>(y), geglu_form(tanh), ctx);
    });
  });
}

void geglu_backward(const host& h, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup, bool tanh) {
  with_type<tigon::op::geglu>("geglu_backward", gate.of, [&]<class T>() {
    by_wanted<T>(h, dy, gate, up, dgate, dup, [&](auto d, auto g, auto u, auto dg, auto du, tigon::context& ctx) {
      tigon::geglu_backward(d, g, u, dg, du, geglu_form(tanh), ctx);
    });
  });
}

void rope(const host& h, heads q, heads k, matrix cos, matrix sin, heads q_out, heads k_out, rope_options o,
          bool backward) {
  with_type<tigon::op::rope>("rope", q.of, [&]<class T>() {
    const tigon::rope_options opt{
        .rotary_dim = 2 * cos.cols,
        .columns = o.last ? tigon::rotary_columns::last : tigon::rotary_columns::first,
        .pairs = o.neighbours ? tigon::rotary_pairs::neighbours : tigon::rotary_pairs::halves};
    with_parameters<T>(cos.of, [&]<class P>() {
      const auto c = view<const P>(cos), s = view<const P>(sin);
      run(h, [&](tigon::context& ctx) {
        if (backward)
          tigon::rope_backward(view<const T>(q), view<const T>(k), c, s, view<T>(q_out), view<T>(k_out), opt, ctx);
        else
          tigon::rope_forward(view<const T>(q), view<const T>(k), c, s, view<T>(q_out), view<T>(k_out), opt, ctx);
      });
    });
  });
}

void mrope(const host& h, heads q, heads k, matrix cos, matrix sin, heads q_out, heads k_out,
           const std::int64_t* sections, bool backward) {
  with_type<tigon::op::qwen2vl_mrope>("mrope", q.of, [&]<class T>() {
    tigon::qwen2vl_mrope_options opt;
    for (std::size_t i = 0; i < 3; ++i) opt.sections[i] = static_cast<std::size_t>(sections[i]);
    with_parameters<T>(cos.of, [&]<class P>() {
      const auto c = view<const P>(cos), s = view<const P>(sin);
      run(
          h,
          [&](const tigon::context& ctx) {
            return tigon::qwen2vl_mrope_workspace<tigon::default_backend, T>(q.heads + k.heads, q.head_dim, ctx);
          },
          [&](tigon::context& ctx) {
            const auto turn = backward ? &tigon::qwen2vl_mrope_backward<tigon::default_backend, T, const P>
                                       : &tigon::qwen2vl_mrope_forward<tigon::default_backend, T, const P>;
            turn(view<const T>(q), view<const T>(k), c, s, view<T>(q_out), view<T>(k_out), opt, ctx);
          });
    });
  });
}

}  // namespace

const gate_kernels* gates() {
  static constexpr gate_kernels table{entry<tigon::op::swiglu>(&swiglu), entry<tigon::op::swiglu>(&swiglu_backward),
                                      entry<tigon::op::geglu>(&geglu), entry<tigon::op::geglu>(&geglu_backward)};
  return &table;
}

const rotary_kernels* rotary() {
  static constexpr rotary_kernels table{entry<tigon::op::rope>(&rope), entry<tigon::op::qwen2vl_mrope>(&mrope)};
  return &table;
}

}  // namespace tigon_torch

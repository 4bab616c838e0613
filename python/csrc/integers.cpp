// Bytes times weights of two bits.
#include <tigon/ops/matmul_int8_int2.hpp>

#include "call.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

template <class E>
tigon::matrix_view<E> view(const integers& m) {
  return {static_cast<E*>(m.data), m.rows, m.cols, m.stride};
}

void matmul_int8_int2(const host& h, integers a, integers packed, integers c) {
  run(
      h,
      [&](const tigon::context& ctx) {
        return tigon::matmul_int8_int2_workspace(c.rows, c.cols, packed.rows, ctx.executor().workers());
      },
      [&](tigon::context& ctx) {
        tigon::matmul_int8_int2(view<const std::int8_t>(a), view<const std::uint8_t>(packed), view<std::int32_t>(c),
                                ctx);
      });
}
void pack_weights(const host& h, integers w, integers packed) {
  run(h, [&](tigon::context& ctx) {
    tigon::matmul_int8_int2_pack(view<const std::int8_t>(w), view<std::uint8_t>(packed), ctx);
  });
}
void unpack_weights(const host& h, integers packed, integers w) {
  run(h, [&](tigon::context& ctx) {
    tigon::matmul_int8_int2_unpack(view<const std::uint8_t>(packed), view<std::int8_t>(w), ctx);
  });
}

}  // namespace

const integer_kernels* integer_group() {
  static constexpr integer_kernels all = {&matmul_int8_int2, &pack_weights, &unpack_weights};
  return &all;
}

}  // namespace tigon_torch

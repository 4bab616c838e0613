// Losses of students by their teachers, on a chunk of both logits: a row at a time in blocks of the vocabulary.
#ifndef TIGON_BACKENDS_ASCEND_DISTILLATION_HPP
#define TIGON_BACKENDS_ASCEND_DISTILLATION_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/losses/fused_linear_distillation.hpp>

namespace tigon {

template <>
struct kernel<op::distillation, backends::ascend> {
  using forward_only = void;

  template <backend B, class A, token_id I, class Soft>
  static void forward(matrix_view<A> z, matrix_view<A> teacher, const I* target, Soft soft,
                      detail::distillation_rows<A> rows, context& ctx) {
    using tiles = ub::rows_on_tiles<B, op::distillation, tiling::pass::forward>;
    kernel<op::distillation, backends::generic>::template forward<tiles, A, I>(z, teacher, target, soft, rows, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_DISTILLATION_HPP

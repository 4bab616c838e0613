// Rows of the table, copied one by one; their gradients, each added up by one core in the order of the tokens.
#ifndef TIGON_BACKENDS_ASCEND_EMBEDDING_HPP
#define TIGON_BACKENDS_ASCEND_EMBEDDING_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/embedding.hpp>

namespace tigon {

template <>
struct kernel<op::embedding, backends::ascend> {
  template <class>
  using saved = no_state;
  using lanes = kernel<op::embedding, backends::generic>;

  template <backend B, element T, token_id I>
  static void forward(in_matrix<T> weight, std::span<const I> ids, matrix_view<T> y, embedding_options opt,
                      context& ctx) {
    using tiles = ub::rows_on_tiles<B, op::embedding, tiling::pass::forward>;
    lanes::template forward<tiles, T, I>(weight, ids, y, opt, ctx);
  }
  template <backend B, element T, token_id I>
  static std::size_t backward(in_matrix<T> dy, std::span<const I> ids, std::size_t vocab, std::span<I> tokens,
                              matrix_view<T> dweight, embedding_options opt, context& ctx) {
    using tiles = ub::rows_on_tiles<B, op::embedding, tiling::pass::backward>;
    return lanes::template backward<tiles, T, I>(dy, ids, vocab, tokens, dweight, opt, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_EMBEDDING_HPP

// Row lookup and its scatter-add, forward and backward.
#ifndef TIGON_OPS_EMBEDDING_HPP
#define TIGON_OPS_EMBEDDING_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/embedding/embedding_kernel.hpp>

namespace tigon {

/// Row lookup.
///
///   y[i] = weight[ids[i]],   0 where ids[i] is the padding index
///   dweight[v] = sum over i with ids[i] = v of dy[i],   0 for the padding index
///   sparse: for the tokens v_0 < v_1 < ... that occur and are not the padding index
///   tokens[k] = v_k,   drows[k] = dweight[v_k]
///
/// Formula    docs/formulas/embedding.md.
/// Shapes     weight, dweight [vocab, cols]; ids [rows]; y, dy [rows, cols]; tokens [room], drows [room, cols], room at
///            least the smaller of rows and vocab. rows and cols may be 0, vocab >= 1.
/// Types      weight and y: f32, bf16, f16, f64; ids and tokens: std::int32_t or std::int64_t.
/// Precision  each row of dweight is summed in f32 (f64 for f64), in the order of the tokens, and rounded once. Of a
///            token that occurs more than 64 times, sums of 64 are added to a compensated total.
/// Options    backward takes those of forward.
/// Writes     y; all of dweight (zeros where a token does not occur), or only adds with gradient::accumulate; of tokens
///            and drows as many rows as the sparse public function returns, and nothing behind them.
/// Aliasing   no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, workspace, argument (accumulate into a sparse gradient, whose rows
///            may be those of other tokens), and index (in every build) for an id outside [0, vocab); before the first
///            write.
/// Max error  none up to 64 occurrences of a token: backward has the bits of the sum in f32 (f64) in the order of the
///            tokens, rounded once. Beyond, for any number of them, f32 2e-6, f64 4e-15 of the sum of absolute values
///            (tests/ops/embedding_test.cpp).
///
/// ```cpp
/// std::vector<float> weight(100 * 64, 0.5f), y(3 * 64), dweight(weight.size());
/// const std::vector<std::int32_t> ids{7, 0, 7};
/// const tigon::matrix_view out(y.data(), 3, 64);
/// tigon::embedding_forward(tigon::matrix_view(weight.data(), 100, 64), std::span<const std::int32_t>(ids), out);
/// tigon::embedding_backward(out, std::span<const std::int32_t>(ids), tigon::matrix_view(dweight.data(), 100, 64));
/// ```
struct embedding_options;

/// Bytes of workspace that embedding_backward and embedding_backward_sparse take.
template <class B = default_backend, class T>
std::size_t embedding_workspace(std::size_t vocab, std::size_t rows, std::size_t cols,
                                const context& ctx = default_context<B>()) {
  return workspace::bytes_for<std::size_t>(vocab == SIZE_MAX ? vocab : vocab + 1) +
         workspace::bytes_for<std::size_t>(rows) +
         simd::scratch_workspace<B, accumulator_t<T>>(cols, simd::rows_per_sum(rows), ctx);
}

namespace detail {
inline namespace TIGON_ABI {
/// Where the host does not read the ids, the backend has to find what is out of range.
template <class B, token_id I>
void expect_tokens(std::string_view op, std::span<const I> ids, std::size_t vocab) {
  if constexpr (!host_memory<B>) return;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= vocab)
      fail_argument(error_code::index, op, "ids[" + std::to_string(i) + "]", std::to_string(ids[i]),
                    "at least 0 and below " + std::to_string(vocab));
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y from weight and ids. See embedding_options for the contract.
template <class B = default_backend, class T, class Ids>
void embedding_forward(in_matrix<T> weight, const Ids& ids, matrix_view<T> y, embedding_options opt = {},
                       context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const std::span token(ids);
  using I = std::remove_const_t<typename decltype(token)::element_type>;
  static_assert(token_id<I>, "tigon: token ids are std::int32_t or std::int64_t");
  arguments args("embedding_forward");
  args.at_least_one("vocab", weight.rows);
  args.in("weight", weight);
  args.in("ids", token);
  args.out("y", y, token.size(), weight.cols);
  args.check();
  detail::expect_tokens<B, I>("embedding_forward", token, weight.rows);
  kernel_for<op::embedding, B>::template forward<B, T, I>(weight, token, y, opt, ctx);
}

/// dweight from dy and ids. See embedding_options for the contract.
template <class B = default_backend, class T, class Ids>
void embedding_backward(in_matrix<T> dy, const Ids& ids, matrix_view<T> dweight, embedding_options opt = {},
                        context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const std::span token(ids);
  using I = std::remove_const_t<typename decltype(token)::element_type>;
  static_assert(token_id<I>, "tigon: token ids are std::int32_t or std::int64_t");
  arguments args("embedding_backward");
  args.at_least_one("vocab", dweight.rows);
  args.in("dy", dy, token.size(), dweight.cols);
  args.in("ids", token);
  args.out("dweight", dweight);
  args.check();
  detail::expect_tokens<B, I>("embedding_backward", token, dweight.rows);
  ctx.workspace().expect("embedding_backward", embedding_workspace<B, T>(dweight.rows, dy.rows, dy.cols, ctx));
  kernel_for<op::embedding, B>::template backward<B, T, I>(dy, token, dweight.rows, std::span<I>{}, dweight, opt, ctx);
}

/// tokens and drows from dy and ids; returns how many there are. See embedding_options for the contract.
template <class B = default_backend, class T, class Ids, class Tokens>
std::size_t embedding_backward_sparse(in_matrix<T> dy, const Ids& ids, std::size_t vocab, Tokens&& tokens,
                                      matrix_view<T> drows, embedding_options opt = {},
                                      context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const std::span token(ids);
  const std::span out(tokens);
  using I = std::remove_const_t<typename decltype(token)::element_type>;
  static_assert(token_id<I>, "tigon: token ids are std::int32_t or std::int64_t");
  static_assert(host_memory<B>,
                "tigon: the number of rows of a sparse gradient is in the memory of this backend, which the host does "
                "not read; use embedding_backward");
  static_assert(std::same_as<typename decltype(out)::element_type, I>,
                "tigon: the tokens of a sparse gradient are written; pass a range of non-const ids of the same type");
  arguments args("embedding_backward_sparse");
  args.at_least_one("vocab", vocab);
  args.in("dy", dy, token.size(), drows.cols);
  args.in("ids", token);
  args.out("tokens", out, drows.rows);
  args.out("drows", drows);
  args.that(drows.rows >= std::min(token.size(), vocab), error_code::shape, "drows", "of too few rows",
            "as many as there are ids or tokens, whichever is less");
  args.that(opt.dweight == gradient::overwrite, error_code::argument, "dweight", "gradient::accumulate",
            "gradient::overwrite: the rows may be those of other tokens");
  args.check();
  detail::expect_tokens<B, I>("embedding_backward_sparse", token, vocab);
  ctx.workspace().expect("embedding_backward_sparse", embedding_workspace<B, T>(vocab, dy.rows, dy.cols, ctx));
  if (token.empty()) return 0;
  return kernel_for<op::embedding, B>::template backward<B, T, I>(dy, token, vocab, out, drows, opt, ctx);
}

TIGON_EXPLAINS(embedding_forward)
TIGON_EXPLAINS(embedding_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_EMBEDDING_HPP

// Log-probability of one given column a row of a linear layer's output that never exists as a whole.
#ifndef TIGON_LOSSES_SELECTIVE_LOGPROB_HPP
#define TIGON_LOSSES_SELECTIVE_LOGPROB_HPP

#include <tigon/losses/linear_tiles.hpp>
#include <tigon/losses/softmax_parts.hpp>

namespace tigon {

namespace op {
struct selective_logprob {
  static constexpr std::string_view name = "selective_logprob";
};
}  // namespace op

/// log softmax((x w^T + bias) / temperature) at the target of each row, a chunk of rows at a time. For
/// s = (x w^T + bias) / temperature:
///
///   lse = log sum_j exp(s_j) in two parts,   logp = s_target - lse
///   D_j = u / temperature * ([j = target] - p_j),   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
///
/// Formula    docs/formulas/preference.md; lse and D as selective_log_softmax has them.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab] or `absent`; target, logp, saved,
///            upstream u [rows]. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; logp, saved and u f32 (f64 for f64);
///            target std::int32_t or std::int64_t.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output.
/// Writes     logp, saved (saved[i].lse(temperature) is the log-sum-exp); dx, dw, dbias: a gradient whose view has no
///            memory is not computed, dw and dbias are added to with gradient::accumulate. Rows whose target is
///            ignore_index, and in backward rows with u = 0, are not read; their logp and dx are 0.
/// Aliasing   none.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk, context::logit_rows), and chunk rows of
///            x and dx; for 16-bit w also an f32 dw. With chunk_tuning::stream only rows * cols logits, rows of x, an
///            f32 dx and for 16-bit w cols rows of an f32 dw. See selective_logprob_workspace. w may come packed
///            (linear_weights); tiles do not use it.
/// Throws     tigon::error: shape, stride, alias, argument (temperature), workspace, and in every build index for a
///            target outside [0, vocab) that is not ignore_index; before the first write.
/// Max error  logp 4e-7, in bf16 too, gradients f32 4e-6, bf16 8e-3 of |reference| + its root mean square
///            (tests/losses/selective_logprob_test.cpp).
struct selective_logprob_options {
  double temperature = 1;  ///< above 0
  std::int64_t ignore_index = -100;
  gradient dparams = gradient::overwrite;  ///< of dw and dbias
};

namespace detail {
inline namespace TIGON_ABI {

/// Ids of [0, vocab), or ignore_index.
TIGON_NOINLINE inline void expect_ids(std::string_view op, std::string_view name, const token_ids& ids,
                                      std::size_t vocab, std::int64_t ignore_index) {
  for (std::size_t b = 0; b < ids.rows; ++b)
    for (std::size_t t = 0; t < ids.cols; ++t) {
      const std::int64_t id = ids(b, t);
      if (id != ignore_index && (id < 0 || static_cast<std::uint64_t>(id) >= vocab))
        fail_argument(
            error_code::index, op, std::string(name) + "[" + std::to_string(b * ids.cols + t) + "]", std::to_string(id),
            "at least 0 and below " + std::to_string(vocab) + ", or ignore_index " + std::to_string(ignore_index));
    }
}

/// Rows of a product for n chosen rows: whole eighths of a chunk, so that the memory of any is known beforehand.
constexpr std::size_t padded_rows(std::size_t n, std::size_t chunk) {
  const std::size_t step = (chunk + 7) / 8;
  return std::min(chunk, (n + step - 1) / step * step);
}

/// to: rows row[0], ..., row[n - 1] of from, and zeros.
template <class B, element T>
void gather_rows(matrix_view<const T> from, const std::size_t* row, std::size_t n, matrix_view<T> to, context& ctx) {
  using A = accumulator_t<T>;
  for_rows<B, A>(ctx, to.rows, to.cols, [=] TIGON_FN(auto r) {
    if (r.i < n)
      r.map(
          to, [](auto v) { return v; }, vector_view<const T>{from.row(row[r.i]), r.cols});
    else
      r.map(
          to, [](auto v) { return v; }, constant(A(0)));
  });
}

/// Rows row[0], ..., row[n - 1] of to: the first n of from.
template <class B, class A, element From, element T>
void scatter_rows(matrix_view<const From> from, const std::size_t* row, std::size_t n, matrix_view<T> to,
                  context& ctx) {
  for_rows<B, A>(ctx, n, to.cols, [=] TIGON_FN(auto r) {
    r.map(
        vector_view<T>{to.row(row[r.i]), r.cols}, [](auto v) { return v; }, from);
  });
}

/// Rows of x by their index, a chunk at a time: gathered for the products, and their gradients scattered. What is not
/// asked for is not read. Products have as many rows as are asked for or a few more, which are zeros.
template <class B, element T>
class chosen_rows {
 public:
  using A = accumulator_t<T>;

  chosen_rows(workspace::frame& frame, linear_head<T> head, linear_gradients<T> out, std::size_t chunk, context& ctx)
      : from_(head.x),
        w_(head.w),
        bias_(head.bias),
        to_(out.dx),
        ctx_(ctx),
        chunk_(chunk),
        vocab_(head.w.rows),
        x_(frame.template take<T>(chunk * head.x.cols), chunk, head.x.cols),
        dx_(out.dx.data == nullptr ? matrix_view<T>{}
                                   : matrix_view<T>(frame.template take<T>(chunk * head.x.cols), chunk, head.x.cols)),
        layer_(frame, {x_, head.w, head.bias, head.packed}, {dx_, out.dw, out.dbias, out.dparams}, ctx) {}

  /// The logits of rows row[0], ..., row[n - 1], at `memory`.
  matrix_view<A> logits(const std::size_t* row, std::size_t n, A* memory) {
    const std::size_t all = padded_rows(n, chunk_);
    gather_rows<B>(from_, row, n, x_.rows_from(0, all), ctx_);
    const matrix_view<A> z(memory, all, vocab_);
    layer_.logits(0, z);
    return {memory, n, z.cols};
  }

  /// The gradients from that of the logits asked for last, at the same memory.
  void backward(const std::size_t* row, std::size_t n, A* memory) {
    const matrix_view<A> d(memory, padded_rows(n, chunk_), vocab_);
    std::fill(d.row(n), d.row(d.rows), A(0));
    layer_.backward(0, d);
    if (to_.data == nullptr) return;
    scatter_rows<B, A>(matrix_view<const T>(dx_), row, n, to_, ctx_);
  }

  /// One logit of the i-th of the rows asked for last, in f64.
  double logit(std::size_t i, std::size_t column) const {
    const T *x = x_.row(i), *w = w_.row(column);
    const auto number = [](T v) { return static_cast<double>(static_cast<A>(v)); };
    double sum[4] = {bias_ ? number(bias_.data[column]) : 0, 0, 0, 0};
    for (std::size_t h = 0; h < x_.cols; ++h) sum[h % 4] += number(x[h]) * number(w[h]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  void finish() const { layer_.finish(); }

 private:
  matrix_view<const T> from_, w_;
  vector_view<const T> bias_;
  matrix_view<T> to_;
  context& ctx_;
  std::size_t chunk_, vocab_;
  matrix_view<T> x_, dx_;
  linear_chunks<B, T> layer_;
};

/// Bytes that chosen_rows takes for chunks of `chunk` rows, with all gradients, a bias and nothing packed; without the
/// logits. between(n): bytes that the loss takes between products of n rows, and gives back.
template <class B, element T>
std::size_t chosen_rows_workspace(std::size_t hidden, std::size_t vocab, std::size_t chunk, const context& ctx,
                                  auto between) {
  std::size_t most = 0;
  for (std::size_t n = 0; n < chunk;) {
    n = padded_rows(n + 1, chunk);
    most = std::max(most, linear_chunks_workspace<B, T>(n, hidden, vocab, n, ctx, between(n)));
  }
  return most + 2 * workspace::bytes_for<T>(chunk * hidden);
}

/// The same by tiles. f(begin, first, z) is given the logits of rows row[begin], ... in columns [first, first +
/// z.cols).
template <class B, element T>
class chosen_tiles {
 public:
  using A = accumulator_t<T>;

  chosen_tiles(workspace::frame& frame, linear_head<T> head, linear_gradients<T> out, const std::size_t* row,
               std::size_t n, context& ctx)
      : from_(head.x),
        to_(out.dx),
        row_(row),
        n_(n),
        tile_(chunk_rows<B, A>(head.x.rows, head.x.cols, head.w.rows, ctx)),
        ctx_(ctx),
        x_(frame.template take<T>(tile_ * head.x.cols), tile_, head.x.cols),
        logits_(frame.template take<A>(tile_ * B::chunk.cols)),
        layer_(frame, head, out, ctx) {
    const std::size_t held = held_rows(n, tile_);
    if (to_.data != nullptr) dx_ = {frame.template take<A>(held * to_.cols), held, to_.cols};
  }

  /// Most rows of a tile.
  std::size_t rows() const { return tile_; }
  /// Rows of n chosen ones with what pads the last tile.
  static constexpr std::size_t held_rows(std::size_t n, std::size_t tile) {
    return n / tile * tile + padded_rows(n % tile, tile);
  }

  template <class F>
  void for_each(F f) {
    layer_.for_columns([&](std::size_t first, std::size_t cols) {
      for_chunks(n_, tile_, [&](std::size_t begin, std::size_t n) {
        const matrix_view<T> x = x_.rows_from(0, padded_rows(n, tile_));
        gather_rows<B>(from_, row_ + begin, n, x, ctx_);
        layer_.logits(x, {logits_, x.rows, cols});
        f(begin, first, matrix_view<A>(logits_, n, cols));
      });
    });
  }

  /// The gradients from that of the logits that f was given, in their place.
  void backward(std::size_t begin, matrix_view<A> z) {
    const matrix_view<A> d(logits_, padded_rows(z.rows, tile_), z.cols);
    std::fill(d.row(z.rows), d.row(d.rows), A(0));
    layer_.backward(x_.rows_from(0, d.rows), d, dx_.data == nullptr ? dx_ : dx_.rows_from(begin, d.rows));
  }

  /// dx, after the last tile.
  void finish() const {
    if (to_.data != nullptr) scatter_rows<B, A>(matrix_view<const A>(dx_), row_, n_, to_, ctx_);
  }

 private:
  matrix_view<const T> from_;
  matrix_view<T> to_;
  const std::size_t* row_;
  std::size_t n_, tile_;
  context& ctx_;
  matrix_view<T> x_;
  A* logits_;
  linear_tiles<B, T> layer_;
  matrix_view<A> dx_;
};

/// Bytes that chosen_tiles and the statistics of its rows take, with all gradients and a bias.
template <class B, element T>
std::size_t chosen_tiles_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab, std::size_t tile,
                                   const context& ctx) {
  using A = accumulator_t<T>;
  std::size_t most = 0;
  for (std::size_t n = 0; n < tile;) {
    n = padded_rows(n + 1, tile);
    most = std::max(most, linear_tiles_workspace<B, T>(hidden, vocab, n, n, ctx));
  }
  const std::size_t forward = workspace::bytes_for<lse_parts<A>>(tile) + workspace::bytes_for<A>(tile) +
                              workspace::bytes_for<std::int64_t>(tile);
  const std::size_t held = chosen_tiles<B, T>::held_rows(rows, tile);
  return most + std::max(forward, workspace::bytes_for<A>(held * hidden)) + workspace::bytes_for<T>(tile * hidden) +
         workspace::bytes_for<A>(tile * B::chunk.cols);
}

/// Zeros in the rows [begin, end) of dx that are not among row[0] < row[1] < ... < row[n - 1].
template <element T>
void clear_other_rows(matrix_view<T> dx, std::size_t begin, std::size_t end, const std::size_t* row, std::size_t n) {
  for (std::size_t k = 0; k <= n; ++k) {
    const std::size_t next = k < n ? row[k] : end;
    for (; begin < next; ++begin)
      for (std::size_t j = 0; j < dx.cols; ++j) dx.row(begin)[j] = static_cast<T>(accumulator_t<T>(0));
    ++begin;
  }
}

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::selective_logprob, backends::generic> {
  template <class T>
  using saved = std::span<lse_parts<accumulator_t<T>>>;

  /// logp[i] and lse[i] of row[i], i < n, for column[i].
  template <backend B, element T>
  static void forward(detail::linear_head<T> head, const std::size_t* row, const std::int64_t* column, std::size_t n,
                      double temperature, accumulator_t<T>* logp, lse_parts<accumulator_t<T>>* lse, context& ctx) {
    using A = accumulator_t<T>;
    if constexpr (B::chunk.rule == chunk_rule::stream)
      if (detail::streams<B>(head.w.rows)) return forward_tiles<B>(head, row, column, n, temperature, logp, lse, ctx);
    const std::size_t vocab = head.w.rows;
    const std::size_t chunk = detail::chunk_rows<B, A>(head.x.rows, head.x.cols, vocab, ctx);
    workspace::frame frame(ctx.workspace());
    A* memory = frame.template take<A>(chunk * vocab);
    detail::chosen_rows<B, T> rows(frame, head, {}, chunk, ctx);
    detail::for_chunks(n, chunk, [&](std::size_t begin, std::size_t count) {
      kernel_for<op::selective_log_softmax, B>::template forward<B, A>(
          rows.logits(row + begin, count, memory), column + begin, temperature, logp + begin, lse + begin, ctx);
    });
  }

  /// The gradients from u[i] = d loss / d logp[i].
  template <backend B, element T>
  static void backward(detail::linear_head<T> head, detail::linear_gradients<T> out, const std::size_t* row,
                       const std::int64_t* column, std::size_t n, double temperature, const accumulator_t<T>* u,
                       const lse_parts<accumulator_t<T>>* lse, context& ctx) {
    using A = accumulator_t<T>;
    if constexpr (B::chunk.rule == chunk_rule::stream)
      if (detail::streams<B>(head.w.rows))
        return backward_tiles<B>(head, out, row, column, n, temperature, u, lse, ctx);
    const std::size_t vocab = head.w.rows;
    const std::size_t chunk = detail::chunk_rows<B, A>(head.x.rows, head.x.cols, vocab, ctx);
    workspace::frame frame(ctx.workspace());
    A* memory = frame.template take<A>(chunk * vocab);
    detail::chosen_rows<B, T> rows(frame, head, out, chunk, ctx);
    if (out.dx.data != nullptr) detail::clear_other_rows(out.dx, 0, out.dx.rows, row, n);
    detail::for_chunks(n, chunk, [&](std::size_t begin, std::size_t count) {
      const matrix_view<A> z = rows.logits(row + begin, count, memory);
      kernel_for<op::selective_log_softmax, B>::template backward<B, A>(z, lse + begin, {column + begin, u + begin}, {},
                                                                        temperature, z, ctx);
      rows.backward(row + begin, count, memory);
    });
    rows.finish();
  }

  /// The same by tiles: what the parts of a row know of its softmax is put together tile by tile.
  template <backend B, element T>
  static void forward_tiles(detail::linear_head<T> head, const std::size_t* row, const std::int64_t* column,
                            std::size_t n, double temperature, accumulator_t<T>* logp, lse_parts<accumulator_t<T>>* lse,
                            context& ctx) {
    using A = accumulator_t<T>;
    const A inverse = static_cast<A>(1 / temperature);
    workspace::frame frame(ctx.workspace());
    detail::chosen_tiles<B, T> tiles(frame, head, {}, row, n, ctx);
    auto* part = frame.template take<lse_parts<A>>(tiles.rows());
    A* unused = frame.template take<A>(tiles.rows());
    auto* local = frame.template take<std::int64_t>(tiles.rows());
    tiles.for_each([&](std::size_t begin, std::size_t first, matrix_view<A> z) {
      const auto own = [&](std::size_t i) { return static_cast<std::size_t>(column[begin + i]) - first; };
      for (std::size_t i = 0; i < z.rows; ++i) {
        const bool here = own(i) < z.cols;
        local[i] = here ? static_cast<std::int64_t>(own(i)) : 0;
        if (here) logp[begin + i] = z.row(i)[own(i)];  // the logit, until all is known
      }
      kernel_for<op::selective_log_softmax, B>::template forward<B, A>(z, local, temperature, unused, part, ctx);
      for (std::size_t i = 0; i < z.rows; ++i)
        if (first == 0)
          lse[begin + i] = part[i];
        else
          detail::add_part(lse[begin + i], part[i], inverse);
    });
    for (std::size_t i = 0; i < n; ++i) logp[i] = static_cast<A>(lse[i].log_p(logp[i], temperature));
  }

  template <backend B, element T>
  static void backward_tiles(detail::linear_head<T> head, detail::linear_gradients<T> out, const std::size_t* row,
                             const std::int64_t* column, std::size_t n, double temperature, const accumulator_t<T>* u,
                             const lse_parts<accumulator_t<T>>* lse, context& ctx) {
    using A = accumulator_t<T>;
    const A inverse = static_cast<A>(1 / temperature);
    if (out.dx.data != nullptr) detail::clear_other_rows(out.dx, 0, out.dx.rows, row, n);
    if (n == 0) return detail::clear_parameters<B>(out, ctx);
    workspace::frame frame(ctx.workspace());
    detail::chosen_tiles<B, T> tiles(frame, head, out, row, n, ctx);
    tiles.for_each([&](std::size_t begin, std::size_t first, matrix_view<A> z) {
      const auto* of = lse + begin;
      const auto* target = column + begin;
      const A* up = u + begin;
      for_rows<B, A>(ctx, z.rows, z.cols, [=] TIGON_FN(auto r) {
        const lse_parts<A> parts = of[r.i];
        const A top = parts.top, scaled = -up[r.i] * inverse, factor = scaled / (A(1) + parts.rest);
        const std::size_t own = static_cast<std::size_t>(target[r.i]) - first;
        A at(0);
        if (own < r.cols) at = scaled * static_cast<A>(math::expm1(parts.log_p(r.at(z, own), temperature)));
        r.map(
            z, [=](auto v) { return normal_or_zero(exp_nonpositive((v - top) * inverse) * factor); }, z);
        if (own < r.cols && r.first()) r.put(z, own, at);
      });
      tiles.backward(begin, z);
    });
    tiles.finish();
  }
};

/// Bytes of workspace that selective_logprob_forward and _backward take for a call with all gradients and a bias.
template <class B = default_backend, class T>
std::size_t selective_logprob_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                        const context& ctx = default_context()) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::chunk_rows<B, A>(rows, hidden, vocab, ctx);
  const std::size_t of_rows = workspace::bytes_for<std::size_t>(rows) + workspace::bytes_for<std::int64_t>(rows) +
                              workspace::bytes_for<A>(rows) + workspace::bytes_for<lse_parts<A>>(rows);
  if constexpr (B::chunk.rule == chunk_rule::stream)
    if (detail::streams<B>(vocab))
      return of_rows + detail::chosen_tiles_workspace<B, T>(rows, hidden, vocab, chunk, ctx);
  return of_rows + workspace::bytes_for<A>(chunk * vocab) +
         detail::chosen_rows_workspace<B, T>(hidden, vocab, chunk, ctx, [](std::size_t) { return std::size_t{0}; });
}

/// logp of every row, and in `saved` what backward needs. See selective_logprob_options for the contract.
template <class B = default_backend, class T, class Target, parameter Bias = absent_t>
void selective_logprob_forward(matrix_view<T> x, std::type_identity_t<linear_weights<std::remove_const_t<T>>> w,
                               const Target& target,
                               std::type_identity_t<std::span<accumulator_t<std::remove_const_t<T>>>> logp,
                               std::type_identity_t<std::span<lse_parts<accumulator_t<std::remove_const_t<T>>>>> saved,
                               selective_logprob_options opt = {}, const Bias& bias = absent,
                               context& ctx = default_context()) {
  using E = std::remove_const_t<T>;
  static_assert(admits<B, E>());
  using A = accumulator_t<E>;
  constexpr std::string_view name = "selective_logprob_forward";
  const expects expect(name);
  const detail::linear_head<E> head{x, w.view, as_in_vector<E>(bias), w.packed};
  const token_ids labels(as_row(std::span(target)));
  detail::expect_linear(expect, head, detail::linear_gradients<E>{});
  detail::expect_packed<B>(name, head);
  expect.size("target", labels.cols, x.rows);
  expect.size("logp", logp.size(), x.rows);
  expect.size("saved", saved.size(), x.rows);
  detail::expect_temperature<A>(expect, opt.temperature);
  expect.outside("logp", as_row(logp), "x", x, "w", w.view, "bias", as_row(head.bias), "target", labels.bytes(),
                 "saved", as_row(saved));
  expect.outside("saved", as_row(saved), "x", x, "w", w.view, "bias", as_row(head.bias), "target", labels.bytes());
  detail::expect_ids(name, "target", labels, head.w.rows, opt.ignore_index);
  ctx.workspace().expect(name, selective_logprob_workspace<B, E>(x.rows, x.cols, head.w.rows, ctx));

  workspace::frame frame(ctx.workspace());
  auto* row = frame.template take<std::size_t>(x.rows);
  auto* column = frame.template take<std::int64_t>(x.rows);
  auto* lp = frame.template take<A>(x.rows);
  auto* lse = frame.template take<lse_parts<A>>(x.rows);
  std::size_t n = 0;
  for (std::size_t i = 0; i < x.rows; ++i)
    if (labels(0, i) != opt.ignore_index) row[n] = i, column[n++] = labels(0, i);
  kernel_for<op::selective_logprob, B>::template forward<B, E>(head, row, column, n, opt.temperature, lp, lse, ctx);
  std::fill(logp.begin(), logp.end(), A(0));
  for (std::size_t i = 0; i < x.rows; ++i) saved[i] = {};
  for (std::size_t k = 0; k < n; ++k) logp[row[k]] = lp[k], saved[row[k]] = lse[k];
}

/// dx, dw and dbias from the gradient u of logp and what forward saved; the logits are computed again.
template <class B = default_backend, class T, class Target, parameter Bias = absent_t, parameter DBias = absent_t>
void selective_logprob_backward(in_matrix<T> x, std::type_identity_t<linear_weights<T>> w, const Target& target,
                                std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
                                std::type_identity_t<std::span<const lse_parts<accumulator_t<T>>>> saved,
                                matrix_view<T> dx, std::type_identity_t<matrix_view<T>> dw,
                                selective_logprob_options opt = {}, const Bias& bias = absent,
                                DBias&& dbias = absent_t{}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "selective_logprob_backward";
  const expects expect(name);
  const detail::linear_head<T> head{x, w.view, as_in_vector<T>(bias), w.packed};
  const detail::linear_gradients<T> out{dx, dw, as_out_vector<T>(dbias), opt.dparams};
  const token_ids labels(as_row(std::span(target)));
  detail::expect_linear(expect, head, out, "target", labels.bytes(), "upstream", as_row(upstream), "saved",
                        as_row(saved));
  detail::expect_packed<B>(name, head);
  expect.size("target", labels.cols, x.rows);
  expect.size("upstream", upstream.size(), x.rows);
  expect.size("saved", saved.size(), x.rows);
  detail::expect_temperature<A>(expect, opt.temperature);
  detail::expect_ids(name, "target", labels, head.w.rows, opt.ignore_index);
  ctx.workspace().expect(name, selective_logprob_workspace<B, T>(x.rows, x.cols, head.w.rows, ctx));

  workspace::frame frame(ctx.workspace());
  auto* row = frame.template take<std::size_t>(x.rows);
  auto* column = frame.template take<std::int64_t>(x.rows);
  auto* u = frame.template take<A>(x.rows);
  auto* lse = frame.template take<lse_parts<A>>(x.rows);
  std::size_t n = 0;
  for (std::size_t i = 0; i < x.rows; ++i)
    if (labels(0, i) != opt.ignore_index && upstream[i] != A(0))
      row[n] = i, column[n] = labels(0, i), u[n] = upstream[i], lse[n++] = saved[i];
  kernel_for<op::selective_logprob, B>::template backward<B, T>(head, out, row, column, n, opt.temperature, u, lse,
                                                                ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_SELECTIVE_LOGPROB_HPP

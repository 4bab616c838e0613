// The generic kernel of embedding.
#ifndef TIGON_OPS_EMBEDDING_EMBEDDING_KERNEL_HPP
#define TIGON_OPS_EMBEDDING_EMBEDDING_KERNEL_HPP

#include <tigon/ops/embedding/embedding_options.hpp>
#include <tigon/rows/row.hpp>

namespace tigon {

template <>
struct kernel<op::embedding, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, token_id I>
  static void forward(in_matrix<T> weight, std::span<const I> ids, matrix_view<T> y, embedding_options opt,
                      context& ctx) {
    const I* id = ids.data();
    const std::ptrdiff_t padding = opt.padding_index;
    for_rows<B, accumulator_t<T>>(ctx, y.rows, y.cols, [=] TIGON_FN(auto row) {
      const I token = id[row.i];
      if (static_cast<std::ptrdiff_t>(token) == padding)
        row.map(reads(constant(accumulator_t<T>(0))), writes(y), [](auto zero) { return zero; });
      else
        row.map(reads(in_vector<T>{weight.row(static_cast<std::size_t>(token)), weight.cols}), writes(y),
                [](auto v) { return v; });
    });
  }

  /// Where `tokens` is empty dweight has a row for every token; otherwise one for each that occurs, whose number is
  /// returned.
  template <backend B, element T, token_id I>
  static std::size_t backward(in_matrix<T> dy, std::span<const I> ids, std::size_t vocab, std::span<I> tokens,
                              matrix_view<T> dweight, embedding_options opt, context& ctx) {
    using A = accumulator_t<T>;
    // Positions sorted by their token (a stable counting sort), so that each row of dweight has one owner.
    workspace::frame frame(ctx.workspace());
    auto* first = frame.template take<std::size_t>(vocab + 1);
    auto* order = frame.template take<std::size_t>(ids.size());
    std::fill(first, first + vocab + 1, std::size_t{0});
    for (const I id : ids) ++first[static_cast<std::size_t>(id) + 1];
    for (std::size_t v = 0; v < vocab; ++v) first[v + 1] += first[v];
    for (std::size_t i = 0; i < ids.size(); ++i) order[first[static_cast<std::size_t>(ids[i])]++] = i;
    // Now first[v] is the end of v's positions, and first[v - 1] their begin.
    const bool accumulate = opt.dweight == gradient::accumulate, sparse = !tokens.empty();
    const auto padding = static_cast<std::size_t>(opt.padding_index);
    std::size_t rows = vocab;
    if (sparse) {
      rows = 0;
      for (std::size_t v = 0; v < vocab; ++v)
        if (v != padding && first[v] != (v == 0 ? 0 : first[v - 1])) tokens[rows++] = static_cast<I>(v);
    }
    const I* occurring = tokens.data();
    const std::size_t scratch_rows = simd::rows_per_sum(ids.size());
    for_rows<B, A>(ctx, rows, dweight.cols, {.scratch = scratch_rows}, [=] TIGON_FN(auto row) {
      const std::size_t token = sparse ? static_cast<std::size_t>(occurring[row.i]) : row.i;
      std::size_t k = token == 0 ? 0 : first[token - 1];
      const std::size_t end = token == padding ? k : first[token];
      if (k == end) {
        if (!accumulate) row.map(reads(constant(A(0))), writes(dweight), [](auto zero) { return zero; });
        return;
      }
      const auto sum = row.scratch(0);
      const auto place = [=](std::size_t n) { return in_vector<T>{dy.row(order[n]), dy.cols}; };
      const bool many = end - k > simd::plain_rows;
      const auto high = row.scratch(many ? 1 : 0), low = row.scratch(many ? 2 : 0);
      if (many) row.map(reads(constant(A(0))), writes(high, low), [](auto zero) { return pack{zero, zero}; });
      for (bool begins = true; k < end; begins = false) {
        if (begins && accumulate)
          row.map(reads(dweight, place(k)), writes(sum), [](auto d, auto v) { return d + v; });
        else
          row.map(reads(place(k)), writes(sum), [](auto v) { return v; });
        const std::size_t stop = many ? std::min(end, k + simd::plain_rows) : end;
        for (++k; k < stop; ++k) row.map(reads(sum, place(k)), writes(sum), [](auto s, auto v) { return s + v; });
        if (many)
          row.map(reads(high, low, sum), writes(high, low),
                  [](auto h, auto l, auto s) { return simd::add_compensated(h, l, s); });
      }
      if (many)
        row.map(reads(high, low), writes(dweight), [](auto h, auto l) { return h + l; });
      else
        row.map(reads(sum), writes(dweight), [](auto s) { return s; });
    });
    return rows;
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_EMBEDDING_EMBEDDING_KERNEL_HPP

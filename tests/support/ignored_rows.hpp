// Rows that count among rows whose label is ignored: which others count, and where they stand, changes no bit of a row,
// and what is ignored is neither read nor multiplied.
#ifndef TIGON_TESTS_SUPPORT_IGNORED_ROWS_HPP
#define TIGON_TESTS_SUPPORT_IGNORED_ROWS_HPP

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

#include "scratch.hpp"

namespace tigon::test {

/// The rows that count, of each pattern.
inline std::vector<std::vector<std::size_t>> kept_patterns(std::size_t rows) {
  const std::function<bool(std::size_t)> kept[] = {[](std::size_t i) { return i != 0; },  // ignored at the start,
                                                   [=](std::size_t i) { return i + 1 != rows; },  // at the end,
                                                   [=](std::size_t i) { return i < rows / 2; },   //
                                                   [=](std::size_t i) { return i >= rows / 2; },  //
                                                   [](std::size_t i) { return i % 2 == 0; },      // alternating,
                                                   [](std::size_t i) { return i * i % 7 > 2; },   //
                                                   [](std::size_t i) { return i == 0; },          // all but one,
                                                   [=](std::size_t i) { return i == rows - 1; },  //
                                                   [](std::size_t) { return false; }};            // all
  std::vector<std::vector<std::size_t>> out;
  for (const auto& keeps : kept) {
    out.emplace_back();
    for (std::size_t i = 0; i < rows; ++i)
      if (keeps(i)) out.back().push_back(i);
  }
  return out;
}

/// A loss of rows: P is a problem whose rows count.
template <class P>
struct loss_of_rows {
  std::size_t rows;
  std::function<P()> make;
  std::function<void(P&, std::size_t)> ignore;                        ///< a row, and spoils what is not to be read
  std::function<void(P&, std::size_t, const P&, std::size_t)> copy;   ///< the inputs of a row of another problem
  std::function<std::vector<double>(const P&, std::size_t)> results;  ///< of a row, with dx; zeros if it is ignored
  std::function<std::vector<std::byte>(const P&)> parameters;         ///< bits of the gradients of parameters
  std::function<void(P&, context&)> call;
  std::function<std::size_t(context&)> bytes;  ///< of workspace that are named for it
  std::size_t chunk = 0;                       ///< context::logit_rows
};

/// `p` with only these rows, called with the workspace that is named.
template <class P>
TIGON_TEST_NOINLINE void call_with(const loss_of_rows<P>& of, P& p, const std::vector<std::size_t>& kept,
                                   std::size_t threads) {
  std::vector<bool> counts(of.rows, false);
  for (const std::size_t i : kept) counts[i] = true;
  for (std::size_t i = 0; i < of.rows; ++i)
    if (!counts[i]) of.ignore(p, i);
  with_workspace_of(
      64,
      [&](context& of_size) {
        of_size.logit_rows(of.chunk);
        with_workspace_of(
            of.bytes(of_size), [&](context& ctx) { ctx.logit_rows(of.chunk), of.call(p, ctx); }, threads);
      },
      threads);
}

template <class P>
TIGON_TEST_NOINLINE void expect_rows_for_themselves(const loss_of_rows<P>& of) {
  std::vector<std::size_t> every;
  for (std::size_t i = 0; i < of.rows; ++i) every.push_back(i);
  P all = of.make();
  call_with(of, all, every, 1);
  const std::vector<double> zeros(of.results(all, 0).size(), 0.0);
  for (const auto& kept : kept_patterns(of.rows)) {
    SCOPED_TRACE(testing::Message() << kept.size() << " of " << of.rows << " rows, the first of them "
                                    << (kept.empty() ? of.rows : kept.front()));
    P p = of.make(), threads = of.make(), first = of.make();
    call_with(of, p, kept, 1), call_with(of, threads, kept, 3);
    EXPECT_TRUE(of.parameters(p) == of.parameters(threads)) << "threads";
    // The same rows at the beginning.
    for (std::size_t k = 0; k < kept.size(); ++k) of.copy(first, k, all, kept[k]);
    call_with(of, first, {every.begin(), every.begin() + std::ssize(kept)}, 1);
    EXPECT_TRUE(of.parameters(p) == of.parameters(first)) << "places";
    std::size_t k = 0;
    for (std::size_t i = 0; i < of.rows; ++i) {
      const bool counts = k < kept.size() && kept[k] == i;
      ASSERT_EQ(of.results(p, i), counts ? of.results(all, i) : zeros) << "row " << i;
      ASSERT_EQ(of.results(p, i), of.results(threads, i)) << "row " << i << ", threads";
      if (counts) {
        ASSERT_EQ(of.results(p, i), of.results(first, k++)) << "row " << i << ", places";
      }
    }
  }
}

/// `multiplications` counts those of the products: so many of each row that counts, and none of the others.
template <class P>
TIGON_TEST_NOINLINE void expect_products_of_kept_rows(const loss_of_rows<P>& of, const std::size_t& multiplications,
                                                      std::size_t of_a_row) {
  for (const auto& kept : kept_patterns(of.rows)) {
    P p = of.make();
    const std::size_t before = multiplications;
    call_with(of, p, kept, 1);
    EXPECT_EQ(multiplications - before, kept.size() * of_a_row) << kept.size() << " of " << of.rows << " rows";
  }
}

/// What must not be read.
template <class M>
void spoil_row(M& m, std::size_t i, std::size_t cols) {
  using E = std::remove_cvref_t<decltype(m(i, 0))>;
  for (std::size_t j = 0; j < cols; ++j)
    m(i, j) =
        from_f64<E>(j % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity());
}
/// Row i of a matrix, behind `out`.
template <class M>
void append_row(std::vector<double>& out, const M& m, std::size_t i, std::size_t cols) {
  for (std::size_t j = 0; j < cols; ++j) out.push_back(to_f64(m(i, j)));
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_IGNORED_ROWS_HPP

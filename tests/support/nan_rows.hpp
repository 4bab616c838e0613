// NaN in each place of a row, for operators on rows: what it must reach is NaN, and everything else has the bits that
// it has without the NaN. Needs nothing but the standard library, so that it can be cross-compiled.
#ifndef TIGON_TESTS_SUPPORT_NAN_ROWS_HPP
#define TIGON_TESTS_SUPPORT_NAN_ROWS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <tigon/core/views.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>
#include <vector>

namespace tigon::test {

// Whole vectors of every engine, unrolled and not, and a tail.
inline constexpr std::size_t nan_rows = 3, nan_cols = 155,
                             nan_columns[] = {0, 1, 6, 17, 63, 100, 127, 130, 145, 153, 154};

/// What a NaN in an input makes NaN of an output: nothing, its element, its row, or all of it, whatever its shape. With
/// `within_row` that depends on the numbers, but nothing outside the row changes.
enum class reach { nothing, element, row, within_row, all };

template <class T>
struct table {
  std::size_t rows = nan_rows, cols = nan_cols;
  std::vector<T> v = std::vector<T>(rows * cols);

  table() = default;
  table(std::size_t r, std::size_t c) : rows(r), cols(c), v(r * c) {}
  /// Numbers of a fixed seed between -2 and 2, or above 0 up to 1.
  static table drawn(unsigned seed, bool positive = false) {
    table out;
    std::mt19937 random(seed);
    for (T& x : out.v) {
      const float unit = static_cast<float>(random() % 4096 + 1) / 4096;
      x = static_cast<T>(positive ? unit : 4 * unit - 2);
    }
    return out;
  }
  operator matrix_view<T>() { return {v.data(), rows, cols}; }
  operator matrix_view<const T>() const { return {v.data(), rows, cols}; }
};

template <class T>
bool all_nan(std::span<const T> v) {
  for (const T x : v)
    if (!std::isnan(static_cast<accumulator_t<T>>(x))) return false;
  return true;
}

/// The first complaint, or nothing. `run(in, out)` computes outputs from inputs; reaches[i][o]: of input i in output o.
template <class T, class Run>
std::string first_lost_nan(const std::string& name, std::vector<table<T>> in, std::vector<table<T>> out,
                           const std::vector<std::vector<reach>>& reaches, Run run) {
  run(in, out);
  const auto clean = out;
  for (const auto& o : clean)
    for (const T x : o.v)
      if (std::isnan(static_cast<accumulator_t<T>>(x))) return name + ": NaN without NaN";
  for (std::size_t i = 0; i < in.size(); ++i)
    for (std::size_t row = 0; row < nan_rows; ++row)
      for (const std::size_t column : nan_columns) {
        const T kept = in[i].v[row * nan_cols + column];
        in[i].v[row * nan_cols + column] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
        run(in, out);
        in[i].v[row * nan_cols + column] = kept;
        for (std::size_t o = 0; o < out.size(); ++o) {
          const std::size_t cols = out[o].cols;
          const auto part = [&](const table<T>& from, std::size_t first, std::size_t end) {
            return std::span<const T>(from.v).subspan(first, end - first);
          };
          // [first, end) is NaN, the rest as it was.
          std::size_t first = 0, end = 0;
          if (reaches[i][o] == reach::element) first = row * cols + column, end = first + 1;
          if (reaches[i][o] == reach::row || reaches[i][o] == reach::within_row) first = row * cols, end = first + cols;
          if (reaches[i][o] == reach::all) end = out[o].v.size();
          const auto place = [&] {
            return name + ": NaN in input " + std::to_string(i) + ", row " + std::to_string(row) + ", column " +
                   std::to_string(column) + ", output " + std::to_string(o);
          };
          if (reaches[i][o] != reach::within_row && !all_nan(part(out[o], first, end))) return place() + ": lost";
          const auto same = [&](std::size_t from, std::size_t to) {
            return std::memcmp(out[o].v.data() + from, clean[o].v.data() + from, (to - from) * sizeof(T)) == 0;
          };
          if (!same(0, first) || !same(end, out[o].v.size())) return place() + ": it reaches too far";
        }
      }
  return {};
}

/// Six operators that clamp, select, and take maxima.
template <class B, class T>
std::string first_lost_nan_of_six() {
  using enum reach;
  using tables = std::vector<table<T>>;
  const auto draw = [](unsigned seed) { return table<T>::drawn(seed); };
  std::string lost = first_lost_nan<T>("softmax", {draw(1), draw(2)}, tables(2), {{row, row}, {nothing, row}},
                                       [](auto& in, auto& out) {
                                         softmax_forward<B, T>(in[0], out[0]);
                                         softmax_backward<B, T>(in[1], out[0], out[1]);
                                       });
  // Inputs gate, up and the gradient; outputs y, dgate and dup.
  const std::vector<std::vector<reach>> of_gates{
      {element, element, element}, {element, element, nothing}, {nothing, element, element}};
  if (lost.empty())
    lost = first_lost_nan<T>("swiglu", {draw(1), draw(2), draw(3)}, tables(3), of_gates, [](auto& in, auto& out) {
      swiglu_forward<B, T>(in[0], in[1], out[0]);
      swiglu_backward<B, T>(in[2], in[0], in[1], out[1], out[2]);
    });
  for (const auto form : {gelu_form::tanh, gelu_form::erf})
    if (lost.empty())
      lost = first_lost_nan<T>("geglu", {draw(1), draw(2), draw(3)}, tables(3), of_gates, [form](auto& in, auto& out) {
        geglu_forward<B, T>(in[0], in[1], out[0], {.form = form});
        geglu_backward<B, T>(in[2], in[0], in[1], out[1], out[2], {.form = form});
      });
  if (lost.empty())
    lost = first_lost_nan<T>("relu_squared", {draw(1), draw(2)}, tables(2), {{element, element}, {nothing, element}},
                             [](auto& in, auto& out) {
                               relu_squared_forward<B, T>(in[0], out[0]);
                               relu_squared_backward<B, T>(in[1], in[0], out[1]);
                             });
  const std::vector<T> one(nan_cols, T(1)), alpha(1, T(0.75f));
  if (lost.empty())
    lost = first_lost_nan<T>(
        "dyt", {draw(1), draw(2)}, tables(2), {{element, element}, {nothing, element}}, [&](auto& in, auto& out) {
          std::vector<T> dalpha(1), dgamma(nan_cols);
          dyt_forward<B, T>(in[0], alpha, one, absent, out[0]);
          dyt_backward<B, T>(in[1], in[0], alpha, one, dyt_gradients{matrix_view<T>(out[1]), dalpha, dgamma, absent});
        });
  const std::vector<std::int64_t> target{3, 153, 20};
  if (lost.empty())
    lost = first_lost_nan<T>("cross_entropy", {draw(1)}, {table<T>(nan_rows, 1), table<T>()}, {{row, row}},
                             [&](auto& in, auto& out) {
                               std::vector<accumulator_t<T>> loss(nan_rows);
                               cross_entropy_forward<B, T>(in[0], target, loss, out[1], {.reduction = reduction::none});
                               for (std::size_t i = 0; i < nan_rows; ++i) out[0].v[i] = static_cast<T>(loss[i]);
                             });
  return lost;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_NAN_ROWS_HPP

// Grouped convolution of planes whose upper triangles are 0, and its gradients.
//
//   group      inputs and outputs (channels) that see one another
//   block      rows of results of a task, in all channels of a group
//   tile       columns of a block that are computed at a time, from rows in scratch memory (plane_windows.hpp)
//   slice      the blocks of one sum of parameter gradients: as many slices as the shape says, each summed by one task
#ifndef TIGON_OPS_ATTENTION_PLANE_CONVOLUTION_HPP
#define TIGON_OPS_ATTENTION_PLANE_CONVOLUTION_HPP

#include <tigon/core/views.hpp>
#include <tigon/ops/attention/plane_windows.hpp>
#include <tigon/simd/totals.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

template <class V>
struct plane_convolution {
  using A = typename V::value_type;
  static constexpr std::size_t block = 8, most_slices = 64, plain = 64, together = 4;

  convolution_axis rows, cols;
  std::size_t batch, groups, inputs, outputs;  ///< channels of a group

  std::size_t taps_of_output() const { return workspace::product(inputs, rows.taps, cols.taps); }
  std::size_t taps_of_input() const { return workspace::product(outputs, rows.taps, cols.taps); }
  std::size_t output_blocks() const { return ceil_div(rows.out(), block); }
  std::size_t input_blocks() const { return ceil_div(rows.in, block); }
  std::size_t slices() const { return std::min(workspace::product(batch, output_blocks()), std::size_t{most_slices}); }
  /// Numbers of a row of the gradient of the input, whole tiles of vectors.
  std::size_t input_row() const {
    return round_up(std::min(cols.in, std::size_t{workspace::most_bytes}), tap_vectors * V::size);
  }

  // Scratch memory, in numbers of A.
  window_layout input_windows() const { return windows_of_input<V>(rows, cols, block, inputs); }
  window_layout output_windows() const { return windows_of_output<V>(rows, cols, block, outputs); }
  std::size_t forward_numbers() const {
    const window_layout in = input_windows();
    return in.elements(inputs) + workspace::product(outputs, in.tile);
  }
  std::size_t parameter_numbers() const {
    const window_layout in = input_windows();
    return in.elements(inputs) + workspace::product(outputs, in.tile) + in.tile +
           workspace::product(3, V::size, sums_of_group());
  }
  std::size_t input_numbers() const {
    const window_layout of = output_windows();
    return of.elements(outputs) + workspace::product(together, of.tile) +
           workspace::product(together, block, input_row());
  }
  /// Sums of parameter gradients of a group: an output has its weights and its bias.
  std::size_t sums_of_group() const { return workspace::product(outputs, taps_of_output() + 1); }

  /// Taps of the outputs: channel, row, column.
  template <class T>
  void pack_forward(heads_view<const T> w, packed_taps<A> to) const {
    const window_layout in = input_windows();
    std::size_t t = 0;
    for (std::size_t c = 0; c < inputs; ++c)
      for (std::size_t u = 0; u < rows.taps; ++u)
        for (std::size_t v = 0; v < cols.taps; ++v, ++t) {
          to.offset[t] = c * in.channel() + u * in.by_tap * in.line() + v % cols.period() * in.width + cols.steps(v);
          for (std::size_t o = 0; to.weight != nullptr && o < groups * outputs; ++o)
            to.weight[(o / outputs * to.count + t) * outputs + o % outputs] = static_cast<A>(w.at(o, c, u)[v]);
        }
  }

  /// Taps of the inputs: by remainders of row and column, and then channel, row, column. Those of remainders (m, n) are
  /// [first[k], first[k + 1]) with k = m * cols.remainders() + n.
  template <class T>
  void pack_backward(heads_view<const T> w, packed_taps<A> to, std::size_t* first) const {
    const window_layout of = output_windows();
    std::size_t t = 0;
    for (std::size_t m = 0; m < rows.remainders(); ++m)
      for (std::size_t n = 0; n < cols.remainders(); ++n) {
        *first++ = t;
        for (std::size_t o = 0; o < outputs; ++o)
          for (std::size_t u = m; u < rows.taps; u += rows.period())
            for (std::size_t v = n; v < cols.taps; v += cols.period(), ++t) {
              const std::size_t slot = of.shared ? rows.reach() - rows.steps(u) : u;
              to.offset[t] = o * of.channel() + slot * of.line() + (cols.reach() - cols.steps(v));
              for (std::size_t c = 0; c < groups * inputs; ++c)
                to.weight[(c / inputs * to.count + t) * inputs + c % inputs] =
                    static_cast<A>(w.at(c / inputs * outputs + o, c % inputs, u)[v]);
            }
      }
    *first = t;
  }

  /// What the rows of outputs from `first` on, columns [column, column + n), read of x.
  template <class T>
  void load_inputs(heads_view<const T> x, std::size_t b, std::size_t group, std::size_t first, std::size_t count,
                   std::size_t column, std::size_t n, A* to) const {
    const window_layout in = input_windows();
    const std::size_t length = round_up(n, tap_vectors * V::size) + cols.reach();
    const std::size_t used = in.shared ? (count - 1) * rows.stride + rows.span() + 1 : count * rows.taps;
    for (std::size_t c = 0; c < inputs; ++c)
      for (std::size_t slot = 0; slot < used; ++slot) {
        const std::size_t padded =
            rows.stride * first +
            (in.shared ? slot : rows.stride * (slot / rows.taps) + rows.dilation * (slot % rows.taps));
        const bool inside = padded >= rows.padding && padded - rows.padding < rows.in;
        const std::size_t y = inside ? padded - rows.padding : 0;
        const T* const row = x.at(b, group * inputs + c, y);
        for (std::size_t m = 0; m < in.phases; ++m) {
          const std::size_t at = cols.stride * column + cols.remainder(m);
          load_line<V>(row, static_cast<std::ptrdiff_t>(at) - static_cast<std::ptrdiff_t>(cols.padding), cols.stride,
                       inside ? y + 1 : 0, to + c * in.channel() + slot * in.line() + m * in.width, length);
        }
      }
  }

  /// A block of rows of y: the sums up to the diagonal, and zeros.
  template <class T>
  void forward(heads_view<const T> x, heads_view<T> y, std::size_t task, packed_taps<A> taps, const A* start,
               A* scratch) const {
    const window_layout in = input_windows();
    const std::size_t blocks = output_blocks(), b = task / blocks / groups, group = task / blocks % groups;
    const std::size_t first = task % blocks * block, out = rows.out(), count = std::min(block, out - first);
    A* const sums = scratch + in.elements(inputs);
    for (std::size_t column = 0; column < first + count; column += in.tile) {
      const std::size_t n = std::min(in.tile, first + count - column);
      load_inputs<T>(x, b, group, first, count, column, n, scratch);
      for (std::size_t r = 0; r < count; ++r) {
        if (first + r < column) continue;
        const std::size_t some = std::min(n, first + r + 1 - column);
        sum_taps<V>(taps.of(group, outputs, scratch + r * in.by_row * in.line()), 0,
                    start == nullptr ? nullptr : start + group * outputs, line_list<A>{sums, in.tile, outputs}, some);
        for (std::size_t o = 0; o < outputs; ++o)
          store_line<V>(sums + o * in.tile, y.at(b, group * outputs + o, first + r) + column, some);
      }
    }
    for (std::size_t o = 0; o < outputs; ++o)
      for (std::size_t i = first; i < first + count; ++i) clear_above_diagonal(y.at(b, group * outputs + o, i), i, out);
  }

  /// Zeros in row i of a plane of so many columns.
  template <class T>
  static void clear_above_diagonal(T* row, std::size_t i, std::size_t columns) {
    std::memset(static_cast<void*>(row + i + 1), 0, (columns - i - 1) * sizeof(T));
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_PLANE_CONVOLUTION_HPP

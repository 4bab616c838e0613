// Gradients of the convolution of plane_convolution.hpp.
#ifndef TIGON_OPS_ATTENTION_PLANE_GRADIENTS_HPP
#define TIGON_OPS_ATTENTION_PLANE_GRADIENTS_HPP

#include <tigon/ops/attention/plane_convolution.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

template <class V>
struct plane_gradients : plane_convolution<V> {
  using base = plane_convolution<V>;
  using A = typename V::value_type;
  using base::block, base::plain, base::together, base::rows, base::cols, base::batch, base::groups, base::inputs,
      base::outputs;

  explicit plane_gradients(const base& of) : base(of) {}

  /// `count` rows of `some` inputs from `channel` on: row `first` and those that follow.
  struct input_rows {
    std::size_t b, group, channel, some, first, count;
  };

  /// The gradient of these rows of the input up to the diagonal; that of row r of input k begins at
  /// to + (k * block + r) * input_row().
  template <class T>
  void of_input(heads_view<const T> dy, input_rows in, packed_taps<A> taps, const std::size_t* starts, A* to,
                A* scratch) const {
    const window_layout of = this->output_windows();
    A* const sums = scratch + of.elements(outputs);
    const std::size_t length = this->input_row(), base_column = cols.padding / cols.stride;
    if (cols.stride != 1 || rows.stride != 1)  // where no output reads
      std::memset(static_cast<void*>(to), 0, in.some * block * length * sizeof(A));
    const std::size_t end = (in.first + in.count - 1 + cols.padding) / cols.stride + 1 - base_column;
    for (std::size_t column = 0; column < end; column += of.tile) {
      const std::size_t n = std::min(of.tile, end - column);
      load_outputs<T>(dy, in, base_column + column, n, scratch);
      for (std::size_t r = 0; r < in.count; ++r) {
        const std::size_t y = in.first + r, padded = y + rows.padding;
        const std::size_t last = (y + cols.padding) / cols.stride - base_column;  // column of the diagonal
        const std::size_t m = row_remainder(padded % rows.stride);
        if (m == rows.remainders() || last < column) continue;
        const std::size_t some = std::min(n, last + 1 - column);
        const std::size_t slot =
            of.shared ? padded / rows.stride - (in.first + rows.padding) / rows.stride : r * of.by_row;
        for (std::size_t k = 0; k < cols.remainders(); ++k) {
          const std::size_t* const range = starts + m * cols.remainders() + k;
          tap_list<A> part = taps.of(in.group, inputs, scratch + slot * of.line());
          part.offset += range[0], part.weight += range[0] * inputs, part.count = range[1] - range[0];
          if (cols.stride == 1) {
            sum_taps<V>(part, in.channel, nullptr, line_list<A>{to + r * length + column, block * length, in.some},
                        some);
            continue;
          }
          sum_taps<V>(part, in.channel, nullptr, line_list<A>{sums, of.tile, in.some}, some);
          for (std::size_t c = 0; c < in.some; ++c)
            spread(sums + c * of.tile, some, (base_column + column) * cols.stride + cols.remainder(k), y,
                   to + (c * block + r) * length);
        }
      }
    }
  }

  /// Sums of parameter gradients of the blocks slice, slice + slices, ...: sums_of_group() numbers at `result`, an
  /// output's weights and then its bias.
  template <class T>
  void of_parameters(heads_view<const T> x, heads_view<const T> dy, std::size_t group, std::size_t slice,
                     const std::size_t* offset, bool of_weights, double* result, A* scratch) const {
    const window_layout in = this->input_windows();
    const std::size_t blocks = this->output_blocks(), out = rows.out(), taps = this->taps_of_output();
    const std::size_t sums_of = this->sums_of_group(), numbers = sums_of * V::size;
    A* const lines = scratch + in.elements(inputs);
    A* const ones = lines + outputs * in.tile;
    A* const sums = ones + in.tile;
    for (std::size_t j = 0; j < in.tile; ++j) ones[j] = A(1);
    std::memset(static_cast<void*>(sums), 0, 3 * numbers * sizeof(A));
    std::size_t added = 0;  // terms of the plain sums
    for (std::size_t unit = slice; unit < batch * blocks; unit += this->slices()) {
      const std::size_t b = unit / blocks, first = unit % blocks * block, count = std::min(block, out - first);
      for (std::size_t column = 0; column < first + count; column += in.tile) {
        const std::size_t n = std::min(in.tile, first + count - column);
        if (of_weights) this->template load_inputs<T>(x, b, group, first, count, column, n, scratch);
        for (std::size_t i = std::max(first, column); i < first + count; ++i) {
          const std::size_t some = std::min(n, i + 1 - column), vectors = ceil_div(some, V::size);
          for (std::size_t o = 0; o < outputs; ++o)
            load_line<V>(dy.at(b, group * outputs + o, i), static_cast<std::ptrdiff_t>(column), 1, i + 1,
                         lines + o * in.tile, vectors * V::size);
          for (std::size_t k = 0; k < vectors; k += plain) {
            const std::size_t terms = std::min(plain, vectors - k), at = k * V::size;
            if (added + terms > plain) {
              simd::add_to_total<V, simd::sums_after::zero>(sums, sums + numbers, sums + 2 * numbers, numbers);
              added = 0;
            }
            added += terms;
            const line_list<const A> d{lines + at, in.tile, outputs};
            const std::size_t none = 0;
            if (of_weights)
              add_tap_products<V>(scratch + (i - first) * in.by_row * in.line() + at, offset, taps, d, sums, taps + 1,
                                  terms);
            add_tap_products<V>(ones, &none, 1, d, sums + taps * V::size, taps + 1, terms);
          }
        }
      }
    }
    simd::add_to_total<V, simd::sums_after::same>(sums, sums + numbers, sums + 2 * numbers, numbers);
    for (std::size_t k = 0; k < sums_of; ++k) {
      double high = 0, low = 0;
      for (std::size_t lane = 0; lane < V::size; ++lane) {
        high += static_cast<double>(sums[numbers + k * V::size + lane]);
        low += static_cast<double>(sums[2 * numbers + k * V::size + lane]);
      }
      result[k] = high + low;
    }
  }

 private:
  /// Which of the taps' remainders this is; remainders() where it is none.
  std::size_t row_remainder(std::size_t remainder) const {
    std::size_t m = 0;
    while (m < rows.remainders() && rows.remainder(m) != remainder) ++m;
    return m;
  }

  /// to[first + stride * t - padding] = line[t] as far as that is in [0, last].
  void spread(const A* line, std::size_t n, std::size_t first, std::size_t last, A* to) const {
    for (std::size_t t = 0, x = first; t < n; ++t, x += cols.stride)
      if (x >= cols.padding && x - cols.padding <= last) to[x - cols.padding] = line[t];
  }

  /// What these rows of the input, tile [column, column + n), take from dy up to its diagonal.
  template <class T>
  void load_outputs(heads_view<const T> dy, input_rows in, std::size_t column, std::size_t n, A* to) const {
    const window_layout of = this->output_windows();
    const std::size_t out = rows.out(), length = round_up(n, tap_vectors * V::size) + cols.reach();
    const std::size_t low = (in.first + rows.padding) / rows.stride,
                      high = (in.first + in.count - 1 + rows.padding) / rows.stride;
    const std::size_t used = of.shared ? high - low + 1 + rows.reach() : in.count * rows.taps;
    for (std::size_t o = 0; o < outputs; ++o)
      for (std::size_t slot = 0; slot < used; ++slot) {
        const std::size_t to_row = of.shared ? low + slot : (in.first + slot / rows.taps + rows.padding) / rows.stride,
                          less = of.shared ? rows.reach() : rows.steps(slot % rows.taps);
        const bool inside = to_row >= less && to_row - less < out;
        const std::size_t i = inside ? to_row - less : 0;
        load_line<V>(dy.at(in.b, in.group * outputs + o, i),
                     static_cast<std::ptrdiff_t>(column) - static_cast<std::ptrdiff_t>(cols.reach()), 1,
                     inside ? i + 1 : 0, to + o * of.channel() + slot * of.line(), length);
      }
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_PLANE_GRADIENTS_HPP

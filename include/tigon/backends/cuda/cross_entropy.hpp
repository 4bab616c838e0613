// Cross entropy on a GPU. A row is taken below the logit of its label, so that one sum is all there is to reduce; where
// that overflows, below its maximum.
#ifndef TIGON_BACKENDS_CUDA_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_CUDA_CROSS_ENTROPY_HPP

#include <tigon/backends/cuda/backend.hpp>
#include <tigon/backends/cuda/labels.hpp>
#include <tigon/backends/cuda/powers.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// Cross entropy of a row, as losses/cross_entropy.hpp has it. Z: logits; D: their gradient, which may lie where they
/// do. Weighted: columns have weights in the uniform part of label smoothing.
template <bool Capped, bool Weighted, class Z, class D, class I>
struct cross_entropy_of_rows {
  using element = Z;
  static constexpr row_passes passes = row_passes::several;
  using A = accumulator_t<Z>;
  using V = simd::vec<simd::cuda, A>;
  using lanes = typename V::lanes;
  using terms_type = tigon::detail::cross_entropy_terms<A>;

  matrix_view<const Z> logits;
  matrix_view<D> dlogits;  ///< without memory: not computed
  unsigned cols;
  labels_of_rows<I> labels;
  const A* weight;  ///< of classes; null: 1
  loss_scale<A> scale;
  cross_entropy_rows out;
  terms_type without_scale;
  tigon::detail::logits_kind<Capped, A> kind;

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride) &&
           (dlogits.data == nullptr || gpu::begins_accesses<N>(dlogits.data, dlogits.row_stride));
  }
  TIGON_DEVICE_INLINE const Z* row_of(std::size_t i) const { return logits.data + i * logits.row_stride; }
  TIGON_DEVICE_INLINE I target_of(std::size_t i) const { return labels.target[i]; }
  TIGON_DEVICE_INLINE auto label_of(I target, std::size_t i) const { return labels.of(target, row_of(i)); }
  /// What all rows need.
  TIGON_DEVICE_INLINE terms_type shared() const {
    terms_type terms = without_scale;
    terms.a = static_cast<A>(scale.on_device->main), terms.b = static_cast<A>(scale.on_device->z);
    terms.weight_sum = static_cast<A>(scale.on_device->weight_sum);
    return terms;
  }

  template <class Part, class Label>
  TIGON_DEVICE_INLINE void row(Part& part, std::size_t i, const Label& label, const terms_type& terms) const {
    if (!label.counts) return clear(part, i, label);
    const auto own = static_cast<A>(label.own);
    const A up = scale.upstream == nullptr ? A(1) : scale.upstream[i * scale.upstream_step];
    const unsigned t = label.column;
    if (out.predicted != nullptr) predict(part, i);
    const A w_t = weight == nullptr ? A(1) : weight[t];
    if constexpr (!Capped) {
      const powers_below<narrow> to_add(own);
      A sum[1 + Weighted] = {};
      part.each([&](unsigned j, const auto& e) { add_below(sum, j, e, to_add, own, t); });
      part.template reduce<add>(sum);
      const A d = sum[0] * to_add.factor, p_t = A(1) / (A(1) + d);
      // The label's logit is the top: log p_t = -log1p(d), and p_t - 1 = -d p_t.
      const A token = terms.token_scaling ? up * p_t : up;
      const A of_z = terms.z == A(0) ? A(0) : A(2) * terms.b * terms.z * (own + math::log1p(d));
      const A uniform = (A(1) - terms.smoothing) * w_t + terms.uniform * terms.weight_sum;
      const A factor = token * (terms.a * uniform + of_z) * p_t;
      if (d <= A(0x1p100f) && own - own == A(0) && factor - factor == A(0)) {
        const A subtract = terms.subtract(token);
        const powers_below<sizeof(D) == 2> powers(own);
        const A of_power = factor * powers.factor;
        if (dlogits.data != nullptr) {
          part.map(dlogits.row(i), [&](unsigned j, const auto& e) {
            return mapped<D>(e, [&](A v, int u) {
              const A p = normal_product(powers.of(v), of_power);
              return Weighted ? p - weight_of(j + static_cast<unsigned>(u)) * subtract : p;
            });
          });
          if (part.has(t)) {
            const A main = terms.uniform * (terms.weight_sum * p_t - w_t) - (A(1) - terms.smoothing) * w_t * (d * p_t);
            dlogits.row(i)[t] = as_element<D>(token * (terms.a * main + of_z * p_t));
          }
        }
        if (part.first()) terms.put_loss(out, i, terms.of(kind, own, own, d, w_t), Weighted ? sum[Weighted] : A(0));
        return;
      }
    }
    below_maximum(part, i, t, own, w_t, up, terms);
  }

 private:
  static constexpr bool narrow = sizeof(Z) == 2;

  TIGON_DEVICE_INLINE A weight_of(unsigned j) const { return weight == nullptr ? A(1) : weight[j]; }
  // factor * of(v) is e^(v - own). Rough: for the sum of 16-bit logits, which do not determine it better, and for
  // gradients of 16 bits.
  struct exact_powers_below {
    A own, factor = A(1);
    explicit TIGON_DEVICE_INLINE exact_powers_below(A of) : own(of) {}
    TIGON_DEVICE_INLINE A of(A v) const { return exponential(v - own); }
  };
  template <bool Rough>
  static auto powers_type() {
    if constexpr (Rough)
      return std::type_identity<typename lanes::rough_exp_below>();
    else
      return std::type_identity<exact_powers_below>();
  }
  template <bool Rough>
  using powers_below = typename decltype(powers_type<Rough>())::type;

  // sum[0] += e^(z - own) of all columns but the label's; sum[1] += w (z - own).
  template <int N, std::size_t K, class Powers>
  TIGON_DEVICE_INLINE void add_below(A (&sum)[K], unsigned j, const elements<N, Z>& e, const Powers& powers, A own,
                                     unsigned t) const {
    const auto add_all = [&](auto is_label) {
      numbers_of<A>(e, [&](int u, A v) {
        const A p = powers.of(v);
        sum[0] += is_label(u) ? A(0) : p;
        if constexpr (Weighted) {
          const A w = weight_of(j + static_cast<unsigned>(u));
          if (w != A(0)) sum[1] += w * (v - own);
        }
      });
    };
    if (t - j < static_cast<unsigned>(N))
      add_all([&](int u) { return j + static_cast<unsigned>(u) == t; });
    else
      add_all([](int) { return false; });
  }

  // A row that does not count, or whose label is out of range.
  template <class Part, class Label>
  TIGON_DEVICE_INLINE void clear(Part& part, std::size_t i, const Label& label) const {
    if (part.first()) {
      tigon::detail::put_ignored(out, i);
      if (!label.is_ignored) out.loss[i] = std::numeric_limits<double>::quiet_NaN();
    }
    if (dlogits.data != nullptr) part.clear(dlogits.row(i));
  }

  // The smallest column of the largest logit; it is -1 where terms.put_loss finds the row to be NaN.
  template <class Part>
  TIGON_DEVICE_INLINE void predict(Part& part, std::size_t i) const {
    const A top = largest_of_row<A>(part, -std::numeric_limits<A>::infinity());
    double first[1] = {-std::numeric_limits<double>::infinity()};  // minus the column
    part.each([&](unsigned j, const auto& e) {
      numbers_of<A>(e, [&](int u, A v) {
        if (v == top) first[0] = larger::join(first[0], -static_cast<double>(j + static_cast<unsigned>(u)));
      });
    });
    part.template reduce<larger>(first);
    if (part.first()) out.predicted[i] = static_cast<std::int64_t>(-first[0]);
  }

  // Below the row's maximum, whose own 1 is left out of the sum. Slopes of caps are here; gradients that are 0 stay so
  // for any upstream gradient.
  template <class Part>
  TIGON_DEVICE_NOINLINE void below_maximum(Part& part, std::size_t i, unsigned t, A own, A w_t, A up,
                                           const terms_type& terms) const {
    const A largest = kind.top_of(largest_of_row<A>(part, -std::numeric_limits<A>::infinity()));
    const auto from = kind.from(largest);
    A sum[3] = {};  // e^s but where it is 1, how many are 1, w s
    part.each([&](unsigned j, const auto& e) {
      numbers_of<A>(e, [&](int u, A v) {
        const A s = from.distance(V(v)).r, p = exponential(s);
        sum[0] += p == A(1) ? A(0) : p, sum[1] += p == A(1) ? A(1) : A(0);
        if constexpr (Weighted) {
          const A w = weight_of(j + static_cast<unsigned>(u));
          if (w != A(0)) sum[2] += w * s;
        }
      });
    });
    part.template reduce<add>(sum);
    const auto r = terms.of(kind, largest, own, sum[0] + (sum[1] - A(1)), w_t);
    if (part.first()) terms.put_loss(out, i, r, sum[2]);
    if (dlogits.data == nullptr) return;
    up *= r.token;
    const A factor = terms.factor(r, up), subtract = terms.subtract(up);
    part.map(dlogits.row(i), [&](unsigned j, const auto& e) {
      return mapped<D>(e, [&](A v, int u) {
        const A p = exponential(from.distance(V(v)).r);
        A d = p == A(0) ? A(0) : p * factor;
        if constexpr (Weighted) d -= weight_of(j + static_cast<unsigned>(u)) * subtract;
        if constexpr (Capped) d *= from.both(V(v)).slope.r;
        return normal_product(d, A(1));
      });
    });
    if (part.has(t)) dlogits.row(i)[t] = as_element<D>(terms.at_target(r, up, kind, own));
  }
};

/// y = g x of rows, with one number for all of them or one a row; a 0 stays 0 for any g.
template <class T>
__global__ void __launch_bounds__(256)
    multiply_rows(matrix_view<const T> x, const accumulator_t<T>* g, std::size_t step, matrix_view<T> y) {
  using A = accumulator_t<T>;
  const std::size_t i = blockIdx.y, j = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  for (std::size_t row = i; row < x.rows; row += gridDim.y)
    if (j < x.cols) {
      const A v = static_cast<A>(x.row(row)[j]);
      y.row(row)[j] = as_element<T>(v == A(0) ? v : v * g[row * step]);
    }
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::cross_entropy, backends::cuda> {
  template <class T>
  using saved = std::span<T>;  // dlogits
  template <class A>
  using rows = gpu::rows_of_losses<A>;

  /// Reports labels out of range.
  template <class I>
  static void check_labels(std::string_view op, std::span<const I> target, std::size_t vocab, std::int64_t ignore_index,
                           context& ctx) {
    gpu::launch(ctx, gpu::check_labels<I>, dim3(1), dim3(1024),
                gpu::labels_of_rows<I>{target.data(), ignore_index, gpu::columns(vocab)}, target.size(), op.data(),
                gpu::report_of(gpu::stream_of(ctx)));
  }

  /// dlogits, of Z or narrower, may lie where the rows of logits begin.
  template <backend B, element Z, token_id I, element D>
  static void forward(matrix_view<const Z> logits, std::span<const I> target, const accumulator_t<Z>* class_weight,
                      matrix_view<D> dlogits, cross_entropy_rows out, gpu::loss_scale<accumulator_t<Z>> scale,
                      cross_entropy_options opt, context& ctx) {
    const auto run = [&]<bool Capped, bool Weighted>() {
      using A = accumulator_t<Z>;
      const unsigned cols = gpu::columns(logits.cols);
      const gpu::cross_entropy_of_rows<Capped, Weighted, Z, D, I> loss{
          logits,
          dlogits,
          cols,
          {target.data(), opt.ignore_index, cols},
          class_weight,
          scale,
          out,
          {opt, {}, out, logits.cols},
          tigon::detail::logits_kind<Capped, A>::of(opt.softcap)};
      gpu::each_row_of_logits(ctx, loss, logits.rows);
    };
    if (opt.softcap > 0)
      run.template operator()<true, true>();
    else if (opt.label_smoothing > 0)
      run.template operator()<false, true>();
    else
      run.template operator()<false, false>();
  }

  template <backend B, element T>
  static void backward(in_matrix<T> saved_dlogits, std::span<const accumulator_t<T>> upstream, matrix_view<T> dlogits,
                       context& ctx) {
    if (dlogits.rows == 0) return;
    constexpr unsigned threads = 256;
    const dim3 grid(gpu::blocks(tigon::detail::ceil_div(dlogits.cols, threads)),
                    static_cast<unsigned>(std::min<std::size_t>(dlogits.rows, 65535)));
    gpu::launch(ctx, gpu::multiply_rows<T>, grid, dim3(threads), saved_dlogits, upstream.data(),
                upstream.size() == 1 ? std::size_t{0} : std::size_t{1}, dlogits);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_CROSS_ENTROPY_HPP

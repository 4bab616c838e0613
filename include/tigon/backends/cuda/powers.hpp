// Exponentials of rows of logits on a GPU, and their sums below the maximum.
#ifndef TIGON_BACKENDS_CUDA_POWERS_HPP
#define TIGON_BACKENDS_CUDA_POWERS_HPP

#include <tigon/backends/cuda/lanes.hpp>
#include <tigon/backends/cuda/logits.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/softmax/row_softmax.hpp>
#include <tigon/losses/softmax/selective_log_softmax_options.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// a b, and 0 where that is below the smallest normal number.
TIGON_DEVICE_INLINE float normal_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  float c;
  asm("mul.ftz.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  const float c = a * b;
  return std::fabs(c) < std::numeric_limits<float>::min() ? 0 : c;
#endif
}
TIGON_DEVICE_INLINE double normal_product(double a, double b) {
  const double c = a * b;
  return (c < 0 ? -c : c) < std::numeric_limits<double>::min() ? 0 : c;
}

/// e^x
TIGON_DEVICE_INLINE float exponential(float x) { return simd::cuda::lanes<float>::exp(x); }
TIGON_DEVICE_INLINE double exponential(double x) { return math::exp(x); }

/// Which e^x: rough for logits of 16 bits, which do not determine it better, and for results of 16 bits. Fast ones, by
/// the GPU's own powers of two, are too small by 5e-8 on average, and a sum of them is, too; centred ones err to both
/// sides.
enum class exponentials { rough, fast, centred };
template <class D>
inline constexpr exponentials exponentials_for = sizeof(D) == 2 ? exponentials::rough : exponentials::centred;

/// e^(below / temperature) for the distance `below` <= 0 from a maximum; unless centred, in f32 it is 0 where it is
/// below the smallest normal number.
template <exponentials Of, class A>
struct tempered_powers : tigon::detail::tempered<A> {
  using V = simd::vec<simd::cuda, A>;
  TIGON_INLINE tempered_powers(double temperature) : tigon::detail::tempered<A>(temperature), power_(1 / temperature) {}
  explicit TIGON_INLINE tempered_powers(tigon::detail::tempered<A> by)
      : tigon::detail::tempered<A>(by), power_(static_cast<double>(by.inverse) + static_cast<double>(by.rest)) {}

  TIGON_DEVICE_INLINE A of(A below) const {
    if constexpr (Of == exponentials::centred || !std::is_same_v<A, float>)
      return math::exp(this->exact() ? below * this->inverse : this->distance(V(below)).r);
    else
      return Of == exponentials::rough ? power_.rough(below) : power_.of(below);
  }

 private:
  simd::cuda::lanes<float>::exp_of_multiple power_;
};

/// N elements of D, from N numbers: value(number, which of them).
template <class D, int N, class Z, class F>
TIGON_DEVICE_INLINE elements<N, D> mapped(const elements<N, Z>& e, F value) {
  using A = accumulator_t<Z>;
  A d[N];
  numbers_of<A>(e, [&](int u, A v) { d[u] = value(v, u); });
  elements<N, D> of;
  of.set_all(d);
  return of;
}

/// The largest number of a row, at least `least`.
template <class A, class Part>
TIGON_DEVICE_INLINE A largest_of_row(Part& part, A least) {
  A top[1] = {least};
  part.each([&](unsigned, const auto& e) { numbers_of<A>(e, [&](int, A v) { top[0] = larger::join(top[0], v); }); });
  part.template reduce<larger>(top);
  return top[0];
}

/// Adds an exponential to the first sum, or where it is 1 to the second.
template <class A>
TIGON_DEVICE_INLINE void add_apart(A (&sums)[2], A p) {
  if (p == A(1))
    sums[1] += A(1);
  else
    sums[0] += p;
}

/// The sum of e^((v - top) / temperature) without the maximum's own 1, where a sum less that would cancel.
template <class A, class Part, class Powers>
TIGON_DEVICE_INLINE A rest_of_row(Part& part, const Powers& powers, A top) {
  A apart[2] = {A(0), A(0)};
  part.each(
      [&](unsigned, const auto& e) { numbers_of<A>(e, [&](int, A v) { add_apart(apart, powers.of(v - top)); }); });
  part.template reduce<add>(apart);
  return apart[0] + (apart[1] - A(1));
}

/// A row's log-sum-exp in two parts, in one pass: every thread below its own maximum so far. `more`: what the part adds
/// up in this pass besides; they are joined with its sums.
template <class A, class Part, class Powers, class... More>
TIGON_DEVICE_INLINE lse_parts<A> lse_of_row(Part& part, const Powers& powers, More&... more) {
  A top = std::numeric_limits<A>::lowest(), apart[2] = {A(0), A(0)};
  part.each([&](unsigned, const auto& e) {
    A most = top;
    numbers_of<A>(e, [&](int, A v) { most = larger::join(v, most); });
    if (most > top) apart[0] = (apart[0] + apart[1]) * powers.of(top - most), apart[1] = 0, top = most;
    numbers_of<A>(e, [&](int, A v) { add_apart(apart, powers.of(v - top)); });
  });
  A all[1] = {top};
  part.template reduce<larger>(all);
  if (top != all[0]) apart[0] = (apart[0] + apart[1]) * powers.of(top - all[0]), apart[1] = A(0);
  A sums[2 + sizeof...(More)] = {apart[0], apart[1], more...};
  part.template reduce<add>(sums);
  int k = 2;
  ((more = sums[k++]), ...);
  return {all[0], sums[0] + (sums[1] - A(1))};
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_POWERS_HPP

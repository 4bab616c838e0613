// A stand-in for later versions of xsimd, made of xsimd 8: hadd is reduce_add (from 9 on) and adds in another order
// (10), bitwise_cast is told the type of a number, not of a batch (11), and where one operand is a NaN, min and max
// keep the first. The old names are gone.
#pragma GCC system_header  // which may have include_next
#include <xsimd/config/xsimd_config.hpp>

#if XSIMD_VERSION_MAJOR > 8
#include_next <xsimd/xsimd.hpp>
#else
#define hadd hadd_of_xsimd_8
#define bitwise_cast bitwise_cast_of_xsimd_8
#include_next <xsimd/xsimd.hpp>
#undef hadd
#undef bitwise_cast

namespace xsimd {

template <class T, class A>
T reduce_add(const batch<T, A>& x) {
  T sum = 0;
  for (std::size_t i = 0; i < batch<T, A>::size; ++i) sum += x.get(i);
  return sum;
}
template <class Out, class In, class A>
batch<Out, A> bitwise_cast(const batch<In, A>& x) {
  return bitwise_cast_of_xsimd_8<batch<Out, A> >(x);
}
// No templates: they are preferred to those of xsimd 8.
inline batch<float> min(const batch<float>& a, const batch<float>& b) { return min<float, default_arch>(b, a); }
inline batch<float> max(const batch<float>& a, const batch<float>& b) { return max<float, default_arch>(b, a); }
inline batch<double> min(const batch<double>& a, const batch<double>& b) { return min<double, default_arch>(b, a); }
inline batch<double> max(const batch<double>& a, const batch<double>& b) { return max<double, default_arch>(b, a); }

}  // namespace xsimd
#endif

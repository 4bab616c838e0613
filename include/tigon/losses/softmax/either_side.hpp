// A word for functions that threads of a device call as well as the host, and the one that all losses of this kind
// call. On CPUs the word says nothing, so that compilers decide there what they inline, as of any other function.
#ifndef TIGON_LOSSES_SOFTMAX_EITHER_SIDE_HPP
#define TIGON_LOSSES_SOFTMAX_EITHER_SIDE_HPP

#include <tigon/config.hpp>

#include <cstddef>
#include <span>

#if defined(TIGON_DEVICE_CODE)
#define TIGON_EITHER_SIDE __host__ __device__
#else
#define TIGON_EITHER_SIDE
#endif

namespace tigon::detail {
inline namespace TIGON_ABI {

/// to[i] = value; nothing where `to` has no memory, because nobody wants it.
template <class A>
TIGON_EITHER_SIDE void put_where_wanted(std::span<A> to, std::size_t i, double value) {
  if (to.data() != nullptr) to[i] = static_cast<A>(value);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_SOFTMAX_EITHER_SIDE_HPP

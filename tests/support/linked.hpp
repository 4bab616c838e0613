// A backend whose kernels are compiled once for all programs of the suite: linked<B> calls what B has by functions that
// are not inlined. Those that several programs call are declared in kernels.hpp and compiled by the build; any other is
// compiled where it is called, so that a list that lacks one costs time and nothing else.
#ifndef TIGON_TESTS_SUPPORT_LINKED_HPP
#define TIGON_TESTS_SUPPORT_LINKED_HPP

#include <tigon/backend/choices.hpp>
#include <tigon/backend/kernel.hpp>
#include <tigon/backend/lookup.hpp>
#include <tigon/backend/operator.hpp>
#include <tigon/backends/highway/backend.hpp>
#include <tigon/rows/row.hpp>
#include <type_traits>

namespace tigon::op {
// Defined by their headers.
#define TIGON_TESTS_DECLARE(name) struct name;
TIGON_OPERATORS(TIGON_TESTS_DECLARE)
#undef TIGON_TESTS_DECLARE
}  // namespace tigon::op

namespace tigon::backends {
inline namespace TIGON_ABI {
struct linked_highway;
}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace tigon::test {

/// The types that a kernel is called with besides those of its operands.
template <class...>
struct kernel_types {};

/// Sizes of chunks that the backend of a call names, which kernels that are compiled once read while they run.
inline thread_local chunk_tuning chunk_of_call;
struct chunk_for_call {
  chunk_tuning before = chunk_of_call;
  explicit chunk_for_call(chunk_tuning now) { chunk_of_call = now; }
  chunk_for_call(const chunk_for_call&) = delete;
  chunk_for_call& operator=(const chunk_for_call&) = delete;
  ~chunk_for_call() { chunk_of_call = before; }
};
template <std::size_t chunk_tuning::*Size>
struct size_of_call {
  operator std::size_t() const { return chunk_of_call.*Size; }
};
template <class B>
struct of_any_chunk : B {
  struct sizes {
    static constexpr chunk_rule rule = chunk_rule::budget;
    size_of_call<&chunk_tuning::logits_bytes> logits_bytes;
    size_of_call<&chunk_tuning::least_rows> least_rows;
    operator chunk_tuning() const { return chunk_of_call; }
  };
  static constexpr sizes chunk{};
};

/// kernel<Op, ...>::forward<B, T...>(x...), and backward.
template <class Op, class B, class... T, class... X>
TIGON_NOINLINE void linked_forward(kernel_types<T...>, X&... x) {
  kernel_for<Op, B>::template forward<of_any_chunk<B>, T...>(x...);
}
template <class Op, class B, class... T, class... X>
TIGON_NOINLINE void linked_backward(kernel_types<T...>, X&... x) {
  kernel_for<Op, B>::template backward<of_any_chunk<B>, T...>(x...);
}

/// All operators but products, which are called with functions of their callers (shared_products.hpp).
template <class, class, class, class... Ops>
struct all_but_products {
  using type = op_list<Ops...>;
};
#define TIGON_TESTS_NAME(name) , op::name
using linked_operators = all_but_products<void TIGON_OPERATORS(TIGON_TESTS_NAME)>::type;
#undef TIGON_TESTS_NAME
static_assert(!linked_operators::contains<op::gemm> && !linked_operators::contains<op::matmul_int8_int2>);

template <class B>
struct linked : B {
  using self = linked;
  using parent = B;
  using overrides = linked_operators;
  static constexpr backend_info info = B::info;
};

/// Whether Self is linked<B> or that with chunks of another size, which it says by `chunked` and `unchunked`, and not a
/// backend of it that steers the same kernels by other numbers of its own.
template <class Self, class B>
inline constexpr bool is_linked = std::is_same_v<Self, linked<B>> || std::is_same_v<Self, backends::linked_highway>;
template <class Self, class B>
  requires std::is_same_v<Self, typename Self::chunked>
inline constexpr bool is_linked<Self, B> = is_linked<typename Self::unchunked, B>;

}  // namespace tigon::test

namespace tigon {

template <class Op, class B>
  requires(test::linked<B>::overrides::template contains<Op>)
struct kernel<Op, test::linked<B>> : kernel_for<Op, B> {
  template <class Self, class... T, class... X>
  static void forward(X&&... x) {
    if constexpr (test::is_linked<Self, B>) {
      const test::chunk_for_call chunk(Self::chunk);
      test::linked_forward<Op, B>(test::kernel_types<T...>{}, x...);
    } else {
      kernel_for<Op, B>::template forward<Self, T...>(x...);
    }
  }
  template <class Self, class... T, class... X>
  static void backward(X&&... x) {
    if constexpr (test::is_linked<Self, B>) {
      const test::chunk_for_call chunk(Self::chunk);
      test::linked_backward<Op, B>(test::kernel_types<T...>{}, x...);
    } else {
      kernel_for<Op, B>::template backward<Self, T...>(x...);
    }
  }
};

namespace detail {
template <class Op, class B>
struct kernel_owner<Op, test::linked<B>> : kernel_owner<Op, provider_t<Op, B>> {};
}  // namespace detail

namespace backends {
inline namespace TIGON_ABI {
/// The default of programs that link kernels: a default is named and not an alias, so that headers can declare it.
struct linked_highway : test::linked<highway> {};
}  // namespace TIGON_ABI
}  // namespace backends

}  // namespace tigon

#endif  // TIGON_TESTS_SUPPORT_LINKED_HPP

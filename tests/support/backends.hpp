// The backends and element types on which every operator is tested.
#ifndef TIGON_TESTS_SUPPORT_BACKENDS_HPP
#define TIGON_TESTS_SUPPORT_BACKENDS_HPP

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <tigon/simd/vec.hpp>

#include "backend_list.hpp"

namespace tigon::test {

/// One pair of a typed test: `using B = typename TypeParam::backend; using T = typename TypeParam::element;`
template <class B, class T>
struct on {
  using backend = B;
  using element = T;
};

template <class T, class... B>
list<on<B, T>...> with_element(list<B...>);
template <class... P>
testing::Types<P...> as_types(list<P...>);

/// TYPED_TEST_SUITE(softmax, every_pair_of<float>, names)
template <class... T>
using every_pair_of = decltype(as_types((with_element<T>(engine_backends{}) + ...)));

/// For operators with golden values, which are compared on every engine in f32 and bf16: the tests of a contract run in
/// these on two.
using every_pair =
    decltype(as_types(with_element<float>(half_backends{}) + with_element<bfloat16>(half_backends{}) +
                      with_element<float16>(engine_backends{}) + with_element<double>(engine_backends{})));

/// For those that take long to compile, too: f16 differs from bf16 in loads and stores alone, and is seen on two
/// engines.
using most_pairs = decltype(as_types(with_element<float>(half_backends{}) + with_element<bfloat16>(half_backends{}) +
                                     with_element<float16>(half_backends{}) + with_element<double>(engine_backends{})));

/// For operators with products inside, which a child of highway overrides.
template <class T>
using product_backends = std::conditional_t<std::same_as<T, bfloat16>, all_backends, wide_product_backends>;
template <class... T>
using every_product_pair_of = decltype(as_types((with_element<T>(product_backends<T>{}) + ...)));
using every_product_pair = every_product_pair_of<float, bfloat16, float16, double>;

struct names {
  template <class P>
  static std::string GetName(int) {
    return std::string(P::backend::info.name) + "_" + std::string(element_name<typename P::element>());
  }
};

/// Says once a run which instruction set and how many lanes were tested, so that a narrow build cannot hide.
class print_lanes : public testing::Environment {
 public:
  void SetUp() override { print(all_backends{}); }

 private:
  template <class... B>
  static void print(list<B...>) {
    std::printf("instruction set %s\n", TIGON_STRING(TIGON_TARGET));
    (std::printf("  %-12s %2zu lanes of f32, %2zu of f64\n", std::string(B::info.name).c_str(),
                 simd::vec<typename B::engine, float>::size, simd::vec<typename B::engine, double>::size),
     ...);
  }
};
inline testing::Environment* const lanes_printer = testing::AddGlobalTestEnvironment(new print_lanes);

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_BACKENDS_HPP

// The backends and element types on which every operator is tested.
#ifndef TIGON_TESTS_SUPPORT_BACKENDS_HPP
#define TIGON_TESTS_SUPPORT_BACKENDS_HPP

#include <gtest/gtest.h>

#include <concepts>
#include <cstdio>
#include <string>
#include <tigon/backend/kernel.hpp>
#include <tigon/simd/vec.hpp>

#include "backend_list.hpp"
#include "typed.hpp"

namespace tigon::test {

/// One pair of a typed test: `using B = typename TypeParam::backend; using T = typename TypeParam::element;`
template <class B, class T>
struct on {
  using backend = B;
  using element = T;
};

/// Products by Eigen. Their last bits depend on how many rows are multiplied at a time.
template <class B>
inline constexpr bool products_by_eigen = std::same_as<provider_t<op::gemm, B>, backends::generic>;

template <class T, class... B>
list<on<B, T>...> with_element(list<B...>);
template <class... P>
testing::Types<P...> as_types(list<P...>);

#if defined(TIGON_TESTS_ENGINES) || defined(TIGON_TESTS_ALL_PAIRS)
template <class Pairs>
using if_engines = Pairs;
#else
template <class>
using if_engines = list<>;
#endif
/// `Few`, and `More` with TIGON_TESTS_ENGINES: `with_engines<list<on<generic, double>>, on<eigen, float16>>`.
template <class Few, class... More>
using with_engines = decltype(as_types(Few{} + if_engines<list<More...> >{}));

/// TYPED_TEST_SUITE(softmax, pairs_of<float>, names): single numbers, and lanes.
template <class... T>
using pairs_of = decltype(as_types((with_element<T>(half_backends{}) + ...)));

#if defined(TIGON_CONFORMANCE_BACKEND) && defined(TIGON_CONFORMANCE_ELEMENT)

using every_pair = testing::Types<on<usual_backend, TIGON_CONFORMANCE_ELEMENT> >;
using every_product_pair = every_pair;

#elif defined(TIGON_CONFORMANCE_BACKEND)

using every_pair = pairs_of<float, bfloat16, float16, double>;
using every_product_pair = every_pair;

#elif defined(TIGON_TESTS_FEW_PAIRS)  // .ci/mutants: what compiles fast

using every_pair = testing::Types<on<backends::generic, double>, on<backends::highway, float> >;
using every_product_pair = every_pair;

#elif defined(TIGON_TESTS_ALL_PAIRS)

template <class... B>
using with_every_element = decltype(with_element<float>(list<B...>{}) + with_element<bfloat16>(list<B...>{}) +
                                    with_element<float16>(list<B...>{}) + with_element<double>(list<B...>{}));
using all_pairs = with_every_element<backends::generic, backends::eigen, backends::xsimd, backends::highway>;
using every_pair = decltype(as_types(all_pairs{}));
using every_product_pair = decltype(as_types(all_pairs{} + with_element<bfloat16>(dot_backends{}) +
                                             with_element<bfloat16>(onednn_backends{})));

#else

/// One pair of each engine that is not the default.
using other_engines =
    list<on<one_vector_a_step<backends::eigen>, float16>, on<one_vector_a_step<backends::xsimd>, double> >;

/// Single numbers in f64, and the default's lanes in f32; with TIGON_TESTS_ENGINES bf16, every engine and every type,
/// and f64 where lanes are many. An operator is a template over both: what a pair alone can break are loads, stores and
/// lanes. Those are tested for all pairs in tests/simd; bf16 on the default's lanes by golden values and by tests/fuzz.
using every_pair = decltype(as_types(list<on<single_numbers, double>, on<usual_backend, float> >{} +
                                     if_engines<list<on<usual_backend, bfloat16> > >{} + if_engines<other_engines>{}));

/// For operators with products inside, which a child of highway overrides.
using bf16_backends = decltype(list<backends::highway>{} + dot_backends{} + onednn_backends{});
using every_product_pair =
    decltype(as_types(list<on<single_numbers, double>, on<usual_backend, float> >{} + if_engines<other_engines>{} +
                      if_engines<decltype(with_element<bfloat16>(bf16_backends{}))>{}));

#endif

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

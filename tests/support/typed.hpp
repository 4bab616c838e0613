// TYPED_TEST_SUITE and TYPED_TEST in a tenth of GoogleTest's code, which registers each test for each type by a
// function of its own: that was a tenth of a test's object. Used, written and named as GoogleTest's.
#ifndef TIGON_TESTS_SUPPORT_TYPED_HPP
#define TIGON_TESTS_SUPPORT_TYPED_HPP

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tigon::test {

using make_test = testing::Test* (*)();

/// Adds a test for each type of its suite. Apart, so that it is compiled once.
[[gnu::noinline]] inline bool add_typed_test(const char* suite, const char* test, const char* file, int line,
                                             const std::vector<std::string>& names, const make_test* make) {
  for (std::size_t k = 0; k < names.size(); ++k)
    testing::RegisterTest((std::string(suite) + '/' + names[k]).c_str(), test, nullptr, nullptr, file, line,
                          [one = make[k]] { return one(); });
  return true;
}

struct numbers {
  template <class>
  static std::string GetName(int k) {
    return std::to_string(k);
  }
};

/// A suite: its types, and what names them.
template <class Types, class Names = numbers>
struct typed_suite;
template <class... P, class Names>
struct typed_suite<testing::Types<P...>, Names> {
  [[gnu::noinline]] static std::vector<std::string> names() {
    std::vector<std::string> out;
    int k = 0;
    (out.push_back(Names::template GetName<P>(k++)), ...);
    return out;
  }
  template <template <class> class Test>
  static constexpr make_test makers[] = {&Test<P>::make...};
};

}  // namespace tigon::test

#undef TYPED_TEST_SUITE
#undef TYPED_TEST
/// TYPED_TEST_SUITE(softmax, pairs, names): softmax is a template of a fixture, pairs a testing::Types.
#define TYPED_TEST_SUITE(suite, ...) using types_of_##suite##_ = ::tigon::test::typed_suite<__VA_ARGS__>
#define TYPED_TEST(suite, name)                                                                      \
  template <class T_>                                                                                \
  class suite##_##name##_Test : public suite<T_> {                                                   \
   public:                                                                                           \
    using TypeParam = T_;                                                                            \
    using TestFixture = suite<T_>;                                                                   \
    static testing::Test* make() { return new suite##_##name##_Test; }                               \
    void TestBody() override;                                                                        \
  };                                                                                                 \
  [[maybe_unused]] static const bool suite##_##name##_added_ =                                       \
      ::tigon::test::add_typed_test(#suite, #name, __FILE__, __LINE__, types_of_##suite##_::names(), \
                                    types_of_##suite##_::makers<suite##_##name##_Test>);             \
  template <class T_>                                                                                \
  void suite##_##name##_Test<T_>::TestBody()

#endif  // TIGON_TESTS_SUPPORT_TYPED_HPP

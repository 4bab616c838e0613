// A refused call: its code, its sentence, and that nothing was written.
#ifndef TIGON_TESTS_SUPPORT_THROWS_HPP
#define TIGON_TESTS_SUPPORT_THROWS_HPP

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tigon/core/error.hpp>
#include <type_traits>

#include "guarded.hpp"

namespace tigon::test {

/// Whether `call(of)` fails as it should; its sentence. Apart, so that it is compiled once for all calls.
TIGON_TEST_NOINLINE inline testing::AssertionResult refused(void (*call)(void*), void* of, error_code code,
                                                            std::string_view part, std::string& sentence) {
  try {
    call(of);
  } catch (const error& e) {
    sentence = e.what();
    if (e.code() != code)
      return testing::AssertionFailure() << "code " << error_code_name(e.code()) << " instead of "
                                         << error_code_name(code) << ": \"" << sentence << '"';
    if (sentence.find(part) == sentence.npos)
      return testing::AssertionFailure() << '"' << sentence << "\" does not say \"" << part << '"';
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "accepted; expected to be refused with \"" << part << '"';
}
TIGON_TEST_NOINLINE inline testing::AssertionResult refused_too_late(const std::string& sentence) {
  return testing::AssertionFailure() << "refused with \"" << sentence << "\" after something was written";
}

/// `outputs` are guarded buffers; their bits after the call have to be those before it.
template <class Call, class... Outputs>
testing::AssertionResult refuses(Call&& call, error_code code, std::string_view part, const Outputs&... outputs) {
  using made = std::remove_reference_t<Call>;
  const auto before = bits_of(outputs...);
  std::string sentence;
  auto result = refused([](void* of) { (*static_cast<made*>(of))(); },
                        const_cast<void*>(static_cast<const void*>(&call)), code, part, sentence);
  return result && bits_of(outputs...) != before ? refused_too_late(sentence) : result;
}

}  // namespace tigon::test

/// EXPECT_TIGON_ERROR(rms_norm_forward<B>(...), shape, "rms_norm: w is of 3 elements; expected 4", y, rstd);
#define EXPECT_TIGON_ERROR(call, code, part, ...) \
  EXPECT_TRUE(::tigon::test::refuses([&] { call; }, ::tigon::error_code::code, part __VA_OPT__(, ) __VA_ARGS__))

#endif  // TIGON_TESTS_SUPPORT_THROWS_HPP

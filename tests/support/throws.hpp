// A refused call: its code, its sentence, and that nothing was written.
#ifndef TIGON_TESTS_SUPPORT_THROWS_HPP
#define TIGON_TESTS_SUPPORT_THROWS_HPP

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tigon/core/error.hpp>

#include "guarded.hpp"

namespace tigon::test {

/// `outputs` are guarded buffers; their bits after the call have to be those before it.
template <class Call, class... Outputs>
testing::AssertionResult refuses(Call&& call, error_code code, std::string_view part, const Outputs&... outputs) {
  const auto before = bits_of(outputs...);
  try {
    call();
  } catch (const error& e) {
    const std::string_view sentence = e.what();
    if (e.code() != code)
      return testing::AssertionFailure() << "code " << error_code_name(e.code()) << " instead of "
                                         << error_code_name(code) << ": \"" << sentence << '"';
    if (sentence.find(part) == sentence.npos)
      return testing::AssertionFailure() << '"' << sentence << "\" does not say \"" << part << '"';
    if (bits_of(outputs...) != before)
      return testing::AssertionFailure() << "refused with \"" << sentence << "\" after something was written";
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "accepted; expected to be refused with \"" << part << '"';
}

}  // namespace tigon::test

/// EXPECT_TIGON_ERROR(rms_norm_forward<B>(...), shape, "rms_norm: w is of 3 elements; expected 4", y, rstd);
#define EXPECT_TIGON_ERROR(call, code, part, ...) \
  EXPECT_TRUE(::tigon::test::refuses([&] { call; }, ::tigon::error_code::code, part __VA_OPT__(, ) __VA_ARGS__))

#endif  // TIGON_TESTS_SUPPORT_THROWS_HPP

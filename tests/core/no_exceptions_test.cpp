// Errors of a program without exceptions (-fno-exceptions): the handler gets the code and the sentence, and nothing is
// written.
#include <gtest/gtest.h>

#include <tigon/ops/softmax.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#if defined(__cpp_exceptions)
#error "this test is about programs without exceptions"
#endif

namespace {

void call_of_other_shapes() {
  std::vector<float> x(3 * 8, 1.0f), y(2 * 8, 7.0f);
  tigon::softmax_forward(tigon::matrix_view(x.data(), 3, 8), tigon::matrix_view(y.data(), 2, 8));
}

void prints_and_exits(tigon::error_code code, const char* sentence) {
  std::fprintf(stderr, "%s: %s\n", std::string(tigon::error_code_name(code)).c_str(), sentence);
  std::exit(3);
}

TEST(without_exceptions_DeathTest, the_default_handler_prints_the_sentence_and_aborts) {
  EXPECT_EXIT(call_of_other_shapes(), testing::KilledBySignal(SIGABRT),
              "^tigon: softmax_forward: y is 2 x 8; expected 3 x 8");
}

TEST(without_exceptions_DeathTest, a_handler_gets_code_and_sentence) {
  tigon::current_error_handler() = prints_and_exits;
  EXPECT_EXIT(call_of_other_shapes(), testing::ExitedWithCode(3),
              "^shape: tigon: softmax_forward: y is 2 x 8; expected 3 x 8");
}

TEST(without_exceptions_DeathTest, a_handler_that_returns_is_followed_by_abort) {
  tigon::current_error_handler() = [](tigon::error_code, const char*) {};
  EXPECT_EXIT(call_of_other_shapes(), testing::KilledBySignal(SIGABRT), "^$");
}

}  // namespace

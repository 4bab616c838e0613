// Every case of every linked operator, on every backend, against the bar of the fixtures.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "runners.hpp"

namespace {

class golden_case : public testing::Test {
 public:
  golden_case(const golden::folder& fixtures, golden::problem problem, golden::runner runner)
      : fixtures_(fixtures), problem_(std::move(problem)), runner_(runner) {}

  void TestBody() override {
    const golden::results got = runner_.run(problem_);
    ASSERT_FALSE(problem_.reference.empty());
    for (const auto& [name, reference] : problem_.reference) {
      ASSERT_TRUE(got.contains(name)) << problem_.op << " gave no " << name;
      const auto verdict = golden::judge(problem_, name, got.at(name), fixtures_.error_of(problem_, name));
      EXPECT_TRUE(verdict.passes) << verdict.sentence;
    }
  }

 private:
  const golden::folder& fixtures_;
  golden::problem problem_;
  golden::runner runner_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* wish = std::getenv("TIGON_GOLDEN_DIR");
  try {
    static const golden::folder fixtures(wish != nullptr ? wish : TIGON_GOLDEN_FOLDER);
    std::size_t count = 0;
    for (const golden::runner& runner : golden::runners()) {
      if (wish != nullptr && !fixtures.has(std::string(runner.op))) continue;  // a foreign folder may hold less
      for (const golden::problem& p : fixtures.problems(std::string(runner.op))) {
        if (p.dtype != runner.dtype) continue;
        testing::RegisterTest(("golden_" + p.op).c_str(),
                              (std::string(runner.backend) + '_' + p.name + '_' + p.dtype).c_str(), nullptr, nullptr,
                              __FILE__, __LINE__,
                              [p, runner]() -> testing::Test* { return new golden_case(fixtures, p, runner); });
        ++count;
      }
    }
    if (count == 0) {
      std::printf("%s holds no case of this program's operators\n", fixtures.path().c_str());
      return wish != nullptr ? 0 : 1;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
  return RUN_ALL_TESTS();
}

// The operator that docs/add_an_op.md makes, step by step, works.
#include <gtest/gtest.h>

#include <vector>

#include "scale.hpp"

TEST(scale, of_the_guide_computes_what_it_says) {
  std::vector<float> x(3 * 5), s(5), y(15), dx(15), ds(5, 7);
  for (std::size_t i = 0; i < 15; ++i) x[i] = static_cast<float>(i) - 6;
  for (std::size_t j = 0; j < 5; ++j) s[j] = static_cast<float>(j) + 1;
  const tigon::matrix_view in(x.data(), 3, 5), out(y.data(), 3, 5), gradient(dx.data(), 3, 5);
  tigon::scale_forward(in, s, out);
  tigon::scale_backward(out, in, s, tigon::scale_gradients{gradient, ds});  // dy = y
  for (std::size_t j = 0; j < 5; ++j) {
    float sum = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(y[i * 5 + j], s[j] * x[i * 5 + j]);
      EXPECT_EQ(dx[i * 5 + j], s[j] * y[i * 5 + j]);
      sum += y[i * 5 + j] * x[i * 5 + j];
    }
    EXPECT_EQ(ds[j], sum);
  }
  EXPECT_THROW(tigon::scale_forward(in, std::vector<float>(4), out), tigon::error);
}

// Where the rows and parts of views begin, above all of those that have no elements and may have no memory.
#include <tigon/core/views.hpp>

#include <gtest/gtest.h>

namespace {

using tigon::heads_view, tigon::matrix_view;

TEST(views, of_rows_and_columns_begin_at_their_first_element) {
  float memory[100];
  const matrix_view<float> m(memory, 9, 7, 11);
  EXPECT_EQ(m.row(3), memory + 33);
  EXPECT_EQ(m.rows_from(2, 4).data, memory + 22);
  EXPECT_EQ(m.cols_from(5, 2).row(1), memory + 16);
  const heads_view<float> h(memory, 2, 3, 4, 3, 50, 12, 3);
  EXPECT_EQ(h.at(1, 1, 2), memory + 68);
  EXPECT_EQ(h.head(1, 2).row(1), memory + 77);
}

TEST(views, without_elements_address_nothing) {
  float* const none = nullptr;
  const matrix_view<float> no_columns(none, 9, 0, 11), no_rows(none, 0, 7, 11);
  EXPECT_EQ(no_columns.row(3), none);
  EXPECT_EQ(no_columns.rows_from(2, 4).data, none);
  EXPECT_EQ(no_rows.cols_from(5, 2).data, none);
  const heads_view<float> no_channels(none, 2, 3, 4, 0, 50, 12, 3), no_tokens(none, 2, 3, 0, 3, 50, 12, 3);
  EXPECT_EQ(no_channels.at(1, 1, 2), none);
  EXPECT_EQ(no_channels.head(1, 2).row(1), none);
  EXPECT_EQ(no_tokens.head(1, 2).data, none);
}

}  // namespace

// Declared arguments: what a door throws follows from its declarations.
#include <tigon/core/arguments.hpp>

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace {

using namespace tigon;

/// Code and sentence of what `call` throws, or nothing.
template <class Call>
std::string thrown(Call call) {
  try {
    call();
  } catch (const error& e) {
    return std::string(error_code_name(e.code())) + ": " + e.what();
  }
  return {};
}

struct arguments_of_a_door : testing::Test {
  std::array<float, 64> memory{};
  matrix_view<float> at(std::size_t first, std::size_t rows = 2, std::size_t cols = 4, std::size_t stride = 4) {
    return {memory.data() + first, rows, cols, stride};
  }
  std::span<float> vector(std::size_t first, std::size_t size) { return {memory.data() + first, size}; }

  /// A door of three inputs, of which the vector is optional, and two outputs.
  std::string door(matrix_view<float> x, matrix_view<float> dy, std::span<float> w, matrix_view<float> dx,
                   std::span<float> dw) {
    return thrown([&] {
      arguments args("door");
      args.in("x", x);
      args.in("dy", dy, x.rows, x.cols);
      args.optional_in("w", w, x.cols);
      args.out("dx", dx, x.rows, x.cols).may_be("dy", "x");
      args.out("dw", dw, w.size());
      args.check();
    });
  }
};

TEST_F(arguments_of_a_door, pass_when_disjoint_or_allowed) {
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(20), vector(28, 4)), "");
  EXPECT_EQ(door(at(0), at(0), vector(0, 4), at(20), vector(28, 4)), "") << "inputs may overlap";
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(0), vector(28, 4)), "");
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(8), vector(28, 4)), "");
  EXPECT_EQ(door(at(0), at(0), vector(16, 4), at(0), vector(28, 4)), "");
  EXPECT_EQ(door(at(0), at(8), {}, at(20), {}), "") << "absent vectors overlap nothing";
  EXPECT_EQ(door(at(0, 2, 4, 8), at(16), vector(24, 4), at(4, 2, 4, 8), vector(28, 4)), "") << "halves of rows";
}

TEST_F(arguments_of_a_door, every_output_is_checked_with_every_other_argument) {
  const auto sentence = [](const char* a, const char* b) {
    return std::string("alias: tigon: door: ") + a + " overlaps " + b + "; expected no common memory";
  };
  const auto one_buffer = [](const char* a, const char* b) {
    return std::string("alias: tigon: door: ") + a + " overlaps " + b +
           "; expected the same buffer or no common memory";
  };
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(4), vector(28, 4)), one_buffer("dx", "x"));
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(12), vector(28, 4)), one_buffer("dx", "dy"));
  EXPECT_EQ(door(at(0, 2, 4, 8), at(16), vector(40, 4), at(0), vector(60, 4)), one_buffer("dx", "x")) << "strides";
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(18), vector(28, 4)), sentence("dx", "w"));
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(20), vector(0, 4)), sentence("dw", "x"));
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(20), vector(15, 4)), sentence("dw", "dy"));
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(20), vector(16, 4)), sentence("dw", "w"));
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(20), vector(24, 4)), sentence("dw", "dx"));
}

TEST_F(arguments_of_a_door, shapes_come_before_aliases) {
  EXPECT_EQ(door(at(0), at(8, 3), vector(16, 4), at(2), vector(28, 4)),
            "shape: tigon: door: dy is 3 x 4; expected 2 x 4");
  EXPECT_EQ(door(at(0), at(8), vector(16, 3), at(2), vector(28, 3)),
            "shape: tigon: door: w is of 3 elements; expected 4");
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(2), vector(28, 3)),
            "shape: tigon: door: dw is of 3 elements; expected 4");
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), at(0, 2, 4, 2), vector(28, 4)),
            "stride: tigon: door: dx is of row stride 2; expected at least its 4 columns");
  EXPECT_EQ(door(matrix_view<float>(nullptr, 2, 4), at(8), vector(16, 4), at(0), vector(28, 4)),
            "shape: tigon: door: x is a null pointer; expected 2 x 4 elements");
}

TEST_F(arguments_of_a_door, optional_matrices) {
  const auto door = [&](matrix_view<float> ds, matrix_view<float> dr) {
    return thrown([&] {
      arguments args("door");
      args.in("dy", at(0), 2, 4);
      args.optional_in("ds", ds, 2, 4);
      args.optional_out("dr", dr, 2, 4).may_be("ds");
      args.check();
    });
  };
  EXPECT_EQ(door({}, {}), "");
  EXPECT_EQ(door(matrix_view<float>(nullptr, 7, 9), at(8)), "");
  EXPECT_EQ(door(at(8), at(8)), "");
  EXPECT_EQ(door({}, at(7)), "alias: tigon: door: dr overlaps dy; expected no common memory");
  EXPECT_EQ(door(at(8), at(12)), "alias: tigon: door: dr overlaps ds; expected the same buffer or no common memory");
  EXPECT_EQ(door(at(8, 1), {}), "shape: tigon: door: ds is 1 x 4; expected 2 x 4");
}

TEST_F(arguments_of_a_door, heads_meet_heads_matrices_and_vectors) {
  using heads = heads_view<float>;
  const auto door = [&](heads q, heads out, matrix_view<float> cos, std::span<const int> position) {
    return thrown([&] {
      arguments args("door");
      args.in("q", q, {1, 2, 2, 4});
      args.in("cos", cos);
      args.in("position", position);
      args.out("q_out", out, {1, 2, 2, 4}).may_be("q");
      args.check();
    });
  };
  float* const at = memory.data();
  const std::array<int, 2> position{};
  EXPECT_EQ(door(heads::of_tokens(at, 1, 2, 2, 4), heads::of_heads(at + 16, 1, 2, 2, 4), this->at(40), position), "");
  EXPECT_EQ(door(heads::of_tokens(at, 1, 2, 2, 4), heads::of_tokens(at, 1, 2, 2, 4), this->at(40), position), "");
  EXPECT_EQ(door(heads::of_tokens(at, 1, 2, 2, 4), heads::of_heads(at, 1, 2, 2, 4), this->at(40), position),
            "alias: tigon: door: q_out is q with other strides; expected those of q, to work in place");
  EXPECT_EQ(door(heads::of_tokens(at, 1, 2, 2, 4), heads::of_heads(at + 8, 1, 2, 2, 4), this->at(40), position),
            "alias: tigon: door: q_out overlaps q; expected the same buffer or no common memory");
  EXPECT_EQ(door(heads::of_tokens(at, 1, 2, 2, 4), heads::of_heads(at + 16, 1, 2, 2, 4), this->at(30), position),
            "alias: tigon: door: q_out overlaps cos; expected no common memory");
  // Positions that lie in the memory of the output, as a caller of another language might pass them.
  const std::span<const int> inside(reinterpret_cast<const int*>(at + 31), 2);
  EXPECT_EQ(door(heads::of_tokens(at, 1, 2, 2, 4), heads::of_heads(at + 16, 1, 2, 2, 4), this->at(40), inside),
            "alias: tigon: door: q_out overlaps position; expected no common memory");
}

TEST_F(arguments_of_a_door, inputs_may_repeat_rows_and_outputs_may_not) {
  const auto repeated = [&](std::size_t first) { return at(first, 2, 4, 0); };
  EXPECT_EQ(door(repeated(0), repeated(0), vector(0, 4), at(20), vector(28, 4)), "");
  EXPECT_EQ(door(repeated(0), at(8), vector(16, 4), at(20), vector(4, 4)), "") << "behind the one row of x";
  EXPECT_EQ(door(at(0), at(8), vector(16, 4), repeated(20), vector(28, 4)),
            "stride: tigon: door: dx is of row stride 0; expected at least its 4 columns");
  EXPECT_EQ(door(at(0, 2, 4, 3), at(8), vector(16, 4), at(20), vector(28, 4)),
            "stride: tigon: door: x is of row stride 3; expected at least its 4 columns");
  EXPECT_EQ(door(repeated(0), at(8), vector(16, 4), at(0), vector(28, 4)),
            "alias: tigon: door: dx overlaps x; expected the same buffer or no common memory");
  EXPECT_EQ(door(repeated(0), at(8), vector(16, 4), repeated(0), vector(28, 4)),
            "stride: tigon: door: dx is of row stride 0; expected at least its 4 columns");
  EXPECT_EQ(door(repeated(0), at(8), vector(16, 4), at(20), vector(3, 4)),
            "alias: tigon: door: dw overlaps x; expected no common memory");
}

TEST_F(arguments_of_a_door, sizes_beyond_any_object_are_said_to_overlap) {
  const std::size_t huge = std::size_t{1} << 40;
  EXPECT_EQ(thrown([&] {
              arguments args("door");
              args.in("x", matrix_view<float>(memory.data() + 8, huge, 4, huge));
              args.out("y", at(12));
              args.check();
            }),
            "alias: tigon: door: y overlaps x; expected no common memory");
}

TEST_F(arguments_of_a_door, may_be_takes_an_argument_declared_before_an_output) {
  const auto fault = [](const char* name) {
    return std::string("state: tigon: door: ") + name +
           " is in may_be; expected the name of an argument that was declared before an output";
  };
  EXPECT_EQ(thrown([&] { arguments("door").in("x", at(0)).out("y", at(8)).may_be("z"); }), fault("z"));
  EXPECT_EQ(thrown([&] { arguments("door").in("x", at(0)).out("y", at(8)).may_be("y"); }), fault("y"));
  EXPECT_EQ(thrown([&] { arguments("door").in("x", at(0)).in("y", at(8)).may_be("x"); }), fault("x"));
  EXPECT_EQ(thrown([&] { arguments("door").may_be("x"); }), fault("x"));
  const std::string x = "x";  // a name at another address
  EXPECT_EQ(thrown([&] { arguments("door").in(x, at(0)).out("y", at(0)).may_be("x").check(); }), "");
}

TEST_F(arguments_of_a_door, too_many_are_refused) {
  EXPECT_EQ(thrown([&] {
              arguments args("door");
              for (std::size_t k = 0; k <= arguments::most; ++k) args.in("x", at(0));
            }),
            "state: tigon: door: x is one argument too many; expected at most 28");
}

TEST(error_codes, are_said_by_name) {
  const std::array<const char*, 9> names{"shape", "dtype", "stride",    "alias", "argument",
                                         "index", "state", "workspace", "device"};
  for (std::size_t k = 0; k < names.size(); ++k) EXPECT_EQ(error_code_name(static_cast<error_code>(k)), names[k]);
  EXPECT_EQ(error_code_name(static_cast<error_code>(names.size())), "unknown");
}

// What a vendor's door says of two views at a time.
TEST_F(arguments_of_a_door, pairs_of_views) {
  const expects expect("door");
  const auto heads = [&](std::size_t first) { return heads_view<float>::of_heads(memory.data() + first, 1, 2, 2, 4); };
  const auto overlaps = [](const char* b, const char* expected) {
    return std::string("alias: tigon: door: a overlaps ") + b + "; expected " + expected;
  };
  const char* const apart = "no common memory";
  EXPECT_EQ(thrown([&] { expect.disjoint("a", at(0), "b", at(8)); }), "");
  EXPECT_EQ(thrown([&] { expect.disjoint("a", at(0), "b", at(7)); }), overlaps("b", apart));
  EXPECT_EQ(thrown([&] { expect.disjoint("a", heads(0), "b", heads(16)); }), "");
  EXPECT_EQ(thrown([&] { expect.disjoint("a", heads(0), "b", heads(15)); }), overlaps("b", apart));
  EXPECT_EQ(thrown([&] { expect.disjoint("a", heads(0), "b", at(16)); }), "");
  EXPECT_EQ(thrown([&] { expect.disjoint("a", heads(0), "b", at(15)); }), overlaps("b", apart));
  EXPECT_EQ(thrown([&] { expect.disjoint("a", at(8), "b", heads(16)); }), "");
  EXPECT_EQ(thrown([&] { expect.disjoint("a", at(9), "b", heads(16)); }), overlaps("b", apart));
  EXPECT_EQ(thrown([&] { expect.outside("a", at(0), "b", at(8), "c", heads(7)); }), overlaps("c", apart));
  EXPECT_EQ(thrown([&] { expect.outside("a", heads(0), "b", heads(16), "c", at(12)); }), overlaps("c", apart));

  const char* const one_buffer = "the same buffer or no common memory";
  EXPECT_EQ(thrown([&] { expect.same_or_disjoint("a", at(0), "b", at(0)); }), "");
  EXPECT_EQ(thrown([&] { expect.same_or_disjoint("a", at(0), "b", at(8)); }), "");
  EXPECT_EQ(thrown([&] { expect.same_or_disjoint("a", at(0), "b", at(4)); }), overlaps("b", one_buffer));
  EXPECT_EQ(thrown([&] { expect.same_or_disjoint("a", at(0), "b", at(0, 2, 4, 8)); }), overlaps("b", one_buffer));
  EXPECT_EQ(thrown([&] { expect.same_or_disjoint("a", at(0, 1, 4, 4), "b", at(0, 1, 4, 8)); }), "")
      << "the stride of a single row";
}

}  // namespace

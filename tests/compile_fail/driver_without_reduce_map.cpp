// A driver of rows that lacks what a program needs is refused by a sentence, where the program is run.
// expect: tigon: the driver of this backend (its type rows) has no reduce_map for these groups of operands
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
  struct rows {
    static void map_rows(auto&&...) {}
#ifndef SHOULD_NOT_COMPILE
    static void reduce_map(auto&&...) {}
#endif
  };
};

struct normed {
  static auto reduce(auto x) { return x * x; }
  static float finish(float sum) { return 1 / sum; }
  static auto map(float factor, auto x) { return x * factor; }
};

void use(tigon::context& ctx, tigon::matrix_view<const float> x, tigon::matrix_view<float> y) {
  tigon::reduce_map<acme>(ctx, normed(), tigon::reads(x), tigon::writes(y));
}

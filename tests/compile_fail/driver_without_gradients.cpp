// The same where the driver has the function, and not for these groups of operands: sums over the rows.
// expect: tigon: the driver of this backend (its type rows) has no map_rows for these operands and gradients
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
  struct rows {
#ifdef SHOULD_NOT_COMPILE
    static void map_rows(tigon::context&, auto, auto, auto, tigon::adds_to<>) {}
#else
    static void map_rows(tigon::context&, auto, auto, auto, auto) {}
#endif
  };
};

struct summed {
  static auto map(auto x, auto sum) { return tigon::pack{x, sum + x}; }
};

void use(tigon::context& ctx, tigon::matrix_view<const float> x, tigon::matrix_view<float> y,
         tigon::vector_view<float> sum) {
  tigon::map_rows<acme>(ctx, summed(), tigon::reads(x), tigon::writes(y),
                        tigon::adds_to(tigon::parameter_gradient<float>{sum, tigon::gradient::overwrite}));
}

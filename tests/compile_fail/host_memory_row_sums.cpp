// The same with sums over the rows.
// expect: tigon: this kernel loops over data on the host, and the memory of this backend is elsewhere
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
  static constexpr bool host_memory = false;
  struct rows {
    using row_loops = void;
#ifndef SHOULD_NOT_COMPILE
    using row_sums = void;
#endif
    template <class A>
    static void for_rows(tigon::context&, auto, std::size_t, auto, auto) {}
  };
};

void use(tigon::context& ctx, tigon::matrix_view<const float> x, tigon::vector_view<float> sum) {
  tigon::for_rows<acme, float>(
      ctx, x.rows, x.cols, tigon::adds_to(tigon::parameter_gradient<float>{sum}), [=](auto row) {
        row.map(tigon::reads(x, row.partial(0)), tigon::writes(row.partial(0)), [](auto v, auto s) { return s + v; });
      });
}

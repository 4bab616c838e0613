// A kernel that is written row by row, on a device whose driver has programs alone: it would loop over data on the host.
// expect: tigon: this kernel loops over data on the host, and the memory of this backend is elsewhere
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
  static constexpr bool host_memory = false;
  struct rows {
#ifndef SHOULD_NOT_COMPILE
    using row_loops = void;
#endif
    template <class A>
    static void for_rows(tigon::context&, std::size_t, std::size_t, tigon::simd::row_loop, auto) {}
  };
};

void use(tigon::context& ctx, tigon::matrix_view<const float> x, tigon::matrix_view<float> y) {
  tigon::for_rows<acme, float>(ctx, x.rows, x.cols,
                               [=](auto row) { row.map(tigon::reads(x), tigon::writes(y), [](auto v) { return v; }); });
}

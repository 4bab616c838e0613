// A row program, on a device without a driver: that of a CPU would run it on the host.
// expect: tigon: this kernel loops over data on the host, and the memory of this backend is elsewhere
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
#ifdef SHOULD_NOT_COMPILE
  static constexpr bool host_memory = false;
#endif
};

struct copied {
  static auto map(auto x) { return x; }
};

void use(tigon::context& ctx, tigon::matrix_view<const float> x, tigon::matrix_view<float> y) {
  tigon::map_rows<acme>(ctx, copied(), tigon::reads(x), tigon::writes(y));
}

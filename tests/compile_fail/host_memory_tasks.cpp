// An operator that loops over data in tasks of its own, although the backend lists it.
// expect: tigon: this kernel loops over data on the host, and the memory of this backend is elsewhere
// flags: -DTIGON_BACKEND=generic
#include <tigon/losses/linear/chosen_rows.hpp>
#include <tigon/ops/rms_norm.hpp>

struct acme : tigon::backends::generic {
#ifdef SHOULD_NOT_COMPILE
  static constexpr bool host_memory = false;
#endif
};

void use(tigon::context& ctx, tigon::matrix_view<float> dx, tigon::detail::chosen_rows kept) {
  tigon::detail::put_chosen<acme>(dx, kept, ctx);
}

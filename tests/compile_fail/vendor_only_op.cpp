// An operator that one vendor alone has: its door works there and is a sentence everywhere else.
// expect: tigon: this operator has no kernel in the chosen backend or any of its parents; it belongs to
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

namespace acme_ops {
struct frobnicate {
  static constexpr std::string_view name = "frobnicate";
};
template <class B>
void frobnicate_forward(float& x) {
  tigon::kernel_for<frobnicate, B>::template forward<B>(x);
}
}  // namespace acme_ops

struct acme : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"acme", {tigon::device::cpu}};
  using overrides = tigon::op_list<acme_ops::frobnicate>;
};

template <>
struct tigon::kernel<acme_ops::frobnicate, acme> {
  using forward_only = void;
  template <tigon::backend B>
  static void forward(float& x) {
    x += 1;
  }
};

#ifdef SHOULD_NOT_COMPILE
using chosen = tigon::backends::generic;
#else
using chosen = acme;
#endif
void use(float& x) { acme_ops::frobnicate_forward<chosen>(x); }

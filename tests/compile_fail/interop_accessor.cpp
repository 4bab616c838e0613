// expect: tigon: an mdspan is viewed where its accessor is the default one: plain elements behind a pointer
#include <tigon/interop/mdspan.hpp>

struct extents {
  using index_type = int;
};
struct mapping {
  static constexpr bool is_always_strided() { return true; }
};
/// As std::mdspan with an accessor whose data handle is Handle.
template <class Handle>
struct mdspan {
  using element_type = float;
  using extents_type = extents;
  using mapping_type = mapping;
  static constexpr std::size_t rank() { return 1; }
  int extent(int) const { return 3; }
  int stride(int) const { return 1; }
  Handle data_handle() const { return {}; }
};
#ifdef SHOULD_NOT_COMPILE
struct handle {
  float* pointer;
  operator float*() const { return pointer; }
};
#else
using handle = float*;
#endif
auto view(const mdspan<handle>& m) { return tigon::interop::span_from_mdspan(m); }

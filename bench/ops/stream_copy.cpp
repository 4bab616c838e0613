// No op: a copy and an increment in place, to see that the harness itself reads about 1.0 of its own limit.
#include "ops/table.hpp"
#include "support/buffers.hpp"

#include <cstring>

namespace tigon_bench {

op_entry stream_copy() {
  return {.name = "stream_copy",
          .dims = "rows x cols",
          .dtypes = {dtype::f32, dtype::bf16, dtype::f16, dtype::f64},
          .variants = {{"default", {2048, 4096}, {mode::forward}}, {"in_place", {2048, 4096}, {mode::forward}}},
          .backends = {"libc"},
          .make_plan = [](const request& r) -> plan {
            const std::size_t bytes = r.shape.at(0) * r.shape.at(1) * size_of(r.element);
            const bool in_place = r.variant == "in_place";
            if (r.threads != 1) throw unsupported("copies on one thread only");
            return {
                .limits = {limit_request::stream(1, 1, bytes, in_place)}, .set_up = [=](tigon::context&) -> runnable {
                  const buffer<std::uint32_t> x = uniform<std::uint32_t>(bytes / 4, 0, 100, 1);
                  if (in_place)
                    return {.run =
                                [=] {
                                  for (std::uint32_t& v : x) ++v;
                                },
                            .restore = [=] { fill_uniform(x.span(), 0, 100, 1); },
                            .output_bytes = bytes};
                  const buffer<std::uint32_t> y(bytes / 4);
                  return {.run = [=] { std::memcpy(y.data(), x.data(), bytes); }, .restore = {}, .output_bytes = bytes};
                }};
          }};
}

}  // namespace tigon_bench

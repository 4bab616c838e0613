// Attention on a GPU needs a header of its own, which needs cuDNN's.
// expect: tigon: this backend lists the operator in `overrides`, but no kernel<Op, Backend> is visible: include the header
// flags: -DTIGON_BACKEND=generic -Wno-unknown-pragmas
#include "../cuda/model.hpp"
// Behind it: it says how these are compiled.
#ifndef SHOULD_NOT_COMPILE
#include <tigon/backends/cuda/attention.hpp>
#endif
#include <tigon/backends/cuda/backend.hpp>
#include <tigon/ops/attention.hpp>

void call(tigon::heads_view<float> x, std::span<float> lse) {
  tigon::attention_forward<tigon::backends::cuda>(x, x, x, x, lse);
}

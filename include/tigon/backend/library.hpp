// The backends of the library, in order of preference: one line each, and nowhere else. What the registry says of one
// is in backends/<name>/line.hpp. Read several times, each time for one purpose: backend/read_line.hpp has them.
// clang-format off
#include <tigon/backends/ascend/line.hpp>
#include <tigon/backends/cuda/line.hpp>
#include <tigon/backends/amx/line.hpp>
#include <tigon/backends/avx512_bf16/line.hpp>
#include <tigon/backends/arm_bf16/line.hpp>
#include <tigon/backends/highway/line.hpp>
#include <tigon/backends/onednn/line.hpp>
#include <tigon/backends/xsimd/line.hpp>
#include <tigon/backends/eigen/line.hpp>
#include <tigon/backends/generic/line.hpp>

// What a benchmark case is, and the table through which one file an op offers its cases.
#ifndef TIGON_BENCH_SUPPORT_REGISTRY_HPP
#define TIGON_BENCH_SUPPORT_REGISTRY_HPP

#include <tigon/core/context.hpp>

#include "support/limits.hpp"
#include "support/unsupported.hpp"

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tigon_bench {

enum class dtype { f32, bf16, f16, f64, i8 };
/// no_grad_forward: the results alone, as inference and evaluation need them, nothing made or saved for a backward. Of
/// operators whose forward would do more than that.
enum class mode { forward, backward, full, no_grad_forward };
constexpr bool has_forward(mode m) { return m != mode::backward; }
constexpr bool has_backward(mode m) { return m == mode::backward || m == mode::full; }
using extents = std::vector<std::size_t>;

std::string_view name_of(dtype element);
std::string_view name_of(mode direction);
dtype dtype_named(std::string_view name);
mode mode_named(std::string_view name);
std::size_t size_of(dtype element);

/// "2048x4096" and back.
std::string text_of(const extents& shape);
extents parse_shape(std::string_view text);

/// One row of the table to be: everything that was asked for.
struct request {
  dtype element = dtype::f32;
  std::string backend;
  extents shape;
  std::size_t threads = 1;
  mode direction = mode::forward;
  std::string variant;
};

/// Buffers are alive inside the functions.
struct runnable {
  std::function<void()> run;
  /// Untimed, before every repetition: writes inputs that `run` consumed back. An in-place gradient fed into itself
  /// reaches subnormals or infinity after some dozens of calls and would time their assists.
  std::function<void()> restore;
  /// Bytes of the results beside the workspace that the run writes; the memory row is these plus the workspace.
  std::size_t output_bytes = 0;
};

/// The least work of a case, known before any buffer exists, so that its limit is measured on the memory it will get.
struct plan {
  std::vector<limit_request> limits;                ///< one after the other: a full step is a forward and a backward
  std::function<runnable(tigon::context&)> set_up;  ///< throws `unsupported` for a combination that does not exist

  /// Least traffic where memory binds: every array read once and written once. 0 where arithmetic binds.
  double bytes() const;
  /// 0 where memory binds.
  double flops() const;
};

struct variant_entry {
  std::string name;
  extents shape;            ///< default shape
  std::vector<mode> modes;  ///< the last one holds most memory
  std::string dims = {};    ///< where they are not the op's
};

struct op_entry {
  std::string name;
  std::string dims;  ///< what the numbers of a shape mean: "tokens x hidden"; sweeps know these words (sweep.hpp)
  std::vector<dtype> dtypes;
  std::vector<variant_entry> variants;  ///< the first is the default
  std::vector<std::string> backends;
  std::function<plan(const request&)> make_plan;
};

/// All ops of this build, by name.
const std::vector<op_entry>& ops();

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_REGISTRY_HPP

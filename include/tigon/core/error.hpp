// One exception type, one code per kind of mistake, one sentence per mistake.
#ifndef TIGON_CORE_ERROR_HPP
#define TIGON_CORE_ERROR_HPP

#include <tigon/core/views.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tigon {

enum class error_code {
  shape,      ///< sizes that do not fit together
  dtype,      ///< element types that may not meet
  stride,     ///< a row stride below the row's width
  alias,      ///< buffers that overlap where the contract forbids it
  argument,   ///< a scalar out of its range
  index,      ///< a label, token or position that points outside
  state,      ///< a call in the wrong order
  workspace,  ///< scratch memory that is too small
};

constexpr std::string_view error_code_name(error_code code) {
  switch (code) {
    case error_code::shape: return "shape";
    case error_code::dtype: return "dtype";
    case error_code::stride: return "stride";
    case error_code::alias: return "alias";
    case error_code::argument: return "argument";
    case error_code::index: return "index";
    case error_code::state: return "state";
    case error_code::workspace: return "workspace";
  }
  return "unknown";
}

/// Thrown before the first write. what() is one sentence: operator, argument, what came, what was expected.
class error : public std::invalid_argument {
 public:
  error(error_code code, const std::string& sentence) : std::invalid_argument(sentence), code_(code) {}
  error_code code() const noexcept { return code_; }

 private:
  error_code code_;
};

/// Called instead of throwing where exceptions are switched off; must not return. The default prints and aborts.
using error_handler = void (*)(error_code, const char* sentence);

inline error_handler& current_error_handler() {
  static error_handler handler = [](error_code, const char* sentence) {
    std::fprintf(stderr, "%s\n", sentence);
    std::abort();
  };
  return handler;
}

namespace detail {
inline namespace TIGON_ABI {

[[noreturn]] inline void fail(error_code code, const std::string& sentence) {
#if defined(__cpp_exceptions)
  throw error(code, sentence);
#else
  current_error_handler()(code, sentence.c_str());
  std::abort();
#endif
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_argument(error_code code, std::string_view op,
                                                                       std::string_view argument,
                                                                       const std::string& came,
                                                                       const std::string& expected) {
  fail(code, "tigon: " + std::string(op) + ": " + std::string(argument) + " is " + came + "; expected " + expected);
}

inline std::string shape_text(std::size_t rows, std::size_t cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}

inline std::string number_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

// Views without their element type: a check is compiled once, not once for every door that makes it.
struct extent {
  const void* data;
  std::size_t rows, cols, row_stride, element;

  template <class T>
  extent(matrix_view<T> m) : data(m.data), rows(m.rows), cols(m.cols), row_stride(m.row_stride), element(sizeof(T)) {}

  std::uintptr_t begin() const { return rows == 0 || cols == 0 ? 0 : reinterpret_cast<std::uintptr_t>(data); }
  std::uintptr_t end() const {
    return rows == 0 || cols == 0 ? 0 : begin() + ((rows - 1) * row_stride + cols) * element;
  }
};

struct heads_extent {
  const void* data;
  std::size_t batch, heads, seq_len, head_dim, batch_stride, head_stride, seq_stride;

  template <class T>
  heads_extent(heads_view<T> h)
      : data(h.data),
        batch(h.batch),
        heads(h.heads),
        seq_len(h.seq_len),
        head_dim(h.head_dim),
        batch_stride(h.batch_stride),
        head_stride(h.head_stride),
        seq_stride(h.seq_stride) {}
};

inline bool overlap(extent a, extent b) { return a.begin() < b.end() && b.begin() < a.end(); }

/// Column ranges of one padded buffer: same stride in bytes, and the columns do not meet in any row.
inline bool interleaved(extent a, extent b) {
  const std::size_t stride = a.row_stride * a.element;
  if (stride == 0 || stride != b.row_stride * b.element) return false;
  const auto pa = reinterpret_cast<std::uintptr_t>(a.data), pb = reinterpret_cast<std::uintptr_t>(b.data);
  const std::size_t shift = pa <= pb ? (pb - pa) % stride : (stride - (pa - pb) % stride) % stride;
  return shift >= a.cols * a.element && shift + b.cols * b.element <= stride;
}

}  // namespace TIGON_ABI
}  // namespace detail

inline namespace TIGON_ABI {

/// What a door asks of its arguments; each member throws tigon::error and writes nothing.
/// Shapes, strides and aliasing cost nothing when TIGON_CHECKS is 0.
class expects {
 public:
  explicit expects(std::string_view op) : op_(op) {}

#if TIGON_CHECKS
  /// rows x cols, a row stride no smaller than the width, and memory behind it.
  TIGON_NOINLINE void matrix(std::string_view name, detail::extent m, std::size_t rows, std::size_t cols) const {
    if (m.rows != rows || m.cols != cols)
      detail::fail_argument(error_code::shape, op_, name, detail::shape_text(m.rows, m.cols),
                            detail::shape_text(rows, cols));
    memory(name, m);
  }

  /// A stride no smaller than the width, and memory behind every element.
  TIGON_NOINLINE void memory(std::string_view name, detail::extent m) const {
    if (m.rows > 1 && m.row_stride < m.cols)
      detail::fail_argument(error_code::stride, op_, name, "of row stride " + std::to_string(m.row_stride),
                            "at least its " + std::to_string(m.cols) + " columns");
    if (m.data == nullptr && m.rows != 0 && m.cols != 0)
      detail::fail_argument(error_code::shape, op_, name, "a null pointer",
                            detail::shape_text(m.rows, m.cols) + " elements");
  }

  /// batch x heads x seq_len x head_dim, and strides under which no two elements share an address.
  TIGON_NOINLINE void heads(std::string_view name, detail::heads_extent h, std::size_t batch, std::size_t heads,
                            std::size_t seq_len, std::size_t head_dim) const {
    const auto text = [](std::size_t b, std::size_t n, std::size_t s, std::size_t d) {
      return std::to_string(b) + " sequences x " + std::to_string(n) + " heads x " + std::to_string(s) + " tokens x " +
             std::to_string(d);
    };
    if (h.batch != batch || h.heads != heads || h.seq_len != seq_len || h.head_dim != head_dim)
      detail::fail_argument(error_code::shape, op_, name, text(h.batch, h.heads, h.seq_len, h.head_dim),
                            text(batch, heads, seq_len, head_dim));
    if (batch == 0 || heads == 0 || seq_len == 0 || head_dim == 0) return;
    // From the smallest stride to the largest, each must step over all that lies below it.
    struct axis {
      std::size_t extent, stride;
    } axes[3] = {{batch, h.batch_stride}, {heads, h.head_stride}, {seq_len, h.seq_stride}};
    std::sort(axes, axes + 3, [](axis a, axis b) { return a.stride < b.stride; });
    std::size_t span = head_dim;
    for (const axis a : axes) {
      if (a.extent == 1) continue;
      if (a.stride < span)
        detail::fail_argument(error_code::stride, op_, name, "of a stride of " + std::to_string(a.stride),
                              "at least " + std::to_string(span) + ", so that its elements do not overlap");
      span += (a.extent - 1) * a.stride;
    }
    if (h.data == nullptr)
      detail::fail_argument(error_code::shape, op_, name, "a null pointer", text(batch, heads, seq_len, head_dim));
  }

  TIGON_NOINLINE void size(std::string_view name, std::size_t came, std::size_t expected) const {
    if (came != expected)
      detail::fail_argument(error_code::shape, op_, name, "of " + std::to_string(came) + " elements",
                            std::to_string(expected));
  }

  TIGON_NOINLINE void at_least_one(std::string_view name, std::size_t came) const {
    if (came == 0) detail::fail_argument(error_code::shape, op_, name, "0", "at least 1");
  }

  TIGON_NOINLINE void that(bool holds, error_code code, std::string_view name, const char* came,
                           const char* expected) const {
    if (!holds) detail::fail_argument(code, op_, name, came, expected);
  }

  /// A scalar option: must satisfy `holds`, which is false for NaN.
  TIGON_NOINLINE void option(bool holds, std::string_view name, double came, const char* expected) const {
    if (!holds) detail::fail_argument(error_code::argument, op_, name, detail::number_text(came), expected);
  }

  /// The two views share no byte.
  TIGON_NOINLINE void disjoint(std::string_view a_name, detail::extent a, std::string_view b_name,
                               detail::extent b) const {
    if (overlap(a, b) && !interleaved(a, b)) fail_alias(a_name, b_name, "no common memory");
  }

  /// The two views are the same buffer, or share no byte.
  TIGON_NOINLINE void same_or_disjoint(std::string_view a_name, detail::extent a, std::string_view b_name,
                                       detail::extent b) const {
    const bool same =
        a.data == b.data && a.row_stride * a.element == b.row_stride * b.element && a.element == b.element;
    if (!same && overlap(a, b) && !interleaved(a, b)) fail_alias(a_name, b_name, "the same buffer or no common memory");
  }
#else
  void matrix(std::string_view, detail::extent, std::size_t, std::size_t) const {}
  void memory(std::string_view, detail::extent) const {}
  void heads(std::string_view, detail::heads_extent, std::size_t, std::size_t, std::size_t, std::size_t) const {}
  void size(std::string_view, std::size_t, std::size_t) const {}
  void at_least_one(std::string_view, std::size_t) const {}
  void that(bool, error_code, std::string_view, const char*, const char*) const {}
  void option(bool, std::string_view, double, const char*) const {}
  void disjoint(std::string_view, detail::extent, std::string_view, detail::extent) const {}
  void same_or_disjoint(std::string_view, detail::extent, std::string_view, detail::extent) const {}
#endif

  void eps(double came) const { option(came >= 0 && came <= 1e300, "eps", came, "a number of at least 0"); }

  void finite(std::string_view name, double came) const {
    option(came >= -1e300 && came <= 1e300, name, came, "a finite number");
  }

  /// `a` shares no byte with any of the views that follow by name.
  template <class... Rest>
  void outside(std::string_view a_name, detail::extent a, std::string_view b_name, detail::extent b,
               Rest... rest) const {
    disjoint(a_name, a, b_name, b);
    if constexpr (sizeof...(Rest) > 0) outside(a_name, a, rest...);
  }

 private:
  [[noreturn]] __attribute__((noinline, cold)) void fail_alias(std::string_view a, std::string_view b,
                                                               const char* expected) const {
    detail::fail(error_code::alias, "tigon: " + std::string(op_) + ": " + std::string(a) + " overlaps " +
                                        std::string(b) + "; expected " + expected);
  }

  std::string_view op_;
};

}  // namespace TIGON_ABI
}  // namespace tigon

#endif  // TIGON_CORE_ERROR_HPP

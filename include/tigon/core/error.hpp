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

}  // namespace TIGON_ABI
}  // namespace detail

inline namespace TIGON_ABI {

/// What a door asks of its arguments; each member throws tigon::error and writes nothing.
/// Shapes, strides and aliasing cost nothing when TIGON_CHECKS is 0.
class expects {
 public:
  explicit expects(std::string_view op) : op_(op) {}

  /// rows x cols, a row stride no smaller than the width, and memory behind it.
  template <class T>
  void matrix(std::string_view name, matrix_view<T> m, std::size_t rows, std::size_t cols) const {
#if TIGON_CHECKS
    if (m.rows != rows || m.cols != cols)
      detail::fail_argument(error_code::shape, op_, name, detail::shape_text(m.rows, m.cols),
                            detail::shape_text(rows, cols));
    memory(name, m);
#else
    (void)name, (void)m, (void)rows, (void)cols;
#endif
  }

  /// A stride no smaller than the width, and memory behind every element.
  template <class T>
  void memory(std::string_view name, matrix_view<T> m) const {
#if TIGON_CHECKS
    if (m.rows > 1 && m.row_stride < m.cols)
      detail::fail_argument(error_code::stride, op_, name, "of row stride " + std::to_string(m.row_stride),
                            "at least its " + std::to_string(m.cols) + " columns");
    if (m.data == nullptr && m.rows != 0 && m.cols != 0)
      detail::fail_argument(error_code::shape, op_, name, "a null pointer",
                            detail::shape_text(m.rows, m.cols) + " elements");
#else
    (void)name, (void)m;
#endif
  }

  /// batch x heads x seq_len x head_dim, and strides under which no two elements share an address.
  template <class T>
  void heads(std::string_view name, heads_view<T> h, std::size_t batch, std::size_t heads, std::size_t seq_len,
             std::size_t head_dim) const {
#if TIGON_CHECKS
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
#else
    (void)name, (void)h, (void)batch, (void)heads, (void)seq_len, (void)head_dim;
#endif
  }

  void size(std::string_view name, std::size_t came, std::size_t expected) const {
#if TIGON_CHECKS
    if (came != expected)
      detail::fail_argument(error_code::shape, op_, name, "of " + std::to_string(came) + " elements",
                            std::to_string(expected));
#else
    (void)name, (void)came, (void)expected;
#endif
  }

  void at_least_one(std::string_view name, std::size_t came) const {
#if TIGON_CHECKS
    if (came == 0) detail::fail_argument(error_code::shape, op_, name, "0", "at least 1");
#else
    (void)name, (void)came;
#endif
  }

  void that(bool holds, error_code code, std::string_view name, const char* came, const char* expected) const {
#if TIGON_CHECKS
    if (!holds) detail::fail_argument(code, op_, name, came, expected);
#else
    (void)holds, (void)code, (void)name, (void)came, (void)expected;
#endif
  }

  /// A scalar option: must satisfy `holds`, which is false for NaN.
  void option(bool holds, std::string_view name, double came, const char* expected) const {
#if TIGON_CHECKS
    if (!holds) detail::fail_argument(error_code::argument, op_, name, detail::number_text(came), expected);
#else
    (void)holds, (void)name, (void)came, (void)expected;
#endif
  }

  void eps(double came) const { option(came >= 0 && came <= 1e300, "eps", came, "a number of at least 0"); }

  void finite(std::string_view name, double came) const {
    option(came >= -1e300 && came <= 1e300, name, came, "a finite number");
  }

  /// `a` shares no byte with any of the views that follow by name.
  template <class T, class U, class... Rest>
  void outside(std::string_view a_name, matrix_view<T> a, std::string_view b_name, matrix_view<U> b,
               Rest... rest) const {
    disjoint(a_name, a, b_name, b);
    if constexpr (sizeof...(Rest) > 0) outside(a_name, a, rest...);
  }

  /// The two views share no byte.
  template <class T, class U>
  void disjoint(std::string_view a_name, matrix_view<T> a, std::string_view b_name, matrix_view<U> b) const {
#if TIGON_CHECKS
    if (overlap(a, b) && !interleaved(a, b)) fail_alias(a_name, b_name, "no common memory");
#else
    (void)a_name, (void)a, (void)b_name, (void)b;
#endif
  }

  /// The two views are the same buffer, or share no byte.
  template <class T, class U>
  void same_or_disjoint(std::string_view a_name, matrix_view<T> a, std::string_view b_name, matrix_view<U> b) const {
#if TIGON_CHECKS
    const bool same = static_cast<const void*>(a.data) == static_cast<const void*>(b.data) &&
                      a.row_stride * sizeof(T) == b.row_stride * sizeof(U) && sizeof(T) == sizeof(U);
    if (!same && overlap(a, b) && !interleaved(a, b)) fail_alias(a_name, b_name, "the same buffer or no common memory");
#else
    (void)a_name, (void)a, (void)b_name, (void)b;
#endif
  }

 private:
  struct bytes {
    std::uintptr_t begin, end;
  };
  template <class T>
  static bytes range(matrix_view<T> m) {
    if (m.rows == 0 || m.cols == 0) return {0, 0};
    const auto begin = reinterpret_cast<std::uintptr_t>(m.data);
    return {begin, begin + ((m.rows - 1) * m.row_stride + m.cols) * sizeof(T)};
  }
  template <class T, class U>
  static bool overlap(matrix_view<T> a, matrix_view<U> b) {
    const bytes p = range(a), q = range(b);
    return p.begin < q.end && q.begin < p.end;
  }
  /// Column ranges of one padded buffer: same stride in bytes, and the columns do not meet in any row.
  template <class T, class U>
  static bool interleaved(matrix_view<T> a, matrix_view<U> b) {
    const std::size_t stride = a.row_stride * sizeof(T);
    if (stride == 0 || stride != b.row_stride * sizeof(U)) return false;
    const auto pa = reinterpret_cast<std::uintptr_t>(a.data), pb = reinterpret_cast<std::uintptr_t>(b.data);
    const std::size_t shift = pa <= pb ? (pb - pa) % stride : (stride - (pa - pb) % stride) % stride;
    return shift >= a.cols * sizeof(T) && shift + b.cols * sizeof(U) <= stride;
  }
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

// One exception type, one code per kind of mistake, one sentence per mistake.
#ifndef TIGON_CORE_ERROR_HPP
#define TIGON_CORE_ERROR_HPP

#include <tigon/core/overlap.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tigon {

enum class error_code {
  shape,      ///< sizes that do not fit together
  dtype,      ///< element types that may not meet
  stride,     ///< a row stride below the row's width, or strides under which a view overlaps itself
  alias,      ///< buffers that overlap where the contract forbids it
  argument,   ///< a scalar out of its range
  index,      ///< a label, token or position that points outside
  state,      ///< a call in the wrong order
  workspace,  ///< scratch memory that is too small
  device,     ///< what a device reports of its own
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
    case error_code::device: return "device";
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

/// The magnitudes that a scalar option may have beside 0, in the type in which the operator uses it: that of its sums,
/// f32, or f64 for f64. What is finite in f64 may be infinite in f32, and what is above 0 may be 0 there or lack
/// digits: a division by zero, or another formula. So every option of every operator is 0 or a normal number of that
/// type, of f64 one up to 1e300; an eps, which is added to a number, may be subnormal, with the digits that it then
/// has.
struct option_range {
  const char* type;
  double least, most;

  /// Reciprocals are finite.
  template <class A>
  static constexpr option_range of() {
    using limits = std::numeric_limits<A>;
    if constexpr (sizeof(A) == sizeof(double)) return {"f64", limits::min(), 1e300};
    return {"f32", limits::min(), limits::max()};
  }
  constexpr option_range from(double new_least) const { return {type, new_least, most}; }
  constexpr bool holds(double value) const {
    const double magnitude = value < 0 ? -value : value;
    return value == 0 || (magnitude >= least && magnitude <= most);
  }
};

/// What a call does with a view. What is only read may have strides of 0: an axis along which all elements are one.
enum class view_use { read, written };

/// Checks of the arguments of a public function; each member throws tigon::error and writes nothing. Shapes, strides
/// and aliasing cost nothing when TIGON_CHECKS is 0.
class expects {
 public:
  explicit expects(std::string_view op) : op_(op) {}

#if TIGON_CHECKS
  /// rows x cols, a row stride no smaller than the width, or 0 in what is read, and memory behind it.
  TIGON_NOINLINE void matrix(std::string_view name, detail::extent m, std::size_t rows, std::size_t cols,
                             view_use of = view_use::written) const {
    if (m.rows != rows || m.cols != cols)
      detail::fail_argument(error_code::shape, op_, name, detail::shape_text(m.rows, m.cols),
                            detail::shape_text(rows, cols));
    memory(name, m, of);
  }

  /// A stride no smaller than the width, or 0 in what is read, and memory behind every element.
  TIGON_NOINLINE void memory(std::string_view name, detail::extent m, view_use of = view_use::written) const {
    if (m.rows > 1 && m.row_stride < m.cols && (of == view_use::written || m.row_stride != 0))
      detail::fail_argument(error_code::stride, op_, name, "of row stride " + std::to_string(m.row_stride),
                            "at least its " + std::to_string(m.cols) + " columns");
    if (m.data == nullptr && m.rows != 0 && m.cols != 0)
      detail::fail_argument(error_code::shape, op_, name, "a null pointer",
                            detail::shape_text(m.rows, m.cols) + " elements");
  }

  /// batch x heads x seq_len x head_dim, and strides under which no two elements share an address, or of 0 in what is
  /// read.
  TIGON_NOINLINE void heads(std::string_view name, detail::heads_extent h, std::size_t batch, std::size_t heads,
                            std::size_t seq_len, std::size_t head_dim, view_use of = view_use::written) const {
    const auto text = [](std::size_t b, std::size_t n, std::size_t s, std::size_t d) {
      return std::to_string(b) + " sequences x " + std::to_string(n) + " heads x " + std::to_string(s) + " tokens x " +
             std::to_string(d);
    };
    if (h.batch != batch || h.heads != heads || h.seq_len != seq_len || h.head_dim != head_dim)
      detail::fail_argument(error_code::shape, op_, name, text(h.batch, h.heads, h.seq_len, h.head_dim),
                            text(batch, heads, seq_len, head_dim));
    if (batch == 0 || heads == 0 || seq_len == 0 || head_dim == 0) return;
    if (of == view_use::read) h = h.without_repeats();
    // From the smallest stride to the largest, each steps over all that lies below it; other strides are looked into.
    struct axis {
      std::size_t extent, stride;
    } axes[3] = {{h.batch, h.batch_stride}, {h.heads, h.head_stride}, {h.seq_len, h.seq_stride}};
    std::sort(axes, axes + 3, [](axis a, axis b) { return a.stride < b.stride; });
    std::uint64_t span = head_dim;
    for (const axis a : axes) {
      if (a.extent == 1) continue;
      if (a.stride < span && overlaps_itself(h))
        detail::fail_argument(error_code::stride, op_, name, "of a stride of " + std::to_string(a.stride),
                              "at least " + std::to_string(span) + ", so that its elements do not overlap");
      span = detail::bounded_sum(span, detail::bounded_product(a.extent - 1, a.stride));
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

  /// A scalar that is counted: must satisfy `holds`, which is false for NaN.
  TIGON_NOINLINE void option(bool holds, std::string_view name, double came, const char* expected) const {
    if (!holds) detail::fail_argument(error_code::argument, op_, name, detail::number_text(came), expected);
  }

  /// A scalar that is computed with: must satisfy `holds`, and be in the range of the type in which that is done.
  TIGON_NOINLINE void within(option_range range, bool holds, std::string_view name, double came,
                             const char* expected) const {
    option(holds, name, came, expected);
    if (!range.holds(came))
      detail::fail_argument(error_code::argument, op_, name, detail::number_text(came),
                            std::string("a number of ") + range.type + ": 0, or from " +
                                detail::number_text(range.least) + " to " + detail::number_text(range.most) +
                                " in magnitude");
  }

  /// The two views share no element, whatever their strides.
  TIGON_NOINLINE void disjoint(std::string_view a_name, const detail::extent& a, std::string_view b_name,
                               const detail::extent& b) const {
    if (overlap(a, b)) fail_alias(a_name, b_name, "no common memory");
  }
  TIGON_NOINLINE void disjoint(std::string_view a_name, const detail::heads_extent& a, std::string_view b_name,
                               const detail::heads_extent& b) const {
    if (overlap(a, b)) fail_alias(a_name, b_name, "no common memory");
  }

  /// The two views, of one shape, have the same elements at the same indices, or share none.
  TIGON_NOINLINE void same_or_disjoint(std::string_view a_name, const detail::extent& a, std::string_view b_name,
                                       const detail::extent& b) const {
    if (!same_elements(a, b) && overlap(a, b)) fail_alias(a_name, b_name, "the same buffer or no common memory");
  }
  TIGON_NOINLINE void same_or_disjoint(std::string_view a_name, const detail::heads_extent& a, std::string_view b_name,
                                       const detail::heads_extent& b) const {
    if (same_elements(a, b) || !overlap(a, b)) return;
    // The same memory in another order would be read after it was written.
    if (a.data == b.data)
      detail::fail_argument(error_code::alias, op_, a_name, std::string(b_name) + " with other strides",
                            "those of " + std::string(b_name) + ", to work in place");
    fail_alias(a_name, b_name, "the same buffer or no common memory");
  }
#else
  void matrix(std::string_view, detail::extent, std::size_t, std::size_t, view_use = view_use::written) const {}
  void memory(std::string_view, detail::extent, view_use = view_use::written) const {}
  void heads(std::string_view, detail::heads_extent, std::size_t, std::size_t, std::size_t, std::size_t,
             view_use = view_use::written) const {}
  void size(std::string_view, std::size_t, std::size_t) const {}
  void at_least_one(std::string_view, std::size_t) const {}
  void that(bool, error_code, std::string_view, const char*, const char*) const {}
  void option(bool, std::string_view, double, const char*) const {}
  void within(option_range, bool, std::string_view, double, const char*) const {}
  void disjoint(std::string_view, const detail::extent&, std::string_view, const detail::extent&) const {}
  void disjoint(std::string_view, const detail::heads_extent&, std::string_view, const detail::heads_extent&) const {}
  void same_or_disjoint(std::string_view, const detail::extent&, std::string_view, const detail::extent&) const {}
  void same_or_disjoint(std::string_view, const detail::heads_extent&, std::string_view,
                        const detail::heads_extent&) const {}
#endif
  void disjoint(std::string_view a_name, const detail::heads_extent& a, std::string_view b_name,
                const detail::extent& b) const {
    disjoint(a_name, a, b_name, detail::heads_extent(b));
  }
  void disjoint(std::string_view a_name, const detail::extent& a, std::string_view b_name,
                const detail::heads_extent& b) const {
    disjoint(a_name, detail::heads_extent(a), b_name, b);
  }

  /// A scalar option that is used in A: in option_range. `holds` is what else it has to be; false for NaN and infinity.
  template <class A>
  void number(bool holds, std::string_view name, double came, const char* expected) const {
    within(option_range::of<A>(), holds, name, came, expected);
  }
  template <class A>
  void finite(std::string_view name, double came) const {
    number<A>(is_finite(came), name, came, "a finite number");
  }
  template <class A>
  void from_zero(std::string_view name, double came, const char* expected = "a finite number of at least 0") const {
    number<A>(came >= 0 && is_finite(came), name, came, expected);
  }
  template <class A>
  void above_zero(std::string_view name, double came) const {
    number<A>(came > 0 && is_finite(came), name, came, "a finite number above 0");
  }
  /// A limit, or 0 for none.
  template <class A>
  void softcap(double came, std::string_view name = "softcap") const {
    from_zero<A>(name, came, "a finite number above 0, or 0 for none");
  }
  /// What a sum is divided by, or 0 for a count.
  template <class A>
  void denominator(double came, std::string_view name = "denominator") const {
    from_zero<A>(name, came, "a finite number above 0, or 0 to count");
  }
  template <class A>
  void eps(double came, std::string_view name = "eps", const char* expected = "a number of at least 0") const {
    within(option_range::of<A>().from(std::numeric_limits<A>::denorm_min()), came >= 0 && is_finite(came), name, came,
           expected);
  }
  /// A number that is made of options: not infinite in A.
  template <class A>
  void made(std::string_view name, double came) const {
    within(option_range::of<A>().from(0), true, name, came, "");
  }

  /// `a` shares no element with any of the views that follow by name.
  template <class B, class... Rest>
  void outside(std::string_view a_name, const detail::extent& a, std::string_view b_name, B b, Rest... rest) const {
    disjoint(a_name, a, b_name, b);
    if constexpr (sizeof...(Rest) > 0) outside(a_name, a, rest...);
  }
  template <class B, class... Rest>
  void outside(std::string_view a_name, const detail::heads_extent& a, std::string_view b_name, B b,
               Rest... rest) const {
    disjoint(a_name, a, b_name, b);
    if constexpr (sizeof...(Rest) > 0) outside(a_name, a, rest...);
  }

 protected:
  [[noreturn]] __attribute__((noinline, cold)) void fail_alias(std::string_view a, std::string_view b,
                                                               const char* expected) const {
    detail::fail(error_code::alias, "tigon: " + std::string(op_) + ": " + std::string(a) + " overlaps " +
                                        std::string(b) + "; expected " + expected);
  }

 private:
  static constexpr bool is_finite(double value) { return value - value == 0; }

  std::string_view op_;
};

}  // namespace TIGON_ABI
}  // namespace tigon

#endif  // TIGON_CORE_ERROR_HPP

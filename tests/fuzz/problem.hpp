// A case of an operator: its arguments twice, for a backend in a type of its own and for `generic` in f64, in buffers
// at guard pages. Whatever the bytes choose, it has to hold that
//
//   - both refuse, with one code and one sentence, and write nothing; or both accept;
//   - inputs and padding keep their bits;
//   - results are within the stated bound of those of `generic` in f64, NaN where those are NaN, and rows without
//     infinite, huge or NaN inputs do not feel those of others;
//   - 3 threads (with `repeats` seven numbers of them), and a second call, give the same bits; no call allocates but
//     for the workspace;
//   - with `expanded` inputs that repeat a row, a head or a sequence by a stride of 0 give the bits of their copies.
#ifndef TIGON_TESTS_FUZZ_PROBLEM_HPP
#define TIGON_TESTS_FUZZ_PROBLEM_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <tigon/core/context.hpp>
#include <tigon/core/error.hpp>
#include <vector>

#include "source.hpp"
#include "support/backend_list.hpp"
#include "support/guarded.hpp"
#include "tightness.hpp"

namespace tigon::fuzz {

using test::from_f64, test::guard, test::guarded, test::to_f64;

/// The bounds of a contract, an element type each.
struct bounds {
  double f32, bf16, f16, f64;
  template <class T>
  constexpr double of() const {
    // Of two results in f64 either may be off.
    return std::same_as<T, float> ? f32 : std::same_as<T, bfloat16> ? bf16 : std::same_as<T, float16> ? f16 : 2 * f64;
  }
};

/// What a case does to a view, to see it refused. Nothing that would read beyond a buffer if it were accepted.
enum class fault { none, fewer_rows, fewer_cols, short_stride, null };

/// Special values that a case may put into its inputs. From `nan` on they make a row wild.
enum class special { none, zeros, minus_zero, subnormal, equal, whole, nan, infinity, minus_infinity, huge };
constexpr bool is_wild(special s) { return s >= special::nan; }

/// An argument of any element type.
class argument {
 public:
  const char* name;
  std::array<std::size_t, 4> extents;  ///< batch, heads, rows, cols; of a matrix the first two are 1
  std::array<std::size_t, 3> strides;
  special holds = special::none;
  std::vector<bool> wild;  ///< rows with special values

  argument(const char* of, std::array<std::size_t, 4> e, std::array<std::size_t, 3> s)
      : name(of), extents(e), strides(s) {}
  argument(const argument&) = delete;
  virtual ~argument() = default;

  std::size_t rows() const { return extents[0] * extents[1] * extents[2]; }
  std::size_t cols() const { return extents[3]; }
  std::size_t size() const { return rows() * cols(); }
  std::size_t offset(std::size_t k) const {
    const std::size_t row = k / cols(), r = row % extents[2], h = row / extents[2] % extents[1];
    return row / extents[2] / extents[1] * strides[0] + h * strides[1] + r * strides[2] + k % cols();
  }
  /// Elements from the first to behind the last.
  std::size_t span() const {
    if (size() == 0) return 0;
    return (extents[0] - 1) * strides[0] + (extents[1] - 1) * strides[1] + (extents[2] - 1) * strides[2] + extents[3];
  }
  virtual double got(std::size_t k) const = 0;
  virtual double wanted(std::size_t k) const = 0;
  virtual void set(std::size_t k, double value) = 0;
  /// The reference goes on with what the backend computed.
  virtual void hand_over() = 0;
  virtual double largest() const = 0;
  virtual double smallest() const = 0;
  virtual double smallest_normal() const = 0;
  virtual double unit() const = 0;          ///< what rounding to its type may take of 1, in 16 bits
  virtual double step() const = 0;          ///< the smallest positive number of its type
  virtual double largest_held() const = 0;  ///< the largest finite number of its type
  virtual std::span<std::byte> bytes(bool reference) = 0;
  virtual std::size_t element_size(bool reference) const = 0;
  virtual bool is_number() const = 0;  ///< not an index

  /// Along these axes the first index stands for all: in the numbers, or also in the view, by a stride of 0.
  virtual void repeat(std::array<bool, 3> along) = 0;
  std::array<bool, 3> repeats_along{};
  std::size_t seen_stride(std::size_t axis) const { return repeats_along[axis] ? 0 : strides[axis]; }

  fault damage = fault::none;
  const char* in_place_of = nullptr;  ///< the output that this input's memory holds
};

/// Matrices, vectors (of one row) and heads.
template <class U>
class twin final : public argument {
 public:
  TIGON_TEST_NOINLINE twin(const char* of, std::array<std::size_t, 4> e, std::array<std::size_t, 3> s, guard side)
      : argument(of, e, s), tested_(span(), side), reference_(span(), side) {}

  double got(std::size_t k) const override { return to_f64(tested_[offset(k)]); }
  double wanted(std::size_t k) const override { return to_f64(reference_[offset(k)]); }
  void set(std::size_t k, double value) override {
    tested_[offset(k)] = from_f64<U>(value);
    reference_[offset(k)] = static_cast<R>(to_f64(tested_[offset(k)]));
  }
  void hand_over() override {
    for (std::size_t k = 0; k < size(); ++k) reference_[offset(k)] = static_cast<R>(got(k));
  }
  void repeat(std::array<bool, 3> along) override {
    for (std::size_t b = 0; b < extents[0]; ++b)
      for (std::size_t h = 0; h < extents[1]; ++h)
        for (std::size_t s = 0; s < extents[2]; ++s) {
          const auto row = [this](std::size_t x, std::size_t y, std::size_t z) {
            return x * strides[0] + y * strides[1] + z * strides[2];
          };
          const std::size_t to = row(b, h, s), from = row(along[0] ? 0 : b, along[1] ? 0 : h, along[2] ? 0 : s);
          if (to == from || cols() == 0) continue;
          std::memcpy(&tested_[to], &tested_[from], cols() * sizeof(U));
          std::memcpy(&reference_[to], &reference_[from], cols() * sizeof(R));
        }
  }
  double largest() const override { return static_cast<double>(std::numeric_limits<accumulator>::max()); }
  double smallest() const override { return static_cast<double>(std::numeric_limits<accumulator>::denorm_min()); }
  double smallest_normal() const override {
    return std::is_integral_v<accumulator> ? 0 : static_cast<double>(std::numeric_limits<accumulator>::min());
  }
  double unit() const override { return std::same_as<U, bfloat16> ? 0x1p-8 : std::same_as<U, float16> ? 0x1p-11 : 0; }
  double step() const override { return std::same_as<U, float16> ? 0x1p-24 : smallest(); }
  double largest_held() const override {
    return std::same_as<U, float16> ? 65504 : std::same_as<U, bfloat16> ? 0x1.fep127 : largest();
  }
  std::span<std::byte> bytes(bool reference) override {
    return reference ? std::as_writable_bytes(std::span(reference_.data(), reference_.size()))
                     : std::as_writable_bytes(std::span(tested_.data(), tested_.size()));
  }
  std::size_t element_size(bool reference) const override { return reference ? sizeof(R) : sizeof(U); }
  bool is_number() const override { return !std::is_integral_v<U>; }

  /// The view of a side: `on_tested` or `on_reference`.
  template <class S>
  auto at(S) {
    auto* const data = memory<S>();
    using E = std::remove_pointer_t<decltype(data)>;
    matrix_view<E> v{data, rows(), cols(), seen_stride(2)};
    if (damage == fault::null) v.data = nullptr;
    if (damage == fault::fewer_rows) v.rows -= v.rows != 0 ? 1 : 0;
    if (damage == fault::fewer_cols) v.cols -= v.cols != 0 ? 1 : 0;
    if (damage == fault::short_stride) v.row_stride = v.cols == 0 ? 0 : v.cols - 1;
    return v;
  }
  template <class S>
  auto heads(S) {
    auto* const data = memory<S>();
    using E = std::remove_pointer_t<decltype(data)>;
    heads_view<E> v(data, extents[0], extents[1], extents[2], extents[3], seen_stride(0), seen_stride(1),
                    seen_stride(2));
    if (damage == fault::null) v.data = nullptr;
    if (damage == fault::fewer_rows) v.seq_len -= v.seq_len != 0 ? 1 : 0;
    if (damage == fault::fewer_cols) v.head_dim -= v.head_dim != 0 ? 1 : 0;
    if (damage == fault::short_stride) v.seq_stride = v.head_dim == 0 ? 0 : v.head_dim - 1;
    return v;
  }
  template <class S>
  auto vec(S) {
    auto* const data = memory<S>();
    using E = std::remove_pointer_t<decltype(data)>;
    std::span<E> v(data, span());
    if (damage == fault::null) v = {};
    if (damage != fault::none && !v.empty()) v = v.first(v.size() - 1);
    return v;
  }

 private:
  using accumulator = std::conditional_t<std::is_integral_v<U>, U, std::conditional_t<element<U>, accumulator_t<U>, U>>;
  using R = std::conditional_t<std::is_integral_v<U>, U, double>;
  template <class S>
  auto memory() {
    if constexpr (S::is_reference)
      return reference_.data();
    else
      return tested_.data();
  }
  guarded<U> tested_;
  guarded<R> reference_;
};

/// The two that a call is made for.
template <class B, class T>
struct on_tested {
  static constexpr bool is_reference = false;
  using backend = B;
  using element = T;
  context& ctx;
};
struct on_reference {
  static constexpr bool is_reference = true;
  using backend = test::single_numbers;
  using element = double;
  context& ctx;
};

/// What forward leaves for backward in a type that each backend chooses.
template <class U, class R>
struct saved_buffer {
  std::vector<U> tested;
  std::vector<R> reference;
  saved_buffer(std::size_t of_tested, std::size_t of_reference) : tested(of_tested), reference(of_reference) {}
  template <class S>
  auto at(S) {
    if constexpr (S::is_reference)
      return std::span(reference);
    else
      return std::span(tested);
  }
};

struct end_of_case {};

/// What does not depend on the types of a problem.
class any_problem {
 public:
  source& in;

  explicit any_problem(source& bytes) : in(bytes) {
    side_ = in.one_in(2) ? guard::before : guard::behind;
    const std::size_t kind = in.below(16);
    special_ = kind < 7 ? special::none : static_cast<special>(kind - 6);
    spread_ = in.pick({1.0, 1.0, 1.0, 1.0, 0.01, 4.0});
    damage_ = in.one_in(12) ? static_cast<fault>(in.between(1, 4)) : fault::none;
    damaged_ = in.byte();
    threads_ = in.one_in(3);
  }

  /// Numbers of rows and of columns at which loops turn a corner, and any between.
  std::size_t some_rows(std::size_t most = 9) { return in.one_in(8) ? 0 : in.between(1, most); }
  std::size_t some_cols(std::size_t most = 300) {
    switch (in.below(4)) {
      case 0: return in.between(1, std::min<std::size_t>(most, 9));
      case 1:
        return std::min(most, in.pick<std::size_t>({1, 2, 4, 8, 16, 32, 64, 128}) * in.between(1, 3) + in.below(3));
      default: return in.between(1, most);
    }
  }
  std::size_t some_padding() { return in.one_in(3) ? in.between(1, 5) : 0; }
  guard side() const { return side_; }
  bool is_wild() const { return wild_; }
  bool is_faulty() const { return damage_ != fault::none; }
  /// Bounds are stated for numbers of order one: what an exponential takes is as exact as it is large.
  double stretch() const { return std::max(1.0, spread_); }

  /// Fills an input; wild values only where `may_be_wild`, and of those only in one row.
  TIGON_TEST_NOINLINE void fill(argument& a, double mean = 0, double deviation = 1, bool may_be_wild = true) {
    generator next(in.seed() << 8 | ++filled_);  // other values where the bytes have ended, too
    for (std::size_t k = 0; k < a.size(); ++k) a.set(k, mean + spread_ * deviation * next.normal());
    a.wild.assign(a.rows(), false);
    if (special_ == special::none || a.size() == 0 || !in.one_in(2)) return;
    if (!may_be_wild && (fuzz::is_wild(special_) || special_ == special::subnormal)) return;
    a.holds = special_;
    const std::size_t row = in.below(a.rows()), count = std::min(a.cols(), in.one_in(4) ? a.cols() : in.between(1, 3));
    for (std::size_t n = 0; n < count; ++n) {
      const std::size_t k = row * a.cols() + (count == a.cols() ? n : in.below(a.cols()));
      a.set(k, value_of(special_, a, a.got(k)));
    }
    if (special_ == special::whole || special_ == special::equal)
      for (std::size_t k = 0; k < a.size(); ++k) a.set(k, value_of(special_, a, a.got(k)));
    if (fuzz::is_wild(special_)) a.wild[row] = wild_ = true;
  }

  /// Compares an output; `per_row`: row i depends on the rows i of the inputs `of` alone.
  struct comparison {
    double bound;
    double scale = 0;  ///< size of the terms that an element is the sum of
    std::vector<const argument*> of = {};
    /// Of each element the sum of the magnitudes of its terms, of which `bound` is then the part that may be off beside
    /// one rounding of the result.
    std::span<const double> terms = {};
    /// Of each element the root of the sum of the squares of its terms, which counts where it is above the scale.
    std::span<const double> roots = {};
  };
  TIGON_TEST_NOINLINE void compare(const argument& a, const comparison& how) const {
    if (accepted_fault_) return;
    std::vector<bool> wild(a.rows(), false);
    bool any = false, only_nan = special_ == special::nan;
    for (const argument* from : how.of)
      for (std::size_t i = 0; i < from->wild.size(); ++i)
        if (from->wild[i]) wild[from->rows() == a.rows() ? i : i * a.rows() / from->rows()] = any = true;
    if (how.of.empty() && wild_) wild.assign(a.rows(), true);
    (void)any;
    double square = 0;
    std::size_t finite = 0;
    for (std::size_t k = 0; k < a.size(); ++k)
      if (!wild[k / a.cols()] && std::isfinite(a.wanted(k))) square += a.wanted(k) * a.wanted(k), ++finite;
    const double typical = std::max(how.scale, finite == 0 ? 0 : std::sqrt(square / static_cast<double>(finite)));
    for (std::size_t k = 0; k < a.size(); ++k) {
      const double got = a.got(k), want = a.wanted(k);
      if (wild[k / a.cols()]) {
        if (only_nan && std::isnan(want) && !std::isnan(got)) fail(a, k, got, want, "a NaN is lost");
        continue;
      }
      if (got == want || (std::isnan(got) && std::isnan(want))) continue;
      if (std::abs(want) > a.largest() / 4 && !(std::abs(got) < a.largest() / 8)) continue;  // f64 holds more
      // Below the normal numbers steps are absolute, rstd may multiply them by a thousand, and again where it is a
      // factor twice, and gradients of losses are 0.
      const double rounding = (how.terms.empty() ? 0 : a.unit() * std::abs(want)) + a.step() / 2;
      const double root = how.roots.empty() ? 0 : how.roots[k];
      const double size = how.terms.empty() ? std::abs(want) + std::max(typical, root) : how.terms[k];
      const double error = std::abs(got - want), by_bound = how.bound * size + a.smallest_normal();
      const double allowed = rounding + margin * by_bound;
      // Conversions to a type that ends here give infinity.
      if (std::isinf(got) && got * want > 0 && std::abs(want) + allowed > a.largest_held()) continue;
      if (measure_tightness) note_tightness(a, error / (rounding + by_bound));
      if (error <= allowed) continue;
      std::ostringstream out;
      out << "error " << (error - rounding) / size << ", bound " << how.bound;
      if (margin > 1) out << ", of which " << margin << " are allowed";
      fail(a, k, got, want, out.str());
    }
  }

  /// Whole numbers, of which both sides have the same.
  TIGON_TEST_NOINLINE void expect_equal(std::initializer_list<const argument*> of) const {
    for (const argument* a : of)
      for (std::size_t k = 0; k < a->size() && !accepted_fault_; ++k)
        if (a->got(k) != a->wanted(k)) fail(*a, k, a->got(k), a->wanted(k), "not equal");
  }

  /// Root mean square of the products of inputs, element by element: the size of terms that cancel.
  static double size_of_terms(std::initializer_list<const argument*> factors) {
    double square = 0;
    std::size_t n = 0;
    const std::size_t size = (*factors.begin())->size();
    for (std::size_t k = 0; k < size; ++k) {
      double product = 1;
      for (const argument* f : factors) product *= f->wanted(f->size() == size ? k : k % f->size());
      if (std::isfinite(product)) square += product * product, ++n;
    }
    return n == 0 ? 0 : std::sqrt(square / static_cast<double>(n));
  }

  TIGON_TEST_NOINLINE void note_tightness(const argument& a, double part) const {
    double& most = tightness[{op_, backend_, type_, a.in_place_of != nullptr ? a.in_place_of : a.name}];
    most = std::max(most, part);
  }

  [[noreturn]] TIGON_TEST_NOINLINE void fail(const std::string& what) const {
    std::ostringstream out;
    out << op_ << " on " << backend_ << ' ' << type_ << ": " << what << "\n  spread " << spread_ << ", " << note
        << "\n ";
    for (const argument* a : arguments_) {
      out << ' ' << a->name << '[';
      for (std::size_t e : a->extents) out << e << ' ';
      out << "stride " << a->strides[2] << ']';
      if (a->holds != special::none) out << " special " << static_cast<int>(a->holds);
      if (a->damage != fault::none) out << " fault " << static_cast<int>(a->damage);
    }
    throw finding(out.str());
  }

  /// Options of the case, for whoever reads a finding.
  template <class... N>
  void note_options(N... values) {
    std::ostringstream out;
    out << "options";
    ((out << ' ' << values), ...);
    note = out.str();
  }
  std::string note;

  bool gaps_change_bits = false;       ///< rows without gaps between them are summed as one
  bool may_refuse = false;             ///< the case has something in it that is refused
  const char* may_allocate = nullptr;  ///< why a call of this operator on this backend allocates memory

 protected:
  std::vector<argument*> arguments_;
  std::string op_, backend_, type_;
  guard side_;
  special special_;
  double spread_;
  fault damage_;
  std::size_t damaged_;
  bool threads_, begun_ = false, wild_ = false, accepted_fault_ = false;
  std::size_t filled_ = 0;

  [[noreturn]] void fail(const argument& a, std::size_t k, double got, double want, const std::string& what) const {
    std::ostringstream out;
    out.precision(10);
    out << a.name << " element " << k << " (row " << k / a.cols() << ") is " << got << ", in f64 " << want << ": "
        << what;
    if (std::getenv("TIGON_FUZZ_DUMP") != nullptr)  // the column of the finding, and numbers of rows
      for (const argument* of : arguments_) {
        const std::size_t first = of->cols() == a.cols() ? k % a.cols() : 0;
        out << "\n    " << of->name << ':';
        for (std::size_t e = first; e < of->size(); e += of->cols() == a.cols() ? a.cols() : 1)
          out << ' ' << of->got(e) << " (" << of->wanted(e) << ')';
      }
    fail(out.str());
  }
  static double value_of(special s, const argument& a, double drawn) {
    switch (s) {
      case special::zeros: return 0;
      case special::minus_zero: return -0.0;
      case special::subnormal: return std::copysign(a.smallest() * 100, drawn);
      case special::equal: return 0.5;
      case special::whole: return std::round(drawn * 2);
      case special::nan: return std::numeric_limits<double>::quiet_NaN();
      case special::infinity: return std::numeric_limits<double>::infinity();
      case special::minus_infinity: return -std::numeric_limits<double>::infinity();
      case special::huge: return std::copysign(a.largest() / 3, drawn);
      default: return drawn;
    }
  }

  /// A context of so many threads, kept for further cases.
  static context& context_of(std::size_t threads) {
    struct team {
      thread_pool pool;
      workspace scratch;
      context ctx;
      explicit team(std::size_t n) : pool(n), ctx(pool, scratch) {}
    };
    static std::map<std::size_t, team> teams;
    return teams.try_emplace(threads, threads).first->second.ctx;
  }

  using image = std::vector<std::byte>;
  TIGON_TEST_NOINLINE std::vector<image> memory(bool reference) const {
    std::vector<image> out;
    for (argument* a : arguments_) out.emplace_back(a->bytes(reference).begin(), a->bytes(reference).end());
    return out;
  }
  void restore(const std::vector<image>& from, bool reference) const {
    for (std::size_t k = 0; k < from.size(); ++k)
      if (!from[k].empty()) std::memcpy(arguments_[k]->bytes(reference).data(), from[k].data(), from[k].size());
  }
  /// Only elements of `outputs` may have changed.
  TIGON_TEST_NOINLINE void expect_unchanged(const std::vector<image>& before, bool reference,
                                            std::span<argument* const> outputs, const char* when) const {
    for (std::size_t n = 0; n < arguments_.size(); ++n) {
      argument& a = *arguments_[n];
      const std::span<std::byte> now = a.bytes(reference);
      if (now.empty() || std::memcmp(now.data(), before[n].data(), now.size()) == 0) continue;
      const bool is_output = std::ranges::find(outputs, &a) != outputs.end();
      if (!is_output) fail(std::string(a.name) + " is not an output and was written " + when);
      const std::size_t size = a.element_size(reference);
      std::vector<bool> inside(now.size() / size, false);
      for (std::size_t k = 0; k < a.size(); ++k) inside[a.offset(k)] = true;
      for (std::size_t e = 0; e < inside.size(); ++e)
        if (!inside[e] && std::memcmp(&now[e * size], &before[n][e * size], size) != 0)
          fail("padding of " + std::string(a.name) + " was written " + when);
    }
  }

  TIGON_TEST_NOINLINE void expect_same_bits(const std::vector<image>& wanted, const char* when) const {
    const auto now = memory(false);
    for (std::size_t k = 0; k < now.size(); ++k)
      if (now[k] != wanted[k]) fail(std::string(arguments_[k]->name) + " has other bits " + when);
  }

  /// The call of a door for either side. Without its type, so that what is checked is compiled once.
  struct door {
    void* call;
    void (*tested)(void* call, context&);
    void (*reference)(void* call, context&);
  };
  struct outcome {
    bool refused = false;
    error_code code{};
    std::string sentence;
  };
  TIGON_TEST_NOINLINE static outcome try_to(void (*side)(void*, context&), void* call) {
    try {
      side(call, default_context());
      return {};
    } catch (const error& e) {
      return {true, e.code(), e.what()};
    }
  }

  TIGON_TEST_NOINLINE void check(const std::vector<argument*>& outputs, door of) {
    if (!begun_) damage_one(), begun_ = true;
    const std::span<argument* const> outs(outputs);
    const auto before = memory(false), before_reference = memory(true);
    const outcome tested = try_to(of.tested, of.call), reference = try_to(of.reference, of.call);
    if (tested.refused != reference.refused || tested.code != reference.code)
      fail("the backend says \"" + tested.sentence + "\", generic \"" + reference.sentence + '"');
    expect_unchanged(before, false, tested.refused ? std::span<argument* const>{} : outs, "by the backend");
    expect_unchanged(before_reference, true, tested.refused ? std::span<argument* const>{} : outs, "by generic");
    if (tested.refused) {
      if (!is_faulty() && !may_refuse) fail("refused: " + tested.sentence);
      throw end_of_case{};
    }
    if (is_faulty()) accepted_fault_ = true;
    const auto after = memory(false);
    for (std::size_t n = repeats + (damaged_ % 4 == 0 ? 1 : 0); n != 0; --n) {
      restore(before, false);
      const std::size_t before_call = allocations;
      of.tested(of.call, default_context());
      // The workspace has grown to what the call takes.
      if (allocations != before_call && may_allocate == nullptr)
        fail(std::to_string(allocations - before_call) + " allocations in a call");
      expect_same_bits(after, "in another call");
    }
    static constexpr std::size_t numbers[] = {3, 1, 2, 4, 5, 7, 16};
    for (const std::size_t threads : std::span(numbers).first(repeats != 0 ? std::size(numbers) : threads_ ? 1 : 0)) {
      restore(before, false);
      of.tested(of.call, context_of(threads));
      expect_same_bits(after, ("with " + std::to_string(threads) + " threads").c_str());
    }
    if (expanded && !is_faulty()) check_expanded(outs, before, before_reference, of);
  }

  /// Every input of numbers in turn repeats its rows (its tokens, heads, sequences, or all of these): by its numbers,
  /// and by strides of 0. What the case had is put back.
  TIGON_TEST_NOINLINE void check_expanded(std::span<argument* const> outputs, const std::vector<image>& before,
                                          const std::vector<image>& before_reference, door of) {
    const auto after = memory(false), after_reference = memory(true);
    const auto begin = [&] { restore(before, false), restore(before_reference, true); };
    const auto both = [&] { return std::array{try_to(of.tested, of.call), try_to(of.reference, of.call)}; };
    for (argument* a : arguments_) {
      if (std::ranges::find(outputs, a) != outputs.end() || a->rows() < 2 || !a->is_number()) continue;
      if (gaps_change_bits && a->strides[2] == a->cols()) continue;
      for (std::size_t axes = 1; axes < 8; ++axes) {
        const std::array along{(axes & 1) != 0, (axes & 2) != 0, (axes & 4) != 0};
        bool any = false, each = true;  // every axis that is chosen has something to repeat
        for (std::size_t k = 0; k < 3; ++k) any |= along[k], each &= !along[k] || a->extents[k] > 1;
        if (!any || !each) continue;
        begin(), a->repeat(along);
        const auto of_copy = both();
        const auto wanted = memory(false), wanted_reference = memory(true);
        begin(), a->repeat(along), a->repeats_along = along;
        const auto of_strides = both();
        a->repeats_along = {};
        const std::string when = "where " + std::string(a->name) + " repeats axes " + std::to_string(axes);
        for (std::size_t k = 0; k < 2; ++k)
          if (of_copy[k].sentence != of_strides[k].sentence)
            fail(when + ": \"" + of_copy[k].sentence + "\" and \"" + of_strides[k].sentence + '"');
        expect_same_bits(wanted, when.c_str());
        if (memory(true) != wanted_reference) fail("generic has other bits " + when);
      }
    }
    begin(), both();
    expect_same_bits(after, "after calls with strides of 0");
    restore(after_reference, true);
  }

  TIGON_TEST_NOINLINE void damage_one() {
    if (damage_ == fault::none || arguments_.empty()) return;
    arguments_[damaged_ % arguments_.size()]->damage = damage_;
  }
};

template <class B, class T>
class problem : public any_problem {
 public:
  using backend = B;
  using element = T;
  using A = accumulator_t<T>;

  explicit problem(source& bytes, const char* op) : any_problem(bytes) {
    op_ = op, backend_ = B::info.name, type_ = element_name<T>();
    if (std::is_same_v<T, bfloat16> && backend_ == "onednn") may_allocate = "oneDNN packs the operands of its products";
  }
  problem(const problem&) = delete;
  ~problem() = default;

  template <class U = T>
  twin<U>& matrix(const char* name, std::size_t rows, std::size_t cols) {
    return keep(new twin<U>(name, {1, 1, rows, cols}, {0, 0, cols + some_padding()}, side_));
  }
  template <class U = T>
  twin<U>& vector(const char* name, std::size_t size) {
    return keep(new twin<U>(name, {1, 1, 1, size}, {0, 0, size}, side_));
  }
  /// In either order of heads and tokens.
  template <class U = T>
  twin<U>& heads(const char* name, std::size_t batch, std::size_t heads, std::size_t tokens, std::size_t d) {
    const std::size_t row = d + some_padding();
    if (in.one_in(2))
      return keep(new twin<U>(name, {batch, heads, tokens, d}, {tokens * heads * row, row, heads * row}, side_));
    return keep(new twin<U>(name, {batch, heads, tokens, d}, {heads * tokens * row, tokens * row, row}, side_));
  }
  template <class U>
  twin<U>& filled(twin<U>& a, double mean = 0, double deviation = 1, bool may_be_wild = true) {
    fill(a, mean, deviation, may_be_wild);
    return a;
  }
  /// An output, or in one case of four an input in whose place it may be.
  twin<T>& in_place(twin<T>& out, const std::vector<twin<T>*>& inputs) {
    if (is_faulty() || !in.one_in(4)) return out;
    twin<T>& chosen = *inputs[in.below(inputs.size())];
    chosen.in_place_of = out.name;
    return chosen;
  }

  /// f(side) calls a door for one side. Everything that the case promises is checked but the numbers. A case whose call
  /// is refused ends here.
  template <class F>
  void call(const std::vector<argument*>& outputs, F f) {
    check(outputs, {&f, [](void* of, context& ctx) { (*static_cast<F*>(of))(on_tested<B, T>{ctx}); },
                    [](void* of, context& ctx) { (*static_cast<F*>(of))(on_reference{ctx}); }});
  }

 private:
  template <class U>
  twin<U>& keep(twin<U>* a) {
    kept_.emplace_back(a);
    arguments_.push_back(a);
    return *a;
  }
  std::vector<std::unique_ptr<argument>> kept_;
};

/// The pairs of backend and type of this program, one of which the bytes choose. TIGON_FUZZ_BACKEND: another backend
/// than the usual one, in every type.
template <class B, class T>
struct pair {
  using backend = B;
  using element = T;
};
template <class... P>
struct pairs {};

#if defined(TIGON_FUZZ_BACKEND)
using tested_pairs = pairs<pair<TIGON_FUZZ_BACKEND, float>, pair<TIGON_FUZZ_BACKEND, bfloat16>,
                           pair<TIGON_FUZZ_BACKEND, float16>, pair<TIGON_FUZZ_BACKEND, double>>;
#else
using tested_pairs = pairs<pair<test::usual_backend, float>, pair<test::usual_backend, bfloat16>>;
#endif

template <class Run, class... P>
void on_one_of(source& in, const char* name, Run run, pairs<P...>) {
  std::size_t chosen = in.below(sizeof...(P)), k = 0;
  const auto one = [&]<class Pair>(Pair) {
    problem<typename Pair::backend, typename Pair::element> p(in, name);
    try {
      run(p);
    } catch (const end_of_case&) {
    } catch (const finding&) {
      throw;
    } catch (const std::exception& e) {
      p.fail(std::string("thrown: ") + e.what());
    }
  };
  ((k++ == chosen ? one(P{}) : void()), ...);
}

/// TIGON_FUZZ_TARGET(softmax): a target that runs `template <class P> void softmax(P& p)`.
#define TIGON_FUZZ_TARGET(op)                                              \
  ::tigon::fuzz::target {                                                  \
    #op, [](::tigon::fuzz::source& in) {                                   \
      ::tigon::fuzz::on_one_of(                                            \
          in, #op, [](auto& p) { op(p); }, ::tigon::fuzz::tested_pairs{}); \
    }                                                                      \
  }

}  // namespace tigon::fuzz

#endif  // TIGON_TESTS_FUZZ_PROBLEM_HPP

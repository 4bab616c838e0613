// Losses that compare two rows, student and teacher, element by element: their problems and their reference.
#ifndef TIGON_TESTS_SUPPORT_ROW_LOSS_HPP
#define TIGON_TESTS_SUPPORT_ROW_LOSS_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>

#include <cmath>
#include <functional>
#include <vector>

#include "backends.hpp"
#include "errors.hpp"
#include "problem.hpp"
#include "threads.hpp"

namespace tigon::test {

/// The row programs are the same for every engine; golden values run on all of them.
using row_loss_pairs =
#if !defined(TIGON_CONFORMANCE_BACKEND)
    with_engines<list<on<single_numbers, double>, on<usual_backend, float>>, on<usual_backend, bfloat16>,
                 on<backends::generic, float16>, on<backends::xsimd, float>>;
#else
    testing::Types<on<usual_backend, double>, on<usual_backend, float>, on<usual_backend, bfloat16>,
                   on<usual_backend, float16>>;
#endif

/// Log-softmax of normal values; with `near`, of those plus as many of that deviation.
TIGON_TEST_NOINLINE inline std::vector<double> log_probs(shape s, std::uint64_t seed, double near = 0,
                                                         double deviation = 2) {
  std::vector<double> out = normal_values(s.rows * s.cols, seed, {.deviation = deviation});
  const std::vector<double> shift = normal_values(out.size(), seed + 1000, {.deviation = near});
  for (std::size_t i = 0; i < s.rows; ++i) {
    double* row = out.data() + i * s.cols;
    double sum = 0;
    for (std::size_t j = 0; j < s.cols; ++j) sum += std::exp(row[j] += near == 0 ? 0 : shift[i * s.cols + j]);
    for (std::size_t j = 0; j < s.cols; ++j) row[j] -= std::log(sum);
  }
  return out;
}

/// Some labels, the second of three or more ignored. The others need not name a class.
TIGON_TEST_NOINLINE inline std::vector<std::int64_t> mask_labels(std::size_t rows, std::int64_t ignore_index) {
  std::vector<std::int64_t> out(rows);
  for (std::size_t i = 0; i < rows; ++i)
    out[i] = rows > 2 && i == 1 ? ignore_index : static_cast<std::int64_t>(i) * -1000000007 + 3;
  return out;
}

/// Loss and gradient of one element, for an upstream gradient of 1.
struct element_of_loss {
  long double loss, gradient;
};
using element_loss = std::function<element_of_loss(long double student, long double teacher)>;

/// Reduced losses and gradients by definition, in long double. `kept` is empty or a number for every row.
struct row_loss_reference {
  std::vector<double> elements, gradient;
  double total = 0, size = 0;  ///< the loss, and the sum of its terms' absolute values

  TIGON_TEST_NOINLINE row_loss_reference(const element_loss& f, const std::vector<double>& student,
                                         const std::vector<double>& teacher, shape s, const std::vector<bool>& kept,
                                         divergence_reduction reduction, double denominator) {
    long double n = denominator, sum = 0, absolute = 0;
    if (denominator == 0)
      for (std::size_t i = 0; i < s.rows; ++i) n += kept.empty() || kept[i];
    if (reduction == divergence_reduction::mean) n *= static_cast<long double>(s.cols);
    if (reduction == divergence_reduction::sum || reduction == divergence_reduction::none) n = 1;
    for (std::size_t k = 0; k < s.rows * s.cols; ++k) {
      element_of_loss e{0, 0};
      if (kept.empty() || kept[k / s.cols]) e = f(student[k], teacher[k]);
      sum += e.loss, absolute += std::abs(e.loss);
      elements.push_back(static_cast<double>(e.loss));
      gradient.push_back(n == 0 ? 0 : static_cast<double>(e.gradient / n));
    }
    total = n == 0 ? 0 : static_cast<double>(sum / n);
    size = n == 0 ? 0 : static_cast<double>(absolute / n);
  }
};

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct row_problem {
  using A = accumulator_t<T>;
  shape s;
  guarded_matrix<T> student, teacher, dstudent;
  guarded_matrix<A> losses;  ///< of the elements
  guarded<A> loss;           ///< reduced
  guarded<std::int64_t> labels;

  TIGON_TEST_NOINLINE row_problem(shape of, const std::vector<double>& x, const std::vector<double>& y,
                                  std::int64_t ignore_index = -100, guard side = guard::behind)
      : s(of),
        student(s.rows, s.cols, s.padding, side),
        teacher(s.rows, s.cols, s.padding + 1, side),
        dstudent(s.rows, s.cols, s.padding, side),
        losses(s.rows, s.cols, s.padding, side),
        loss(1, side),
        labels(s.rows, side) {
    student.assign(x), teacher.assign(y);
    std::ranges::copy(mask_labels(s.rows, ignore_index), labels.begin());
  }

  std::vector<bool> kept(std::int64_t ignore_index) const {
    std::vector<bool> out;
    for (const std::int64_t l : labels) out.push_back(l != ignore_index);
    return out;
  }
  loss_elements<A> loss_for(divergence_reduction r) {
    return r == divergence_reduction::none ? loss_elements<A>(losses.view()) : loss_elements<A>(std::span<A>(loss));
  }
  std::vector<double> got(divergence_reduction r) const {
    return r == divergence_reduction::none ? losses.f64() : loss.f64();
  }
  bool padding_intact() const { return dstudent.padding_intact() && losses.padding_intact(); }
};

/// One way to call a loss, on one backend: checks are compiled once an element type, not once a loss.
template <class T>
struct row_loss_case {
  const char* name;
  bool masked;
  divergence_reduction reduction;
  std::int64_t ignore_index;
  double denominator;
  element_loss reference;
  std::function<void(row_problem<T>&, matrix_view<T> dstudent, context&)> forward;
  /// What the loss reads, of any shape.
  std::function<std::vector<double>(shape)> student, teacher;

  TIGON_TEST_NOINLINE row_problem<T> problem(shape s, guard side = guard::behind) const {
    return row_problem<T>(s, student(s), teacher(s), ignore_index, side);
  }
  TIGON_TEST_NOINLINE row_loss_reference wanted(const row_problem<T>& p) const {
    return row_loss_reference(reference, p.student.f64(), p.teacher.f64(), p.s,
                              masked ? p.kept(ignore_index) : std::vector<bool>{}, reduction, denominator);
  }
  void run(row_problem<T>& p, context& ctx = default_context()) const { forward(p, p.dstudent.view(), ctx); }
};
template <class T>
using row_loss_cases = std::vector<row_loss_case<T>>;

/// The loss within `bound` of the sum of its terms' absolute values, or every element of it.
template <class T>
TIGON_TEST_NOINLINE testing::AssertionResult right_loss(const row_problem<T>& p, const row_loss_reference& wanted,
                                                        divergence_reduction r, double bound) {
  if (r == divergence_reduction::none)
    return close(p.losses.f64(), wanted.elements, bound, {.may_be_empty = p.s.rows == 0});
  const double got = to_f64(p.loss[0]), error = std::abs(got - wanted.total);
  if (error <= bound * error_scale * wanted.size) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "loss " << got << " should be " << wanted.total << ": error "
                                     << error / wanted.size << " of its terms, bound " << bound * error_scale;
}

template <class T>
TIGON_TEST_NOINLINE void check_errors_and_padding(const row_loss_cases<T>& cases, const std::vector<shape>& shapes,
                                                  double loss_bound, double gradient_bound) {
  for (const row_loss_case<T>& c : cases)
    for (const shape s : shapes)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << c.name << ", " << side);
        row_problem<T> p = c.problem(s, side);
        const row_loss_reference wanted = c.wanted(p);
        c.run(p);
        EXPECT_TRUE(right_loss(p, wanted, c.reduction, loss_bound));
        // Means are small numbers, and f16 has none below 6e-8.
        const double unit = std::same_as<T, float16> ? 3e-8 : 0;
        EXPECT_TRUE(close(p.dstudent.f64(), wanted.gradient, gradient_bound,
                          {.scale = unit / gradient_bound, .may_be_empty = s.rows == 0}));
        EXPECT_TRUE(p.padding_intact());
      }
}

/// The gradient over either input, or left out: the same bits.
template <class T>
TIGON_TEST_NOINLINE void check_aliasing(const row_loss_cases<T>& cases, shape s) {
  for (const row_loss_case<T>& c : cases) {
    SCOPED_TRACE(c.name);
    row_problem<T> apart = c.problem(s), over_student = c.problem(s), over_teacher = c.problem(s),
                   without = c.problem(s);
    c.run(apart);
    c.forward(over_student, over_student.student.view(), default_context());
    c.forward(over_teacher, over_teacher.teacher.view(), default_context());
    c.forward(without, {}, default_context());
    EXPECT_EQ(over_student.student.f64(), apart.dstudent.f64());
    EXPECT_EQ(over_teacher.teacher.f64(), apart.dstudent.f64());
    EXPECT_TRUE(without.dstudent.untouched());
    for (const row_problem<T>* p : {&over_student, &over_teacher, &without})
      EXPECT_EQ(bits_of(p->loss, p->losses), bits_of(apart.loss, apart.losses));
  }
}

/// Rows that do not count are not read, and without others everything is 0; so it is without rows.
template <class T>
TIGON_TEST_NOINLINE void check_ignored_rows(const row_loss_cases<T>& cases) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const row_loss_case<T>& c : cases) {
    SCOPED_TRACE(c.name);
    row_problem<T> empty = c.problem({0, 5});
    c.run(empty);
    if (c.reduction != divergence_reduction::none) {
      EXPECT_EQ(to_f64(empty.loss[0]), 0);
    }
    if (!c.masked) continue;
    row_problem<T> some = c.problem({4, 37}), all = c.problem({3, 37});
    const row_loss_reference wanted = c.wanted(some);
    for (std::size_t j = 0; j < 37; ++j) some.student(1, j) = some.teacher(1, j) = from_f64<T>(nan);
    c.run(some);
    EXPECT_TRUE(right_loss(some, wanted, c.reduction, 1e-6));
    for (std::size_t j = 0; j < 37; ++j) EXPECT_EQ(to_f64(some.dstudent(1, j)), 0);
    std::ranges::fill(all.labels, c.ignore_index);
    all.student.assign(std::vector<double>(3 * 37, nan));
    c.run(all);
    for (const auto& zeros : {all.got(c.reduction), all.dstudent.f64()})
      EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
  }
}

/// A gradient that is streamed past the caches has the bits of one that is not.
template <class T>
TIGON_TEST_NOINLINE void check_streaming(const row_loss_case<T>& c, std::size_t stream_bytes) {
  const shape s{stream_bytes / (5000 * sizeof(T)) + 2, 5001, 4};
  row_problem<T> large(s, {}, {}), small(shape{3, s.cols, s.padding}, {}, {});
  const std::vector<double> x = c.student({3, s.cols}), y = c.teacher({3, s.cols});
  small.student.assign(x), small.teacher.assign(y);
  for (std::size_t i = 0; i < s.rows; ++i)
    for (std::size_t j = 0; j < s.cols; ++j)
      large.student(i, j) = small.student(i % 3, j), large.teacher(i, j) = small.teacher(i % 3, j);
  std::ranges::fill(large.labels, c.ignore_index + 1), std::ranges::fill(small.labels, c.ignore_index + 1);
  c.run(large), c.run(small);
  EXPECT_TRUE(large.padding_intact());
  for (std::size_t i = 0; i < s.rows; ++i)
    ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(&large.dstudent(i, 0), s.cols)),
                                   std::as_bytes(std::span(&small.dstudent(i % 3, 0), s.cols))))
        << "row " << i;
}

template <class T>
TIGON_TEST_NOINLINE void check_threads(const row_loss_cases<T>& cases) {
  for (const row_loss_case<T>& c : cases) {
    row_problem<T> p = c.problem({40, 5003});  // several tasks
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.dstudent.clear(), p.loss.clear(), p.losses.clear();
      c.run(p, ctx);
      return bits_of(p.dstudent, p.loss, p.losses);
    })) << c.name;
  }
}

/// A bad number makes its own element bad and the loss; every other element keeps its bits.
template <class T>
TIGON_TEST_NOINLINE void check_bad_numbers(const row_loss_case<T>& c, bool of_student, bool gradient_sees_it) {
  const shape s{3, 37};
  row_problem<T> clean = c.problem(s);
  c.run(clean);
  for (const std::size_t column : {std::size_t{0}, std::size_t{16}, s.cols - 1}) {
    SCOPED_TRACE(testing::Message() << c.name << ", column " << column);
    row_problem<T> p = c.problem(s);
    (of_student ? p.student : p.teacher)(2, column) = from_f64<T>(std::numeric_limits<double>::quiet_NaN());
    c.run(p);
    const bool elements = c.reduction == divergence_reduction::none;
    EXPECT_TRUE(std::isnan(to_f64(elements ? p.losses(2, column) : p.loss[0])));
    const std::vector<double> got = p.dstudent.f64(), want = clean.dstudent.f64();
    for (std::size_t k = 0; k < got.size(); ++k) {
      const bool bad = k == 2 * s.cols + column;
      EXPECT_TRUE(bad && gradient_sees_it ? std::isnan(got[k]) : got[k] == want[k]) << k;
      EXPECT_TRUE(!elements || bad || p.losses.f64()[k] == clean.losses.f64()[k]) << k;
    }
  }
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_ROW_LOSS_HPP

// Every order of memory on any machine: plans of a few operators, pinned; and operators of every form, run as each core
// would run them and compared with single numbers in f64.
#include <gtest/gtest.h>

#include "../../tools/tigon_info/noted_plans.hpp"
// What follows reads plans.
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>

#include "support/backends.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"

namespace {

using namespace tigon::test;
using tigon::map_rows, tigon::matrix_view, tigon::pack, tigon::reads, tigon::vector_view, tigon::writes;
using tigon::plan_map, tigon::plan_operand, tigon::plan_program, tigon::plan_reduce, tigon::program_plan;
using tigon::reduction_kind, tigon::row_order, tigon::row_pass, tigon::row_shape;
namespace cores = tigon::cores;

constexpr row_shape swiglu_forward(std::size_t lanes) {
  return {.pass = row_pass::map, .matrices = 2, .element_bytes = 4, .lanes = lanes};
}
constexpr row_shape swiglu_backward(std::size_t lanes) {
  return {.pass = row_pass::map, .matrices = 3, .element_bytes = 4, .lanes = lanes};
}
constexpr row_shape rms_norm_sum(std::size_t lanes) {
  return {.pass = row_pass::reduce, .matrices = 1, .sums = 1, .element_bytes = 4, .lanes = lanes};
}
constexpr row_shape rms_norm_map(std::size_t lanes) {
  return {.pass = row_pass::map, .matrices = 1, .vectors = 1, .element_bytes = 4, .lanes = lanes};
}
constexpr row_shape softmax_backward_sum(std::size_t lanes) {
  return {.pass = row_pass::reduce, .matrices = 2, .sums = 1, .element_bytes = 4, .lanes = lanes};
}
constexpr row_shape norm_forward(std::size_t vectors, std::size_t element_bytes, std::size_t lanes) {
  return {.pass = row_pass::program,
          .matrices = 1,
          .vectors = vectors,
          .element_bytes = element_bytes,
          .lanes = lanes,
          .reduction = reduction_kind::imperative,
          .outputs = 1};
}
constexpr row_shape norm_backward(std::size_t matrices, std::size_t parameters, std::size_t element_bytes,
                                  std::size_t lanes) {
  return {.pass = row_pass::program,
          .matrices = matrices,
          .vectors = 1,
          .sums = parameters,
          .element_bytes = element_bytes,
          .lanes = lanes,
          .reduction = reduction_kind::declared,
          .reduced_bytes = matrices * element_bytes,
          .outputs = 1};
}
constexpr row_shape rms_norm_backward = norm_backward(2, 1, 4, 16);
constexpr row_shape layer_norm_backward = norm_backward(2, 2, 4, 16);
constexpr row_shape fused_add_backward = norm_backward(3, 1, 4, 16);

// Cores that are told apart by their names alone are tested in one type each.
static_assert([] {
  tigon::core zen5 = cores::zen5;
  zen5.name = cores::other.name;
  return zen5 == cores::other;
}());

// A reduction prefetches where memory is read while it is written, or if there is one for every stream.
static_assert(plan_reduce(cores::zen4, rms_norm_sum(16)).prefetches);
static_assert(!plan_reduce(cores::zen5, rms_norm_sum(16)).prefetches);
static_assert(!plan_reduce(cores::zen5, rms_norm_sum(16)).may_prefetch);
static_assert(plan_reduce(cores::zen5, softmax_backward_sum(16)).may_prefetch);
static_assert(plan_reduce(cores::intel, softmax_backward_sum(16)).may_prefetch);
static_assert(!plan_reduce(cores::intel, softmax_backward_sum(1)).may_prefetch);
static_assert(!plan_reduce(cores::zen4, softmax_backward_sum(1)).prefetches);
static_assert(!plan_reduce(cores::other, softmax_backward_sum(16)).prefetches_far);

// Bandwidth-bound maps keep their loads in order: f32 in vectors of a cache line.
static_assert(plan_map(cores::zen4, swiglu_forward(16)).in_order &&
              plan_map(cores::zen5, swiglu_backward(16)).in_order);
static_assert(!plan_map(cores::intel, swiglu_forward(16)).in_order);
static_assert(!plan_map(cores::zen4, swiglu_forward(8)).in_order && !plan_map(cores::zen4, rms_norm_map(16)).in_order);

// A vector beside one matrix: which end a row that was reduced is mapped from.
static_assert(plan_map(cores::zen4, rms_norm_map(16)).serpentine &&
              !plan_map(cores::zen4, swiglu_forward(16)).serpentine);
static_assert(!plan_map(cores::zen5, rms_norm_map(16)).serpentine &&
              !plan_map(cores::zen5, rms_norm_map(16)).backwards);
static_assert(plan_map(cores::intel, rms_norm_map(16)).backwards &&
              !plan_map(cores::intel, rms_norm_map(16)).serpentine);
static_assert(plan_map(cores::zen4, rms_norm_map(16)).leaves_contiguous);

// What a reduction does for the map.
static_assert(plan_operand(cores::zen5).rows_until_mapped == 2 && plan_operand(cores::zen4).rows_until_mapped == 1);
static_assert(!plan_operand(cores::intel).reduce_brings_operands && !plan_operand(cores::intel).rows_share_cache);
static_assert(plan_operand(cores::other).reduce_brings_operands && plan_operand(cores::other).rows_share_cache);

/// What a program's loops read of a plan.
struct program {
  std::size_t rows, group_rows, group_elements;
  bool prefetches = false, column_blocks = false, shares_loop = false;
  friend constexpr bool operator==(program, program) = default;
};
constexpr program program_of(tigon::core cpu, row_shape shape) {
  const program_plan p = plan_program(cpu, shape);
  return {p.rows, p.group_rows, p.group_elements, p.prefetches, p.column_blocks, p.order == row_order::lookahead};
}
constexpr program lookahead{1, 8, 16384, false, true, true};

// Gradients: a cache-full of rows is reduced, then mapped three or four at a time.
static_assert(program_of(cores::zen5, rms_norm_backward) == program{3, 32, 32768});
static_assert(program_of(cores::zen5, layer_norm_backward) == program{4, 32, 32768});
// Of three matrices one row at a time, two rows block by block; four again in 16 bits.
static_assert(program_of(cores::zen5, fused_add_backward) == program{1, 2, 21845, false, true});
static_assert(program_of(cores::zen5, norm_backward(3, 2, 2, 16)) == program{4, 32, 87381});
// Eight streams.
static_assert(program_of(cores::zen4, rms_norm_backward) == program{3, 32, 32768, true});
static_assert(program_of(cores::zen4, layer_norm_backward) == program{3, 32, 32768, true});
static_assert(program_of(cores::zen4, fused_add_backward) == program{2, 32, 21845, true});
// The map of row i reduces row i + group.
static_assert(program_of(cores::intel, rms_norm_backward) == lookahead);
static_assert(program_of(cores::intel, layer_norm_backward) == lookahead);
static_assert(program_of(cores::intel, fused_add_backward) == lookahead);
// Single numbers are never reduced in a loop that maps.
static_assert(program_of(cores::intel, norm_backward(2, 1, 4, 1)) == program{1, 8, 16384, false, true});

// Maps of rows that were not reduced: several at a time where they share something.
constexpr row_shape map_alone(std::size_t matrices, std::size_t vectors, std::size_t sums) {
  return {.pass = row_pass::program,
          .matrices = matrices,
          .vectors = vectors,
          .sums = sums,
          .element_bytes = 2,
          .lanes = 16,
          .outputs = 1};
}
static_assert(plan_program(cores::zen5, map_alone(2, 0, 0)).rows == 1 &&
              plan_program(cores::zen4, map_alone(2, 0, 0)).rows == 1);
static_assert(plan_program(cores::zen5, map_alone(1, 1, 0)).rows == 4 &&
              plan_program(cores::zen5, map_alone(2, 1, 3)).rows == 2);
static_assert(plan_program(cores::zen5, map_alone(2, 1, 0)).rows == 1);  // too many streams

// Forward: rows are reduced and mapped one by one, but for vectors that are widened with every row.
static_assert(plan_program(cores::zen5, norm_forward(2, 4, 16)).rows == 1 &&
              plan_program(cores::zen5, norm_forward(2, 2, 16)).rows == 4);
static_assert(plan_program(cores::zen4, norm_forward(2, 4, 16)).rows == 1 &&
              plan_program(cores::zen4, norm_forward(1, 4, 16)).rows == 1);
static_assert(plan_program(cores::intel, norm_forward(2, 2, 16)).rows == 1 &&
              plan_program(cores::zen4, norm_forward(2, 2, 1)).rows == 1);

// Rows that share neither sums nor vectors are mapped one by one, and so are rows of several matrices.
static_assert(plan_program(cores::zen5, norm_forward(0, 2, 16)).rows == 1);
static_assert([] {
  row_shape modulated = norm_forward(1, 2, 16);
  modulated.matrices = 3;
  return plan_program(cores::zen4, modulated).rows == 1;
}());

// Outputs that need no reduction: beside sums over the rows, wherever reduction and map are two passes.
static_assert(plan_program(cores::zen4, norm_forward(1, 4, 16)).reduce_writes &&
              !plan_program(cores::zen4, norm_forward(1, 2, 16)).reduce_writes &&
              !plan_program(cores::zen5, norm_forward(1, 4, 16)).reduce_writes);
static_assert(plan_program(cores::zen5, norm_backward(2, 1, 2, 16)).reduce_writes &&
              !plan_program(cores::intel, norm_backward(2, 1, 4, 16)).reduce_writes);

constexpr tigon::core all_cores[] = {cores::other, cores::zen5, cores::zen4, cores::intel};

/// Vectors of this machine, scheduled as for one of those cores, with thresholds so low that small shapes have several
/// tasks and blocks and are streamed.
template <int Core>
struct on_core : tigon::backends::highway {
  using parent = tigon::backends::highway;
  static constexpr tigon::backend_info info{all_cores[Core].name, {tigon::device::cpu}};
  using overrides = tigon::op_list<>;
  static constexpr tigon::row_tuning row{
      .cpu = all_cores[Core], .unroll = 2, .task_elements = 4096, .partials = 5, .stream_bytes = 64, .block_cols = 64};
  static constexpr int notes_plans_of = Core;
};

/// Every plan once; with TIGON_TESTS_ENGINES those of two cores in bf16 as well.
using cores_and_types = with_engines<
    list<on<on_core<0>, float>, on<on_core<1>, tigon::bfloat16>, on<on_core<2>, float>, on<on_core<3>, float>>,
    on<on_core<2>, tigon::bfloat16>, on<on_core<3>, tigon::bfloat16>>;

/// The same numbers in T and in f64.
template <class T>
struct input {
  guarded_matrix<T> of_t;
  guarded_matrix<double> of_f64;
  TIGON_TEST_NOINLINE input(shape s, std::uint64_t seed)
      : of_t(s.rows, s.cols, s.padding), of_f64(s.rows, s.cols, s.padding) {
    std::mt19937_64 generator(seed);
    std::vector<double> values(s.rows * s.cols);
    for (double& v : values) v = static_cast<double>(generator() % 4096) / 2048 - 1;
    of_t.assign(values);
    of_f64.assign(of_t.f64());
  }
  std::span<const T> vector() const { return {of_t.view().data, of_t.cols()}; }
  std::span<const double> vector_of_f64() const { return {of_f64.view().data, of_f64.cols()}; }
};

/// Results in T, and what they should be.
template <class T>
struct output {
  guarded_matrix<T> got;
  guarded_matrix<double> want;
  TIGON_TEST_NOINLINE output(shape s) : got(s.rows, s.cols, s.padding), want(s.rows, s.cols, s.padding) {}
  std::span<T> vector() { return {got.view().data, got.cols()}; }
  std::span<double> wanted() { return {want.view().data, want.cols()}; }
  /// A few roundings to T, of sums in f32; what a row or a block too few, or twice, does is larger by far.
  TIGON_TEST_NOINLINE void check(const char* name) const {
    const auto g = got.f64(), w = want.f64();
    double largest = 0;
    for (const double v : w) largest = std::max(largest, std::abs(v));
    const double bound = largest * (std::is_same_v<T, float> ? 1e-5 : 0.02);
    for (std::size_t k = 0; k < w.size(); ++k)
      ASSERT_NEAR(g[k], w[k], bound) << name << ", row " << k / want.cols() << ", column " << k % want.cols();
    EXPECT_TRUE(got.padding_intact()) << name;
  }
};

/// One row, one vector, blocks and parts of them, tasks; and rows too wide to be prefetched while others are computed.
constexpr shape shapes[] = {{1, 1}, {3, 17, 2}, {40, 64}, {41, 1100, 4}, {3, 140'001, 3}};

template <class P>
class every_core : public testing::Test {
 protected:
  using B = typename P::backend;
  using T = typename P::element;
  using generic = tigon::backends::generic;
};
TYPED_TEST_SUITE(every_core, cores_and_types, names);

TYPED_TEST(every_core, maps) {
  using F = TestFixture;
  using B = typename F::B;
  using T = typename F::T;
  for (const shape& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols);
    const input<T> gate(s, 1), up(s, 2), dy(s, 3);
    output<T> y(s), dgate(s), dup(s);
    tigon::swiglu_forward<B>(gate.of_t, up.of_t, y.got.view());
    tigon::swiglu_forward<typename F::generic>(gate.of_f64, up.of_f64, y.want.view());
    tigon::swiglu_backward<B>(dy.of_t, gate.of_t, up.of_t, dgate.got.view(), dup.got.view());
    tigon::swiglu_backward<typename F::generic>(dy.of_f64, gate.of_f64, up.of_f64, dgate.want.view(), dup.want.view());
    y.check("y"), dgate.check("dgate"), dup.check("dup");
  }
}

/// The programs of docs/add_an_op.md, as they stand there.
struct scale_program {
  template <class V>
  TIGON_INLINE V map(V x, V s) const {
    return x * s;
  }
};
struct scale_gradient {
  template <class V>
  TIGON_INLINE pack<V, 2> map(V dy, V x, V s, V ds) const {
    return {{dy * s, fma(dy, x, ds)}};
  }
};

TYPED_TEST(every_core, maps_of_the_example) {
  using F = TestFixture;
  using B = typename F::B;
  using T = typename F::T;
  auto& ctx = tigon::default_context();
  for (const shape& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols);
    const input<T> x(s, 1), scale({1, s.cols}, 2), dy(s, 3);
    output<T> y(s), dx(s), ds({1, s.cols});
    const matrix_view<const T> x_of(x.of_t.view()), dy_of(dy.of_t.view());
    const vector_view<const T> factors{scale.vector().data(), s.cols};
    const tigon::parameter_gradient<T> dfactors{{ds.vector().data(), s.cols}};
    map_rows<B>(ctx, scale_program(), reads(x_of, factors), writes(y.got.view()));
    ctx.workspace().expect("test", tigon::simd::partials_workspace<B, float>(s.rows, s.cols, 1));
    map_rows<B>(ctx, scale_gradient(), reads(dy_of, x_of, factors), writes(dx.got.view()), tigon::adds_to(dfactors));
    // Single numbers, row by row.
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        const double d = dy.of_f64.view().row(i)[j], f = scale.vector_of_f64()[j];
        const double v = x.of_f64.view().row(i)[j];
        y.want.view().row(i)[j] = v * f, dx.want.view().row(i)[j] = d * f;
        ds.wanted()[j] = (i == 0 ? 0 : ds.wanted()[j]) + d * v;
      }
    y.check("y"), dx.check("dx"), ds.check("ds");
  }
}

TYPED_TEST(every_core, reductions_and_maps_with_gradients_of_a_parameter) {
  using F = TestFixture;
  using B = typename F::B;
  using T = typename F::T;
  for (const bool in_place : {false, true})
    for (const shape& s : shapes) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols << (in_place ? " in place" : ""));
      input<T> x(s, 1);
      const input<T> w({1, s.cols}, 2), given(s, 3);
      // A row that is computed in f64, between others: what is mapped before it must not write it.
      for (std::size_t j = 0; j < s.cols && in_place && s.rows > 2; ++j)
        x.of_f64(1, j) *= 0x1p50, x.of_t(1, j) = static_cast<T>(static_cast<float>(x.of_f64(1, j)));
      output<T> y(s), dx(s), dw({1, s.cols});
      std::vector<float> rstd(s.rows);
      std::vector<double> rstd_of_f64(s.rows);
      tigon::rms_norm_forward<B>(x.of_t, w.vector(), y.got.view(), rstd);
      tigon::rms_norm_forward<typename F::generic>(x.of_f64, w.vector_of_f64(), y.want.view(), rstd_of_f64);
      if (in_place) dx.got.assign(given.of_t.f64());
      tigon::rms_norm_backward<B>(in_place ? dx.got.view() : given.of_t.view(), x.of_t, w.vector(), rstd, dx.got.view(),
                                  dw.vector());
      tigon::rms_norm_backward<typename F::generic>(given.of_f64, x.of_f64, w.vector_of_f64(), rstd_of_f64,
                                                    dx.want.view(), dw.wanted());
      y.check("y"), dx.check("dx"), dw.check("dw");
    }
}

TYPED_TEST(every_core, reductions_and_maps_with_gradients_of_two_parameters) {
  using F = TestFixture;
  using B = typename F::B;
  using T = typename F::T;
  for (const shape& s : shapes) {
    if (s.cols == 1) continue;  // y is b
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols);
    const input<T> x(s, 1), w({1, s.cols}, 2), b({1, s.cols}, 4), dy(s, 3);
    output<T> y(s), dx(s), dw({1, s.cols}), db({1, s.cols});
    std::vector<float> mean(s.rows), rstd(s.rows);
    std::vector<double> mean_of_f64(s.rows), rstd_of_f64(s.rows);
    tigon::layer_norm_forward<B>(x.of_t, w.vector(), b.vector(), y.got.view(), mean, rstd);
    tigon::layer_norm_forward<typename F::generic>(x.of_f64, w.vector_of_f64(), b.vector_of_f64(), y.want.view(),
                                                   mean_of_f64, rstd_of_f64);
    tigon::layer_norm_backward<B>(dy.of_t, x.of_t, w.vector(), mean, rstd,
                                  tigon::norm_gradients{dx.got.view(), dw.vector(), db.vector()});
    tigon::layer_norm_backward<typename F::generic>(dy.of_f64, x.of_f64, w.vector_of_f64(), mean_of_f64, rstd_of_f64,
                                                    tigon::norm_gradients{dx.want.view(), dw.wanted(), db.wanted()});
    y.check("y"), dx.check("dx"), dw.check("dw"), db.check("db");
  }
}

TYPED_TEST(every_core, reductions_without_parameters) {
  using F = TestFixture;
  using B = typename F::B;
  if constexpr (std::is_same_v<typename F::T, float>) {
    for (const shape s : {shape{41, 1100, 4}, {3, 140'001, 3}}) {  // smaller ones are made in f64
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols);
      const input<float> x(s, 1), w({1, 3}, 2), dy(s, 3);
      output<float> dx(s), dw({1, 3}), db({1, 1});
      // A row that f32 does not hold, which is computed in f64, between others.
      auto wide = x.of_t.f64();
      for (std::size_t j = 0; j < s.cols; ++j) wide[s.cols + j] *= 0x1p30;
      guarded_matrix<float> of_t(s.rows, s.cols, s.padding);
      guarded_matrix<double> of_f64(s.rows, s.cols, s.padding);
      of_t.assign(wide), of_f64.assign(wide);
      output<float> y(s);
      std::vector<float> rstd(3 * s.rows);
      std::vector<double> rstd_of_f64(3 * s.rows);
      const std::span<const float> b = w.vector().first(1);
      const std::span<const double> b_of_f64 = w.vector_of_f64().first(1);
      tigon::poly_norm_forward<B>(of_t, w.vector(), b, y.got.view(), rstd);
      tigon::poly_norm_forward<typename F::generic>(of_f64, w.vector_of_f64(), b_of_f64, y.want.view(), rstd_of_f64);
      dx.got.assign(dy.of_t.f64());  // in place
      tigon::poly_norm_backward<B>(dx.got.view(), of_t, w.vector(), rstd,
                                   tigon::norm_gradients{dx.got.view(), dw.vector(), db.vector()});
      tigon::poly_norm_backward<typename F::generic>(dy.of_f64, of_f64, w.vector_of_f64(), rstd_of_f64,
                                                     tigon::norm_gradients{dx.want.view(), dw.wanted(), db.wanted()});
      y.check("y"), dx.check("dx"), dw.check("dw"), db.check("db");
    }
  }
}

/// dshift needs no sum, and may be written by the reduction where its rows begin at cache lines.
TYPED_TEST(every_core, outputs_that_either_pass_may_write) {
  using F = TestFixture;
  using B = typename F::B;
  if constexpr (std::is_same_v<typename F::T, float>) {
    for (const shape& s : shapes) {
      if (s.cols < 16) continue;  // made in f64
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols);
      const input<float> x(s, 1), w({1, s.cols}, 2), dy(s, 3), scale(s, 4);
      output<float> y(s), dx(s), dw({1, s.cols}), dscale(s), dshift(s);
      std::vector<float> rstd(s.rows);
      std::vector<double> rstd_of_f64(s.rows);
      tigon::modulated_rms_norm_forward<B>(x.of_t, w.vector(), scale.of_t.view(), {}, y.got.view(), rstd);
      tigon::modulated_rms_norm_forward<typename F::generic>(x.of_f64, w.vector_of_f64(), scale.of_f64.view(), {},
                                                             y.want.view(), rstd_of_f64);
      tigon::modulated_rms_norm_backward<typename F::generic>(
          dy.of_f64, x.of_f64, w.vector_of_f64(), scale.of_f64, rstd_of_f64,
          tigon::modulated_rms_norm_gradients{dx.want.view(), dw.wanted(), dscale.want.view(), dshift.want.view()});
      const std::size_t stride = (s.cols + 15) / 16 * 16;
      std::vector<float> memory(s.rows * stride + 32);
      std::size_t line = 0;
      while (reinterpret_cast<std::uintptr_t>(&memory[line]) % 64 != 0) ++line;
      std::vector<std::byte> bits;
      for (const std::size_t first : {line, line + 1}) {
        const tigon::matrix_view<float> to{&memory[first], s.rows, s.cols, stride};
        tigon::modulated_rms_norm_backward<B>(
            dy.of_t, x.of_t, w.vector(), scale.of_t, rstd,
            tigon::modulated_rms_norm_gradients{dx.got.view(), dw.vector(), dscale.got.view(), to});
        for (std::size_t i = 0; i < s.rows; ++i) std::copy_n(to.row(i), s.cols, dshift.got.view().row(i));
        y.check("y"), dx.check("dx"), dw.check("dw"), dscale.check("dscale"), dshift.check("dshift");
        const auto now = bits_of(dx.got, dw.got, dscale.got, dshift.got);
        if (!bits.empty()) {
          EXPECT_EQ(now, bits);
        }
        bits = now;
      }
    }
  }
}

TYPED_TEST(every_core, pipelines) {
  using F = TestFixture;
  using B = typename F::B;
  using T = typename F::T;
  for (const shape& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols);
    const input<T> x(s, 1), dy(s, 2), given(s, 3);
    output<T> y(s), dx(s);
    tigon::softmax_forward<B>(x.of_t, y.got.view());
    tigon::softmax_forward<typename F::generic>(x.of_f64, y.want.view());
    tigon::softmax_backward<B>(dy.of_t, given.of_t, dx.got.view());
    tigon::softmax_backward<typename F::generic>(dy.of_f64, given.of_f64, dx.want.view());
    y.check("y"), dx.check("dx");
    auto in_place = input<T>(s, 1).of_t;
    tigon::softmax_forward<B>(in_place, in_place.view());
    output<T> again(s);
    again.got.assign(in_place.f64()), again.want.assign(y.want.f64());
    again.check("y in place");
  }
}

TYPED_TEST(every_core, passes_that_depend_on_data) {
  using F = TestFixture;
  using B = typename F::B;
  using T = typename F::T;
  for (const shape& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols);
    const input<T> logits(s, 1);
    std::vector<std::int64_t> target(s.rows);
    for (std::size_t i = 0; i < s.rows; ++i) target[i] = static_cast<std::int64_t>(i * 7 % s.cols);
    output<T> dlogits(s);
    output<float> loss({1, s.rows});
    const tigon::cross_entropy_options opt{.reduction = tigon::reduction::none};
    tigon::cross_entropy_forward<B>(logits.of_t, target, loss.vector(), dlogits.got.view(), opt);
    tigon::cross_entropy_forward<typename F::generic>(logits.of_f64, target, loss.wanted(), dlogits.want.view(), opt);
    dlogits.check("dlogits"), loss.check("loss");
  }
}

/// The shapes whose plans are pinned above are those that the operators have.
TEST(plans, are_pinned_for_what_operators_read) {
  constexpr std::size_t lanes = tigon::simd::vec<tigon::simd::highway, float>::size;
  const auto read_by = [](int core, row_shape shape) {
    return std::ranges::any_of(noted_shapes(), [=](const noted_shape& n) { return n.by == core && n.shape == shape; });
  };
  for (const int core : {0, 2, 3}) {
    SCOPED_TRACE(all_cores[core].name);
    EXPECT_TRUE(read_by(core, swiglu_forward(lanes)));
    EXPECT_TRUE(read_by(core, swiglu_backward(lanes)));
    EXPECT_TRUE(read_by(core, rms_norm_sum(lanes)));
    EXPECT_TRUE(read_by(core, rms_norm_map(lanes)));
    EXPECT_TRUE(read_by(core, softmax_backward_sum(lanes)));
    EXPECT_TRUE(read_by(core, norm_forward(1, 4, lanes)));
    EXPECT_TRUE(read_by(core, norm_forward(2, 4, lanes)));
    EXPECT_TRUE(read_by(core, norm_backward(2, 1, 4, lanes)));
    EXPECT_TRUE(read_by(core, norm_backward(2, 2, 4, lanes)));
    EXPECT_FALSE(read_by(core, norm_backward(2, 3, 4, lanes))) << "norms have two parameters at most";
  }
}

}  // namespace

// What oneDNN's product promises beyond gemm_test.cpp: strides of any kind, sums in place, no threads but the caller's,
// and the parent's product where oneDNN has no instruction for bf16 (ONEDNN_MAX_CPU_ISA=AVX512_CORE takes it away).
#include <tigon/tigon.hpp>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <tigon/backends/onednn/backend.hpp>

#include "../support/guarded.hpp"
#include "../support/problem.hpp"
#include "../support/threads.hpp"

namespace tigon::test {
namespace {

using backends::highway, backends::onednn;
constexpr transpose kNo = transpose::no, kYes = transpose::yes;
constexpr transpose kBoth[] = {kNo, kYes};

struct my_onednn : onednn {
  static constexpr row_tuning row{.unroll = 2};
};

TEST(onednn, provides_products_and_inherits_the_rest) {
  static_assert(audit<onednn>(all_ops{}));
  static_assert(onednn::info.default_devices.empty() && onednn::info.devices.contains(device::cpu));
  for (const auto& row : coverage<onednn>(all_ops{}))
    EXPECT_EQ(row.provider, row.op == "gemm" ? "onednn" : "generic") << row.op;
  static_assert(std::same_as<provider_t<op::gemm, my_onednn>, onednn> && my_onednn::row.unroll == 2);
}

/// Whether the CPU has the instruction, and the environment leaves it to oneDNN.
bool has_bf16() { return __builtin_cpu_supports("avx512bf16") && std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr; }

TEST(onednn, multiplies_bf16_wherever_the_cpu_does) {
  EXPECT_EQ(one_dnn::products::here().usable(), has_bf16());
  const std::size_t rows_of_bf16 = 100 * 30 * sizeof(bfloat16);
  EXPECT_EQ((gemm_pack_bytes<onednn, bfloat16>(100, 30)),
            has_bf16() ? rows_of_bf16 : (gemm_pack_bytes<highway, bfloat16>(100, 30)));
  // Everything else is the parent's.
  EXPECT_EQ((gemm_pack_bytes<onednn, float>(100, 30)), (gemm_pack_bytes<highway, float>(100, 30)));
  EXPECT_EQ((gemm_pack_bytes<onednn, float, bfloat16>(100, 30)), (gemm_pack_bytes<highway, float, bfloat16>(100, 30)));
  EXPECT_EQ((gemm_pack_bytes<onednn, float16>(100, 30)), (gemm_pack_bytes<highway, float16>(100, 30)));
}

struct sizes {
  std::size_t m, n, k;
};
// Several tiles and less than one; vectors; a single product.
constexpr sizes every_size[] = {{600, 530, 70}, {40, 1030, 33}, {1030, 3, 300}, {1, 700, 50}, {700, 1, 50},
                                {5, 7, 1},      {1, 1, 900},    {1, 1, 1},      {520, 1, 1},  {1, 520, 1}};

/// op(x), rows x cols, in storage order, `padding` elements between rows.
guarded_matrix<bfloat16> stored(std::size_t rows, std::size_t cols, transpose t, unsigned seed, std::size_t padding) {
  guarded_matrix<bfloat16> x(t == kNo ? rows : cols, t == kNo ? cols : rows, padding);
  x.assign(random_matrix<float>({x.rows(), x.cols()}, seed).f64());
  return x;
}

/// x in f64, without its signs where only sizes matter.
std::vector<double> values_of(std::vector<double> x, bool sizes) {
  for (double& v : x) v = sizes ? std::abs(v) : v;
  return x;
}

/// The parent's product in f64.
guarded_matrix<double> wanted(const guarded_matrix<bfloat16>& a, const guarded_matrix<bfloat16>& b,
                              const std::vector<double>& before, const std::vector<double>& bias, shape c,
                              gemm_options opt, bool sizes) {
  guarded_matrix<double> wide_a(a.rows(), a.cols()), wide_b(b.rows(), b.cols()), out(c.rows, c.cols);
  guarded<double> add(c.cols);
  wide_a.assign(values_of(a.f64(), sizes));
  wide_b.assign(values_of(b.f64(), sizes));
  out.assign(values_of(before, sizes));
  add.assign(values_of(bias, sizes));
  if (sizes) opt.alpha = std::abs(opt.alpha);
  gemm<highway>(wide_a.view(), wide_b.view(), out.view(), add, no_epilogue{}, opt);
  return out;
}

template <class TC>
void keeps_its_error(sizes s, gemm_options opt, std::size_t padding, bool with_bias) {
  const auto a = stored(s.m, s.k, opt.a, 1, padding), b = stored(s.k, s.n, opt.b, 2, padding);
  guarded_matrix<TC> c(s.m, s.n, padding);
  if (opt.beta != 0) c.assign(random_matrix<float>({s.m, s.n}, 3).f64());  // else NaN, which must not be read
  guarded<TC> bias(s.n);
  bias.assign(with_bias ? random_matrix<float>({1, s.n}, 4).f64() : std::vector<double>(s.n, 0));
  const auto before = opt.beta != 0 ? c.f64() : std::vector<double>(s.m * s.n, 0);
  const auto want = wanted(a, b, before, bias.f64(), {s.m, s.n}, opt, false);
  const auto size = wanted(a, b, before, bias.f64(), {s.m, s.n}, opt, true);
  if (with_bias)
    gemm<onednn>(a.view(), b.view(), c.view(), bias, no_epilogue{}, opt);
  else
    gemm<onednn>(a.view(), b.view(), c.view(), opt);
  const double eps = 0x1p-24 * (4 + std::sqrt(static_cast<double>(s.k)));
  const double half = std::same_as<TC, float> ? 0 : 0x1p-8;
  for (std::size_t i = 0; i < s.m; ++i)
    for (std::size_t j = 0; j < s.n; ++j)
      ASSERT_LE(std::abs(to_f64(c(i, j)) - want(i, j)), eps * size(i, j) + half * std::abs(want(i, j)))
          << i << ", " << j << " of " << s.m << " x " << s.n << " x " << s.k << ", alpha " << opt.alpha << ", beta "
          << opt.beta << ", transposed " << (opt.a == kYes) << (opt.b == kYes);
  EXPECT_TRUE(c.padding_intact());
}

TEST(onednn, keeps_the_error_of_the_contract_over_tiles_layouts_and_strides) {
  for (const sizes s : every_size)
    for (const transpose ta : kBoth)
      for (const transpose tb : kBoth)
        for (const std::size_t padding : {0u, 5u}) {
          keeps_its_error<float>(s, {.a = ta, .b = tb}, padding, false);
          keeps_its_error<float>(s, {.beta = 1, .a = ta, .b = tb}, padding, false);
          keeps_its_error<float>(s, {.beta = 1, .a = ta, .b = tb}, padding, true);
          keeps_its_error<float>(s, {.alpha = 2, .a = ta, .b = tb}, padding, false);
          keeps_its_error<float>(s, {.alpha = -0.5, .beta = 0.5, .a = ta, .b = tb}, padding, true);
          keeps_its_error<bfloat16>(s, {.beta = 1, .a = ta, .b = tb}, padding, true);
        }
}

TEST(onednn, gives_a_packed_b_the_bits_of_one_with_gaps) {
  for (const sizes s : every_size)
    for (const transpose tb : kBoth) {
      const auto a = stored(s.m, s.k, kNo, 1, 3), b = stored(s.k, s.n, tb, 2, 7);
      guarded_matrix<float> plain(s.m, s.n), packed(s.m, s.n);
      gemm<onednn>(a.view(), b.view(), plain.view(), {.b = tb});
      const std::size_t bytes = gemm_pack_bytes<onednn, bfloat16>(s.k, s.n);
      workspace memory;
      memory.expect("test", bytes);
      workspace::frame frame(memory);
      const auto p = gemm_pack<onednn, bfloat16>(b.view(), {frame.take<std::byte>(bytes), bytes}, tb);
      gemm<onednn>(a.view(), p, packed.view());
      EXPECT_TRUE(bits_of(plain) == bits_of(packed)) << s.m << " x " << s.n << " x " << s.k;
    }
}

TEST(onednn, has_the_same_bits_for_any_threads) {
  const sizes s{600, 1100, 200};
  for (const transpose ta : kBoth) {
    const auto a = stored(s.m, s.k, ta, 1, 0), b = stored(s.k, s.n, kYes, 2, 0);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      guarded_matrix<float> wide(s.m, s.n);
      guarded_matrix<bfloat16> narrow(s.m, s.n);
      gemm<onednn>(a.view(), b.view(), wide.view(), {.a = ta, .b = kYes}, ctx);
      gemm<onednn>(a.view(), b.view(), wide.view(), {.beta = 1, .a = ta, .b = kYes}, ctx);
      gemm<onednn>(a.view(), b.view(), narrow.view(), {.alpha = 0.5, .a = ta, .b = kYes}, ctx);
      return bits_of(wide, narrow);
    }));
  }
}

std::size_t threads_of_this_process() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator()));
}

TEST(onednn, computes_on_the_callers_threads_and_leaves_openmp_as_it_was) {
  if (!one_dnn::has_openmp) GTEST_SKIP() << "oneDNN was built without OpenMP";
  const one_dnn::openmp& openmp = one_dnn::openmp::here();
  openmp.set_num_threads(3);
  const std::size_t before = threads_of_this_process();
  const auto a = stored(700, 900, kNo, 1, 0), b = stored(900, 800, kNo, 2, 0);
  guarded_matrix<float> c(700, 800);
  gemm<onednn>(a.view(), b.view(), c.view());
  EXPECT_EQ(threads_of_this_process(), before);
  EXPECT_EQ(openmp.get_max_threads(), 3);
}

}  // namespace
}  // namespace tigon::test

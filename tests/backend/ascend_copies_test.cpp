// Every copy of the model carries a hint of eviction: blocks that are copied once leave first, parameters last. A
// chip's own copies get it, and the ledger counts by it.
#include "ascend_chips.hpp"

#include <cstring>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/swiglu.hpp>

namespace tigon::test {

using unified_buffer::evict;

struct by_hint {
  std::size_t normally, first, last;
  friend bool operator==(const by_hint&, const by_hint&) = default;
  friend std::ostream& operator<<(std::ostream& to, const by_hint& b) {
    return to << b.normally << " normally, " << b.first << " first, " << b.last << " last";
  }
};

struct seen {
  static inline std::atomic<std::size_t> in[3], out[3], noted_in[3], noted_out[3], bytes_in, bytes_out;
  static void clear() {
    for (auto* all : {in, out, noted_in, noted_out})
      for (int k = 0; k < 3; ++k) all[k] = 0;
    bytes_in = bytes_out = 0;
  }
  static by_hint of(const std::atomic<std::size_t>* c) { return {c[0], c[1], c[2]}; }
};
/// What a vendor's copy instruction is to the chip.
struct hinted_copies {
  static void in(void* to, const void* from, std::size_t bytes, evict hint) {
    seen::in[static_cast<int>(hint)] += bytes;
    std::memmove(to, from, bytes);
  }
  static void out(void* to, const void* from, std::size_t bytes, evict hint) {
    seen::out[static_cast<int>(hint)] += bytes;
    std::memmove(to, from, bytes);
  }
};
struct hint_ledger {
  static constexpr bool poison = true;
  static void note(const unified_buffer::usage& u) {
    for (int k = 0; k < 3; ++k) seen::noted_in[k] += u.in_by[k], seen::noted_out[k] += u.out_by[k];
    seen::bytes_in += u.copied_in, seen::bytes_out += u.copied_out;
  }
};

}  // namespace tigon::test

namespace tigon::backends {
inline namespace TIGON_ABI {
struct ascend_hinted : ascend {
  using parent = ascend;
  static constexpr backend_info info{"ascend_hinted", {device::npu}};
  using overrides = op_list<>;
  using copier = test::hinted_copies;
  using ledger = test::hint_ledger;
};
}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
using chip = tigon::backends::ascend_hinted;

/// The copies got what the ledger was told, and nothing was left out.
void expect_copies(by_hint in, by_hint out) {
  EXPECT_EQ(seen::of(seen::in), in);
  EXPECT_EQ(seen::of(seen::out), out);
  EXPECT_EQ(seen::of(seen::noted_in), in);
  EXPECT_EQ(seen::of(seen::noted_out), out);
  EXPECT_EQ(seen::bytes_in, in.normally + in.first + in.last);
  EXPECT_EQ(seen::bytes_out, out.normally + out.first + out.last);
}

struct norm {
  guarded_matrix<float> x, y;
  std::vector<float> w, rstd;
  norm(std::size_t rows, std::size_t cols)
      : x(random_matrix<float>({rows, cols}, 1)), y(rows, cols), w(cols, 0.5f), rstd(rows) {}
  template <class B>
  void forward() {
    seen::clear();
    tigon::rms_norm_forward<B>(x, w, y.view(), rstd);
  }
};

TEST(ascend_copies, rows_that_fit_leave_first_and_weights_last) {
  constexpr std::size_t rows = 80, cols = 4096, b = sizeof(float);
  norm n(rows, cols), plain(rows, cols);
  n.forward<chip>();
  expect_copies({0, rows * cols * b, 40 * cols * b}, {rows * b, rows * cols * b, 0});  // 40 programs
  plain.forward<tigon::backends::ascend>();
  EXPECT_EQ(bits_of(n.y), bits_of(plain.y));
  EXPECT_EQ(n.rstd, plain.rstd);
}

TEST(ascend_copies, parts_of_a_row_that_is_read_twice_stay) {
  constexpr std::size_t rows = 2, cols = 3 * 4096, b = sizeof(float);
  norm n(rows, cols);
  n.forward<chip>();
  expect_copies({2 * rows * cols * b, 0, rows * cols * b}, {rows * b, rows * cols * b, 0});
}

TEST(ascend_copies, independent_elements_are_copied_once) {
  constexpr std::size_t rows = 7, cols = 9000, b = sizeof(float);
  guarded_matrix<float> gate = random_matrix<float>({rows, cols}, 1), up = random_matrix<float>({rows, cols}, 2),
                        y(rows, cols);
  seen::clear();
  tigon::swiglu_forward<chip>(gate, up, y.view());
  expect_copies({0, 2 * rows * cols * b, 0}, {0, rows * cols * b, 0});
}

TEST(ascend_copies, partial_rows_of_a_gradient_stay) {
  constexpr std::size_t rows = 64, cols = 1024, b = sizeof(float);
  norm n(rows, cols);
  n.forward<chip>();
  guarded_matrix<float> dx(rows, cols);
  std::vector<float> dw(cols);
  seen::clear();
  tigon::rms_norm_backward<chip>(n.y, n.x, n.w, n.rstd, dx.view(), dw);
  const by_hint in = seen::of(seen::in), out = seen::of(seen::out);
  expect_copies(in, out);
  EXPECT_EQ(in.first % (rows * cols * b), 0u);
  EXPECT_GE(in.first, 2 * rows * cols * b);
  EXPECT_GE(in.last, 2 * cols * b) << "the weight and a partial row";
  EXPECT_GE(out.last, cols * b) << "a partial row";
}

}  // namespace

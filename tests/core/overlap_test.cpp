// Whether two views share an element, compared with the set of their bytes.
#include <tigon/core/error.hpp>

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace {

using namespace tigon;
using detail::heads_extent;
using detail::overlap;
using detail::overlaps_itself;

using index = std::uint64_t;

/// A view that is never read: any address and any element size.
heads_extent view(index at, index element, std::array<index, 4> count, std::array<index, 3> stride) {
  heads_extent v(heads_view<const char>(reinterpret_cast<const char*>(at), count[0], count[1], count[2], count[3],
                                        stride[0], stride[1], stride[2]));
  v.element = element;
  return v;
}
heads_extent rows(index at, index count, index width, index stride) {
  return heads_extent(matrix_view<const char>(reinterpret_cast<const char*>(at), count, width, stride));
}

template <class F>
void for_bytes(const heads_extent& v, F f) {
  for (index b = 0; b < v.batch; ++b)
    for (index h = 0; h < v.heads; ++h)
      for (index s = 0; s < v.seq_len; ++s) {
        const index first = (b * v.batch_stride + h * v.head_stride + s * v.seq_stride) * v.element;
        for (index j = 0; j < v.head_dim * v.element; ++j) f(reinterpret_cast<index>(v.data) + first + j);
      }
}

class bytes {
 public:
  /// False if the view has a byte that is marked.
  bool mark(const heads_extent& v) {
    bool fresh = true;
    ++generation_;
    for_bytes(v, [&](index at) { fresh &= std::exchange(seen_[at], generation_) != generation_; });
    return fresh;
  }
  bool has(const heads_extent& v) const {
    bool found = false;
    for_bytes(v, [&](index at) { found |= seen_[at] == generation_; });
    return found;
  }

 private:
  std::vector<int> seen_ = std::vector<int>(1 << 17);
  int generation_ = 0;
};

std::string text(const heads_extent& v) {
  std::string s = "at " + std::to_string(reinterpret_cast<index>(v.data)) + ", elements of " +
                  std::to_string(v.element) + " bytes: ";
  for (const index n : {v.batch, v.heads, v.seq_len, v.head_dim}) s += std::to_string(n) + " ";
  s += "by ";
  for (const index n : {v.batch_stride, v.head_stride, v.seq_stride}) s += std::to_string(n) + " ";
  return s;
}

/// Random small views: one to four strides, of bytes up to whole doubles, strides with and without a common divisor.
class random_views {
 public:
  explicit random_views(unsigned seed) : random_(seed) {}

  index to(index last) { return random_() % (last + 1); }
  heads_extent next(index farthest, index unit) {
    const index element = index{1} << to(3);
    const auto count = [&](index most) { return to(2) == 0 ? 1 : 1 + to(most - 1); };
    const auto stride = [&] { return unit * to(farthest / unit / element); };
    return view(to(farthest), element, {count(4), count(5), count(6), 1 + to(3)}, {stride(), stride(), stride()});
  }

 private:
  std::mt19937 random_;
};

TEST(overlap, is_that_of_the_sets_of_bytes) {
  random_views random(1);
  bytes of_a;
  int shared = 0, apart = 0;
  for (int trial = 0; trial < 40000; ++trial) {
    const index farthest = std::array<index, 4>{16, 60, 250, 2000}[random.to(3)],
                unit = 1 + random.to(1) * random.to(6);
    const heads_extent a = random.next(farthest, unit), b = random.next(farthest, unit);
    of_a.mark(a);
    const bool wanted = of_a.has(b);
    ++(wanted ? shared : apart);
    ASSERT_EQ(overlap(a, b), wanted) << text(a) << "and " << text(b);
    ASSERT_EQ(overlap(b, a), wanted) << text(b) << "and " << text(a);
  }
  EXPECT_GT(shared, 8000);
  EXPECT_GT(apart, 8000);
}

TEST(overlap, of_matrices_is_that_of_the_sets_of_bytes) {
  // Every pair of up to 3 rows, 2 columns and a stride up to 5, in every position to one another.
  bytes of_a;
  int shared = 0, apart = 0;
  for (index code = 0; code < 3 * 2 * 6 * 3 * 2 * 6; ++code) {
    index rest = code;
    const auto pick = [&](index n) { return std::exchange(rest, rest / n) % n; };
    const index m = 1 + pick(3), w = 1 + pick(2), s = pick(6), n = 1 + pick(3), v = 1 + pick(2), t = pick(6);
    of_a.mark(rows(16, m, w, s));
    for (index at = 0; at < 32; ++at) {
      const matrix_view<const char> a(reinterpret_cast<const char*>(16), m, w, s),
          b(reinterpret_cast<const char*>(at), n, v, t);
      const bool wanted = of_a.has(heads_extent(b));
      ++(wanted ? shared : apart);
      ASSERT_EQ(overlap(detail::extent(a), detail::extent(b)), wanted)
          << m << " x " << w << " by " << s << " at 16 and " << n << " x " << v << " by " << t << " at " << at;
    }
  }
  EXPECT_GT(shared, 4000);
  EXPECT_GT(apart, 8000);
}

TEST(overlap, of_a_view_with_itself_is_that_of_its_bytes) {
  random_views random(2);
  bytes of_view;
  int shared = 0, apart = 0;
  for (int trial = 0; trial < 40000; ++trial) {
    const heads_extent v =
        random.next(std::array<index, 3>{16, 60, 250}[random.to(2)], 1 + random.to(1) * random.to(6));
    const bool wanted = !of_view.mark(v);
    ++(wanted ? shared : apart);
    ASSERT_EQ(overlaps_itself(v), wanted) << text(v);
  }
  EXPECT_GT(shared, 8000);
  EXPECT_GT(apart, 8000);
}

TEST(overlap, finds_one_shared_byte_at_the_far_end) {
  // With rows of one byte and coprime strides p > m, q > n, row i of a is row j of b for one pair (i, j) alone.
  const index p = 1048583, q = 1048589, m = 1048576, n = 1048576, far = index{1} << 45;
  for (const auto& [i, j] : {std::pair<index, index>{m - 1, n - 1}, {0, n - 1}, {m - 1, 0}, {7919, 600011}}) {
    const index at_a = far, at_b = far + i * p - j * q;
    EXPECT_TRUE(overlap(rows(at_a, m, 1, p), rows(at_b, n, 1, q)));
    EXPECT_TRUE(overlap(rows(at_a, i + 1, 1, p), rows(at_b, j + 1, 1, q)));
    EXPECT_FALSE(overlap(rows(at_a, i, 1, p), rows(at_b, n, 1, q)));
    EXPECT_FALSE(overlap(rows(at_a, m, 1, p), rows(at_b, j, 1, q)));
    EXPECT_FALSE(overlap(rows(at_a + (i + 1) * p, m - i - 1, 1, p), rows(at_b, n, 1, q)));
  }
  // Column ranges of one wide buffer, rows of another length: 4 gigabytes and not a byte to spare.
  EXPECT_FALSE(overlap(rows(far, m, 2048, 4096), rows(far + 2048, m / 3, 2048, 3 * 4096)));
  EXPECT_TRUE(overlap(rows(far, m, 2048, 4096), rows(far + 2047, m / 3, 2048, 3 * 4096)));
  EXPECT_TRUE(overlap(rows(far, m, 2048, 4096), rows(far + 2048, m / 3, 2049, 3 * 4096)));
}

TEST(overlap, of_large_heads_is_decided_in_a_few_steps) {
  // q, k, v of [tokens, heads, 3, d], 2^36 bytes; batches with padding behind them.
  const index d = 128, heads = 64, tokens = 1 << 20, batch = 4, at = index{1} << 45;
  const auto part = [&](index which, index first, index extra) {
    return view(at + which * d * 2 + first, 2, {batch, heads, tokens, d + extra},
                {(tokens + 77) * heads * 3 * d + 5 * d, 3 * d, heads * 3 * d});
  };
  EXPECT_FALSE(overlap(part(0, 0, 0), part(1, 0, 0)));
  EXPECT_FALSE(overlap(part(2, 0, 0), part(0, 0, 0)));
  EXPECT_TRUE(overlap(part(0, 1, 0), part(1, 0, 0)));
  EXPECT_TRUE(overlap(part(0, 0, 1), part(1, 0, 0)));
  // Every second and every third token, the left and the right half of each.
  const index wide = 4 * heads * d;
  const auto left = [&](index width) { return view(at, 1, {1, heads, tokens, width}, {0, 2 * d, 2 * wide}); };
  const auto right = [&](index from) {
    return view(at + wide / 2 + from, 1, {1, heads / 2, tokens, d}, {0, 3 * d, 3 * wide});
  };
  EXPECT_FALSE(overlap(left(d), right(0)));
  EXPECT_FALSE(overlap(left(d), right(wide / 2 - (heads / 2 - 1) * 3 * d - d)));
  EXPECT_TRUE(overlap(left(d), right(wide / 2 - (heads / 2 - 1) * 3 * d - d + 1)));
}

TEST(overlap, of_strides_without_order_may_be_none) {
  // 0, 3, 6 and 4, 7, 10: neither stride steps over what the other spans.
  EXPECT_FALSE(overlaps_itself(view(64, 4, {1, 2, 3, 1}, {0, 4, 3})));
  EXPECT_TRUE(overlaps_itself(view(64, 4, {1, 4, 5, 1}, {0, 4, 3})));
  EXPECT_TRUE(overlaps_itself(view(64, 4, {1, 1, 3, 1}, {0, 4, 0})));
  const expects expect("op");
  EXPECT_NO_THROW(expect.heads("x", view(64, 4, {1, 2, 3, 1}, {0, 4, 3}), 1, 2, 3, 1));
  EXPECT_THROW(expect.heads("x", view(64, 4, {1, 4, 5, 1}, {0, 4, 3}), 1, 4, 5, 1), error);
}

TEST(overlap, along_strides_of_0_is_none_in_what_is_read) {
  const expects expect("op");
  const auto heads = [&](std::array<index, 3> strides, view_use of) {
    expect.heads("x", view(64, 4, {2, 3, 5, 8}, strides), 2, 3, 5, 8, of);
  };
  for (index k = 1; k < 8; ++k) {  // every choice of axes that repeat
    const std::array<index, 3> strides{k & 1 ? 0 : index{120}, k & 2 ? 0 : index{40}, k & 4 ? 0 : index{8}};
    EXPECT_NO_THROW(heads(strides, view_use::read)) << k;
    EXPECT_THROW(heads(strides, view_use::written), error) << k;
  }
  EXPECT_THROW(heads({0, 40, 7}, view_use::read), error) << "tokens that overlap";
  EXPECT_THROW(heads({0, 8, 8}, view_use::read), error) << "heads that overlap tokens";
  EXPECT_NO_THROW(expect.heads("x", view(64, 4, {1, 3, 1, 8}, {0, 8, 0}), 1, 3, 1, 8)) << "axes of one element";
}

TEST(overlap, of_nothing_is_none) {
  const heads_extent whole = view(0, 1, {1, 1, 1, 1 << 20}, {0, 0, 0});
  for (std::size_t k = 0; k < 4; ++k) {
    std::array<index, 4> count{2, 2, 2, 2};
    count[k] = 0;
    EXPECT_FALSE(overlap(whole, view(64, 4, count, {100, 40, 8})));
    EXPECT_FALSE(overlap(view(64, 4, count, {100, 40, 8}), whole));
    EXPECT_FALSE(overlaps_itself(view(64, 4, count, {0, 0, 0})));
  }
  const matrix_view<const char> all(reinterpret_cast<const char*>(64), 16, 16), none(all.data + 8, 0, 16, 16),
      narrow(all.data + 8, 16, 0, 16);
  EXPECT_FALSE(overlap(detail::extent(all), detail::extent(none)));
  EXPECT_FALSE(overlap(detail::extent(narrow), detail::extent(all)));
}

TEST(overlap, beyond_the_address_space_is_assumed) {
  const index at = index{1} << 40;
  const heads_extent small = rows(at + 4096, 4, 16, 64);
  for (const index huge : {index{1} << 60, index{1} << 62, index{1} << 63, ~index{0}}) {
    EXPECT_TRUE(overlap(rows(at, 3, 16, huge), small)) << huge;
    EXPECT_TRUE(overlap(small, rows(at, huge, 16, 16))) << huge;
    EXPECT_TRUE(overlap(small, view(at, 8, {2, huge, huge, 2}, {huge, 2, huge}))) << huge;
    EXPECT_TRUE(overlaps_itself(view(at, 8, {2, huge, huge, 2}, {huge, 2, huge}))) << huge;
    // A stride of one row, one head or one sequence means nothing.
    EXPECT_FALSE(overlap(rows(at, 1, 16, huge), small)) << huge;
    EXPECT_FALSE(overlap(view(at, 8, {1, 1, 1, 2}, {huge, huge, huge}), small)) << huge;
    const matrix_view<const char> a(reinterpret_cast<const char*>(at), 3, 16, huge),
        b(reinterpret_cast<const char*>(at + 4096), 4, 16, 64), row(a.data, 1, 16, huge);
    EXPECT_TRUE(overlap(detail::extent(a), detail::extent(b))) << huge;
    EXPECT_FALSE(overlap(detail::extent(row), detail::extent(b))) << huge;
  }
}

TEST(overlap, search_ends) {
  // Strides that have nothing to do with one another: whatever the answer, it comes, and no sum passes 64 bits.
  std::mt19937_64 random(3);
  const auto near = [&](int bits) { return (index{1} << bits) + random() % 1000; };
  for (int trial = 0; trial < 5; ++trial) {
    const auto one = [&] {
      return view((index{1} << 45) + random() % (index{1} << 40), 1, {256, 256, 256, 1},
                  {near(39), near(38), near(37)});
    };
    const heads_extent a = one(), b = one();
    overlap(a, b), overlaps_itself(a);
    EXPECT_TRUE(overlap(a, a));
  }
}

}  // namespace

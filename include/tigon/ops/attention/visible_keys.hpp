// Which keys a query sees: two intervals, the first keys of its document and those around its position.
#ifndef TIGON_OPS_ATTENTION_VISIBLE_KEYS_HPP
#define TIGON_OPS_ATTENTION_VISIBLE_KEYS_HPP

#include <tigon/ops/attention/attention_options.hpp>

#include <algorithm>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Keys [first, end).
struct key_range {
  std::size_t first = 0, end = 0;

  bool empty() const { return first >= end; }
  std::size_t size() const { return empty() ? 0 : end - first; }
  key_range within(key_range other) const { return {std::max(first, other.first), std::min(end, other.end)}; }
  bool contains(key_range other) const { return first <= other.first && other.end <= end; }
};

/// What one query sees. The prefix ends before the window begins, or is empty.
struct visible_keys {
  key_range prefix, window;

  bool none() const { return prefix.empty() && window.empty(); }
  /// From the first key to the last.
  key_range all() const {
    if (prefix.empty()) return window;
    return {prefix.first, window.empty() ? prefix.end : window.end};
  }
};

/// How much of a tile of queries and keys is seen.
enum class tile_kind { hidden, border, whole };

/// The rule of attention_options for so many keys of a batch entry.
struct visibility {
  const attention_options& opt;
  std::size_t keys, batch;

  visible_keys of(std::size_t query) const {
    const std::size_t at = opt.offset + query;
    const key_range document = document_of(at);
    const std::size_t right = opt.mask == attention_mask::causal ? 0 : opt.window_right;
    key_range window = document, prefix{document.first, document.first};
    if (opt.window_left < at) window.first = std::max(window.first, at - opt.window_left);
    if (right < keys) window.end = std::min(window.end, at + right + 1);
    window.first = std::min(window.first, window.end);
    if (opt.prefix != 0) {
      prefix.end = document.first + std::min(document.size(), opt.prefix);
      if (window.empty() || window.first <= prefix.end) {
        window = {document.first, std::max(prefix.end, window.empty() ? 0 : window.end)};
        prefix = {};
      }
    }
    return {prefix, window};
  }

 private:
  /// The keys of the batch entry that are no padding.
  key_range not_padded() const {
    return {opt.key_begins.empty() ? 0 : static_cast<std::size_t>(opt.key_begins[batch]),
            opt.key_ends.empty() ? keys : static_cast<std::size_t>(opt.key_ends[batch])};
  }
  /// Of these the ones of the document at this position; all of them where there are no documents.
  key_range document_of(std::size_t at) const {
    const auto& ends = opt.cumulative_lengths;
    if (ends.size() < 2) return not_padded();
    std::size_t low = 0, high = ends.size() - 1;  // the document is one of [low, high)
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      (static_cast<std::size_t>(ends[middle]) <= at ? low : high) = middle;
    }
    const key_range inside{static_cast<std::size_t>(ends[low]), static_cast<std::size_t>(ends[low + 1])};
    return inside.within(not_padded());
  }
};

/// The keys that at least one of these queries sees lie in this range; empty where there are none.
inline key_range seen_by_any(const visible_keys* queries, std::size_t count) {
  key_range range{static_cast<std::size_t>(-1), 0};
  for (std::size_t i = 0; i < count; ++i) {
    const key_range of = queries[i].all();
    if (!of.empty()) range = {std::min(range.first, of.first), std::max(range.end, of.end)};
  }
  return range.empty() ? key_range{} : range;
}

inline tile_kind kind_of(const visible_keys* queries, std::size_t count, key_range tile) {
  bool any = false, all = true;
  for (std::size_t i = 0; i < count; ++i) {
    any = any || !queries[i].window.within(tile).empty() || !queries[i].prefix.within(tile).empty();
    all = all && queries[i].window.contains(tile);
  }
  return !any ? tile_kind::hidden : all ? tile_kind::whole : tile_kind::border;
}

/// The columns of a tile of scores that its rows see. Row r belongs to query r / heads.
struct seen_columns {
  const visible_keys* queries = nullptr;  ///< none: every row sees all columns
  std::size_t heads = 1;
  key_range tile;

  /// From the first key that the row sees to the last, as columns.
  key_range of(std::size_t row) const {
    if (queries == nullptr) return {0, tile.size()};
    const key_range seen = queries[row / heads].all().within(tile);
    return seen.empty() ? key_range{} : key_range{seen.first - tile.first, seen.end - tile.first};
  }
};

/// Scores between the prefix and the window of a row become `value`.
template <class A>
void hide_between(matrix_view<A> scores, const seen_columns& seen, A value) {
  if (seen.queries == nullptr) return;
  for (std::size_t r = 0; r < scores.rows; ++r) {
    const visible_keys of = seen.queries[r / seen.heads];
    if (of.prefix.empty() || of.window.empty()) continue;
    const key_range hidden = key_range{of.prefix.end, of.window.first}.within(seen.tile);
    for (std::size_t j = hidden.first; j < hidden.end; ++j) scores.row(r)[j - seen.tile.first] = value;
  }
}

/// 0 in what a row does not see.
template <class A>
TIGON_INLINE void clear_outside(A* row, std::size_t cols, key_range seen) {
  for (std::size_t j = 0; j < seen.first; ++j) row[j] = A(0);
  for (std::size_t j = seen.end; j < cols; ++j) row[j] = A(0);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_VISIBLE_KEYS_HPP

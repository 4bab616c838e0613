// A device on threads: a backend whose memory the host may not loop over, and whose rows are computed by several
// workers each, a thread for every worker. They meet at barriers where a device has them: in every map, reduction and
// scan, and in row.sync(). Which worker has a column differs from pass to pass. So ThreadSanitizer finds what such a
// device would get wrong, and a number that one worker keeps to itself is wrong where another reads it. Memory of the
// device (support/device_memory.hpp) is out of the host's reach but while rows run: a kernel that reads it elsewhere
// ends the program.
#ifndef TIGON_TESTS_BLOCK_MODEL_BLOCK_MODEL_HPP
#define TIGON_TESTS_BLOCK_MODEL_BLOCK_MODEL_HPP

#include <algorithm>
#include <array>
#include <barrier>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/rows/reduce_map.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/device_memory.hpp"

namespace tigon::test {

/// What a kernel is run without, to see that the model notices.
enum class lacking { nothing, sync, shared_arrays };

/// While it exists, the host reaches the memory of the device, or does not.
class reach {
 public:
  explicit reach(bool is) : before_(device_memory::instance().reachable()) { device_memory::instance().reachable(is); }
  reach(const reach&) = delete;
  reach& operator=(const reach&) = delete;
  ~reach() { device_memory::instance().reachable(before_); }

 private:
  bool before_;
};

/// The workers of a row.
class block {
 public:
  static constexpr std::size_t workers = 3;

  /// All workers come to the same kind of step: a worker that has left the row, or is in another step, ends the
  /// program.
  void meet(std::size_t me, const char* step) {
    steps_[me] = step;
    all_.arrive_and_wait();
    for (const char* other : steps_)
      if (std::strcmp(other, step) != 0) {
        std::fprintf(stderr, "block_model: the workers of a row part: one is in %s, one in %s\n", step, other);
        std::abort();
      }
    all_.arrive_and_wait();
  }
  /// What the workers have, joined in one order by each of them.
  template <class S, class Join>
  S joined(std::size_t me, const char* step, const S& own, Join join) {
    static_assert(std::is_trivially_copyable_v<S> && sizeof(S) <= slot_bytes);
    std::memcpy(slots_[me].data(), &own, sizeof own);
    meet(me, step);
    S total, other;
    std::memcpy(&total, slots_[0].data(), sizeof total);
    for (std::size_t k = 1; k < workers; ++k) {
      std::memcpy(&other, slots_[k].data(), sizeof other);
      total = join(total, other);
    }
    meet(me, step);
    return total;
  }
  /// Memory that all workers get.
  std::byte* array(std::size_t me, std::size_t bytes) {
    meet(me, "array");
    if (me == 0) arrays_.emplace_back(bytes);
    meet(me, "array");
    return arrays_.back().data();
  }
  void end_row(std::size_t me) {
    meet(me, "the end of its row");
    if (me == 0) arrays_.clear();
    meet(me, "the end of its row");
  }

 private:
  static constexpr std::size_t slot_bytes = 512;
  std::barrier<> all_{static_cast<std::ptrdiff_t>(workers)};
  std::array<const char*, workers> steps_{};
  std::array<std::array<std::byte, slot_bytes>, workers> slots_;
  std::vector<std::vector<std::byte>> arrays_;
};

/// One worker of a row, as simd::row_worker is.
template <class A, lacking Lacking>
class block_row {
  using host = backends::generic;
  using lanes = simd::row_worker<host, A>;

 public:
  std::size_t i, cols;

  /// The memory of a row: partial sums and scratch rows.
  struct memory {
    A *partials = nullptr, *scratch = nullptr;
    std::size_t partial_stride = 0, stride = 0;
    std::vector<double>* totals = nullptr;  ///< what the partial sums of all rows add up to
  };

  block_row(block& all, std::size_t me, std::size_t& pass, std::size_t row, std::size_t width, memory of = {})
      : i(row), cols(width), all_(&all), me_(me), pass_(&pass), memory_(of) {}

  bool first() const { return me_ == 0; }
  template <class S>
  void save(S& to, std::type_identity_t<S> value) const {
    if (first()) to = value;
  }
  void sync() const {
    if constexpr (Lacking != lacking::sync) all_->meet(me_, "sync");
  }
  template <class S, std::size_t N>
  auto array() const {
    struct shared {
      std::shared_ptr<S[]> own;
      S* data;
      vector_view<S> first(std::size_t n) const { return {data, n}; }
    };
    if constexpr (Lacking == lacking::shared_arrays) {
      const std::shared_ptr<S[]> own(new S[N]());
      return shared{own, own.get()};
    } else {
      return shared{nullptr, reinterpret_cast<S*>(all_->array(me_, N * sizeof(S)))};
    }
  }

  block_row part(std::size_t first, std::size_t width) const {
    block_row row = *this;
    row.first_ = first, row.cols = width;
    return row;
  }
  block_row on(std::size_t index, std::size_t = 1) const {
    block_row row = *this;
    row.i = index;
    return row;
  }

  vector_view<A> partial(std::size_t k) const { return {memory_.partials + k * memory_.partial_stride, cols}; }
  vector_view<A> scratch(std::size_t k) const { return {memory_.scratch + k * memory_.stride, cols}; }

  template <class M>
  auto at(M m, std::size_t j) const {
    return lanes(i, cols).at(m, j);
  }
  template <class M, class S>
  void put(M m, std::size_t j, S value) const {
    lanes(i, cols).put(m, j, value);
  }

  template <class... X, class... Y, class F>
  void map(simd::reads<X...> in, simd::writes<Y...> out, F f) const {
    all_->meet(me_, "map");
    each(in, [&](auto column, auto x) { column.map(x, out, f); });
    all_->meet(me_, "map");
  }
  template <class... X, class F>
  auto sum(simd::reads<X...> in, F f) const {
    return summed("sum", in, [&](auto column, auto x) { return column.sum(x, f); });
  }
  /// The last of Maxima + the sums is a maximum.
  template <std::size_t Maxima = 0, class... X, class... Y, class F>
  auto map_sum(simd::reads<X...> in, simd::writes<Y...> out, F f) const {
    all_->meet(me_, "map_sum");
    const auto one = [&](auto column, auto x) { return column.template map_sum<Maxima>(x, out, f); };
    if constexpr (Maxima == 0) {
      return summed("map_sum", in, one);
    } else {
      using total = decltype(one(lanes(0, 1), in));
      static_assert(Maxima == 1 && std::tuple_size_v<total> == 2);
      total own{0, -std::numeric_limits<typename total::value_type>::infinity()};
      const auto join = [](total a, total b) { return total{a[0] + b[0], larger(a[1], b[1])}; };
      each(in, [&](auto column, auto x) { own = join(own, one(column, x)); });
      return all_->joined(me_, "map_sum", own, join);
    }
  }
  template <class... X, class F>
  auto max(simd::reads<X...> in, F f) const {
    const auto one = [&](auto column, auto x) { return column.max(x, f); };
    using S = decltype(one(lanes(0, 1), in));
    S own = -std::numeric_limits<S>::infinity();
    each(in, [&](auto column, auto x) { own = larger(own, one(column, x)); });
    return all_->joined(me_, "max", own, [](S a, S b) { return larger(a, b); });
  }
  template <class... X, class S, std::size_t K, class F, class Combine>
  std::array<S, K> reduce(simd::reads<X...> in, std::array<S, K> identity, F f, Combine combine) const {
    using one_lane = simd::vec<simd::scalar, S>;
    const auto join = [&](std::array<S, K> a, std::array<S, K> b) {
      simd::pack<one_lane, K> left, right;
      for (std::size_t k = 0; k < K; ++k) left.v[k] = one_lane(a[k]), right.v[k] = one_lane(b[k]);
      const auto both = combine(left, right);
      for (std::size_t k = 0; k < K; ++k) simd::store(both.v[k], &a[k]);
      return a;
    };
    std::array<S, K> own = identity;
    each(in, [&](auto column, auto x) { own = join(own, column.reduce(x, identity, f, combine)); });
    return all_->joined(me_, "reduce", own, join);
  }

 private:
  template <class S>
  static S larger(S a, S b) {
    return a > b ? a : b;
  }
  // g(worker on one column, operands) for the columns that are this worker's in this pass.
  template <class In, class G>
  void each(In in, G g) const {
    const std::size_t pass = (*pass_)++;
    for (std::size_t j = 0; j < cols; ++j)
      if ((j + pass) % block::workers == me_) g(lanes(i, cols).part(first_ + j, 1), in);
  }
  // Summed in f64, and rounded once.
  template <class In, class G>
  auto summed(const char* step, In in, G one) const {
    using total = decltype(one(lanes(0, 1), in));
    constexpr bool several = requires(total t) { t.size(); };
    constexpr std::size_t K = [] {
      if constexpr (several)
        return std::tuple_size_v<total>;
      else
        return std::size_t{1};
    }();
    using wide = std::array<double, K>;
    wide own{};
    each(in, [&](auto column, auto x) {
      const total t = one(column, x);
      if constexpr (several)
        for (std::size_t k = 0; k < K; ++k) own[k] += static_cast<double>(t[k]);
      else
        own[0] += static_cast<double>(t);
    });
    own = all_->joined(me_, step, own, [](wide a, const wide& b) {
      for (std::size_t k = 0; k < K; ++k) a[k] += b[k];
      return a;
    });
    if constexpr (several) {
      total t;
      for (std::size_t k = 0; k < K; ++k) t[k] = static_cast<typename total::value_type>(own[k]);
      return t;
    } else {
      return static_cast<total>(own[0]);
    }
  }

  block* all_;
  std::size_t me_;
  std::size_t* pass_;  ///< number of the pass, the same in all workers
  memory memory_;
  std::size_t first_ = 0;
};

/// The driver: row after row, each by all workers.
template <lacking Lacking>
struct rows_on_blocks {
  using row_loops = void;
  using row_sums = void;

  template <class A, class F>
  static void for_rows(context& ctx, std::size_t rows, std::size_t cols, simd::row_loop how, F fn) {
    workspace::frame frame(ctx.workspace());
    const std::size_t stride = workspace::padded<A>(cols);
    A* const scratch = how.scratch == 0 ? nullptr : frame.template take<A>(how.scratch * stride);
    launch<A>(rows, cols, {nullptr, scratch, 0, stride}, fn);
  }
  template <class A, class F, class... T>
  static void for_rows(context&, simd::rows_of_all rows, std::size_t cols, adds_to<T...> gradients, F fn) {
    const bool wanted = gradients.wanted();
    const std::size_t stride = wanted ? cols : 0;
    std::vector<A> sums(stride * sizeof...(T));
    std::vector<double> totals(sums.size());
    const reach by_kernel(true);
    launch<A>(rows.count, cols, {wanted ? sums.data() : nullptr, nullptr, stride, 0, &totals}, fn);
    std::size_t k = 0;
    std::apply([&](auto... out) { (add<A>(out, totals.data() + k++ * stride), ...); }, gradients.g);
  }

  template <class P, class... Group>
  static void reduce_map(context& ctx, P program, Group... groups) {
    using rows::group;
    const auto in = group<simd::reads>(groups...);
    const auto out = group<simd::writes>(groups...).y;
    const auto more = group<map_reads>(groups...).x;
    const auto direct = group<reduce_writes>(groups...).y;
    const auto kept = group<kept_rows>(groups...);
    const auto gradients = group<adds_to>(groups...).g;
    const rows::bound_program bound(program, group<of_rows>(groups...), group<saves>(groups...));
    using V = decltype(vector_of_operands(in));
    const rows::extents of = std::apply([](auto... x) { return rows::first_extents(x...); }, in.x);
    constexpr std::size_t X = std::tuple_size_v<decltype(in.x)>, D = std::tuple_size_v<decltype(direct)>;
    constexpr std::size_t G = std::tuple_size_v<decltype(gradients)>;
    constexpr bool maps = std::tuple_size_v<decltype(out)> + G != 0;
    with_gradients<typename V::value_type>(ctx, of, gradients, [=](auto row) {
      if (!kept.keeps(row.i)) return clear(row, direct);
      if constexpr (!maps) {
        if constexpr (D != 0)
          std::apply(
              [&](auto... y) {
                row.map(in, simd::writes(y...),
                        [p = bound.p](auto... x) { return rows::as_pack(p.direct(x...)).v[0]; });
              },
              direct);
        (void)bound.value_of(row, in);
      } else {
        const auto value = bound.value_of(row, in);
        const auto map = rows::mapping<V>(bound.p, value);
        if constexpr (requires { map.skipped(); })
          if (map.skipped())
            return [&]<std::size_t... k>(std::index_sequence<k...>) {
              rows::map_if_in_f64(row, bound, value, in, group<map_reads>(groups...), group<simd::writes>(groups...),
                                  row.partial(k)...);
            }(std::make_index_sequence<G>());
        const auto operands = std::tuple_cat(in.x, more);
        if constexpr (D != 0)
          rows::map_with_partials<G>(row, operands, std::tuple_cat(direct, out),
                                     rows::direct_and_map<X, std::remove_const_t<decltype(map)>>{map});
        else
          rows::map_with_partials<G>(row, operands, out, map);
      }
    });
  }
  template <class P, class... X, class... Y, class... T, class... Beside>
  static void map_rows(context& ctx, P program, simd::reads<X...> in, simd::writes<Y...> out, adds_to<T...> gradients,
                       Beside...) {
    using V = typename decltype(vector_of_map(in, out))::type;
    const auto map = rows::mapping<V>(program);
    with_gradients<typename V::value_type>(ctx, extents_of_map(in, out), gradients.g, [=](auto row) {
      rows::map_with_partials<sizeof...(T)>(row, in.x, out.y, map);
    });
  }
  template <class P, class... X, class... Y, class F>
  static void map_rows(context&, P program, simd::reads<X...> in, simd::writes<Y...> out, kept_rows<F> kept) {
    using V = typename decltype(vector_of_map(in, out))::type;
    const auto map = rows::mapping<V>(program);
    const rows::extents of = extents_of_map(in, out);
    launch<typename V::value_type>(of.rows, of.cols, {}, [=](auto row) {
      if (!kept.keeps(row.i)) return clear(row, out.y);
      row.map(in, out, map);
    });
  }

 private:
  using host = backends::generic;
  template <class... X>
  static rows::vec_of<host, X...> vector_of_operands(simd::reads<X...>);
  template <class... X, class... Y>
  static auto vector_of_map(simd::reads<X...>, simd::writes<Y...>) {
    if constexpr ((!std::is_void_v<typename rows::element_of<X>::type> || ...))
      return std::type_identity<rows::vec_of<host, X...>>();
    else
      return std::type_identity<rows::vec_of<host, Y...>>();
  }
  template <class In, class Out>
  static rows::extents extents_of_map(In in, Out out) {
    return std::apply([](auto... operand) { return rows::first_extents(operand...); }, std::tuple_cat(out.y, in.x));
  }
  template <class Row, class... Y>
  static void clear(const Row& row, const std::tuple<Y...>& outputs) {
    rows::clear_outputs(row, outputs);
  }
  template <class A, class... T, class F>
  static void with_gradients(context& ctx, rows::extents of, const std::tuple<parameter_gradient<T>...>& gradients,
                             F fn) {
    if constexpr (sizeof...(T) == 0)
      launch<A>(of.rows, of.cols, {}, fn);
    else
      for_rows<A>(ctx, of.rows, of.cols, std::apply([](auto... out) { return adds_to(out...); }, gradients), fn);
  }
  template <class A, class T>
  static void add(parameter_gradient<T> to, const double* totals) {
    for (std::size_t j = 0; to.out.data != nullptr && j < to.out.size; ++j) {
      const A before = to.mode == gradient::accumulate ? static_cast<A>(to.out.data[j]) : A(0);
      to.out.data[j] = static_cast<T>(before + static_cast<A>(totals[j]));
    }
  }

  template <class A, class F>
  static void launch(std::size_t rows, std::size_t cols, typename block_row<A, Lacking>::memory of, F fn) {
    if (rows == 0) return;
    const reach by_kernel(true);
    block all;
    std::vector<std::thread> workers;
    for (std::size_t me = 0; me < block::workers; ++me)
      workers.emplace_back([&, me] {
        std::size_t pass = 0;
        for (std::size_t i = 0; i < rows; ++i) {
          fn(block_row<A, Lacking>(all, me, pass, i, cols, of));
          all.end_row(me);
          if (of.totals == nullptr) continue;
          for (std::size_t j = me; j < of.totals->size(); j += block::workers)
            (*of.totals)[j] += static_cast<double>(std::exchange(of.partials[j], A(0)));
          all.meet(me, "the sums over rows");
        }
      });
    for (std::thread& worker : workers) worker.join();
  }
};

}  // namespace tigon::test

#endif  // TIGON_TESTS_BLOCK_MODEL_BLOCK_MODEL_HPP

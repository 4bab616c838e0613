// Losses over a split vocabulary on the model of a GPU. Ranks are threads, whose kernels run one after the other; what
// they gather is copied by kernels. Results are compared with those of one rank in f64 on a CPU, at the bounds of the
// contracts.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <array>
#include <cstdint>
#include <optional>
#include <tigon/comm/threads.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>

namespace {

using namespace cuda_tests;

void copy_bytes(const std::byte* from, std::byte* to, std::size_t n) {
  for (std::size_t k = threadIdx.x; k < n; k += blockDim.x) to[k] = from[k];
}

/// A device of each rank: one part of the model's memory.
class model_ranks {
 public:
  static constexpr bool host_memory = false;
  enum class hosts { compare, exchange_nothing };

  model_ranks(const comm::threads& ranks, void* stream, hosts how = hosts::compare) : ranks_(ranks), stream_(stream) {
    if (how == hosts::compare) host_.emplace(ranks_);
  }
  model_ranks(const model_ranks&) = delete;
  std::size_t rank() const { return ranks_.rank(); }
  std::size_t size() const { return ranks_.size(); }
  const void* queue() const { return stream_; }
  const communicator_ref* host() const { return host_ ? &*host_ : nullptr; }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    std::vector<const std::byte*> from(size());
    const std::byte* const own = mine.data();
    comm::all_gather<const std::byte*>(ranks_, {&own, 1}, std::span(from));
    for (std::size_t r = 0; r < size(); ++r)
      cuda_model::launch(stream_, copy_bytes, dim3(1), dim3(32), from[r], all.data() + r * mine.size(), mine.size());
    comm::all_gather<const std::byte*>(ranks_, {&own, 1}, std::span(from));  // all have read
    sent += mine.size();
  }
  mutable std::size_t sent = 0;

 private:
  comm::threads ranks_;
  void* stream_;
  std::optional<communicator_ref> host_;
};

void* stream_of_rank(std::size_t r) { return reinterpret_cast<void*>(r + 1); }

/// fn(ranks, context) on every rank, with the device's memory out of the host's reach, and a workspace of so many bytes
/// there.
template <class Fn>
void on_ranks(std::size_t ranks, std::size_t bytes, Fn fn, model_ranks::hosts how = model_ranks::hosts::compare) {
  std::vector<std::span<std::byte>> memory;
  for (std::size_t r = 0; r < ranks; ++r)
    memory.emplace_back(static_cast<std::byte*>(device_memory::instance().take(bytes + 64)), bytes);
  const struct out_of_reach {
    out_of_reach() {
      cuda_model::before_kernel = [] { device_memory::instance().reachable(true); };
      cuda_model::after_kernel = [] { device_memory::instance().reachable(false); };
      device_memory::instance().reachable(false);
    }
    ~out_of_reach() {
      cuda_model::before_kernel = cuda_model::after_kernel = nullptr;
      device_memory::instance().reachable(true);
    }
  } hidden;
  const unsigned waits = cuda_model::waits;
  comm::threads::run(ranks, [&](const comm::threads& c) {
    void* const stream = stream_of_rank(c.rank());
    workspace scratch(memory[c.rank()]);
    context ctx(serial(), scratch, gpu::queue(stream));
    const model_ranks of(c, stream, how);
    fn(of, ctx);
  });
  EXPECT_EQ(cuda_model::waits, waits);
}

/// Columns of ranks: [cuts[r], cuts[r + 1]).
using cuts = std::vector<std::size_t>;

// Labels in memory of the device, some at the ends of shards, every fifth of them ignored.
std::span<std::int64_t> labels_of(std::size_t rows, std::size_t vocab, std::int64_t ignored = -100) {
  auto* const target = static_cast<std::int64_t*>(device_memory::instance().take(rows * sizeof(std::int64_t)));
  const std::size_t at_cuts[] = {vocab / 2, vocab / 3, 0, vocab / 2 - 1, vocab - 1};
  for (std::size_t i = 0; i < rows; ++i)
    target[i] = i % 5 == 3 ? ignored : static_cast<std::int64_t>(i < 5 ? at_cuts[i] : (i * 7919 + 3) % vocab);
  return {target, rows};
}
template <class T>
std::vector<double> wide(const std::vector<T>& v) {
  std::vector<double> out;
  for (const T& x : v) out.push_back(static_cast<double>(x));
  return out;
}
/// The largest error, of |wanted| + the root mean square of all.
template <class T>
double error_of(const std::vector<T>& got, const std::vector<double>& wanted) {
  double square = 0, worst = 0;
  for (const double v : wanted) square += v * v;
  const double rms = std::sqrt(square / static_cast<double>(std::max<std::size_t>(wanted.size(), 1)));
  EXPECT_EQ(got.size(), wanted.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    const double apart = std::fabs(static_cast<double>(got[k]) - wanted[k]);
    if (!(apart == 0)) worst = std::max(worst, std::isnan(apart) ? 1e300 : apart / (std::fabs(wanted[k]) + rms));
  }
  return worst;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
template <class F>
std::string error_from(F f) {
  try {
    f();
  } catch (const error& e) {
    return e.what();
  }
  return "no error";
}

struct row_options {
  vocab_parallel_cross_entropy_options of{};
  float scale = 4;  ///< of the logits
  bool in_place = false, upstream_of_rows = false;
  bool edges = false;  ///< logits that are no numbers
};
/// What forward and backward leave: of every rank loss, top and rest; dlogits of the whole vocabulary.
template <class A, class T>
struct row_results {
  std::vector<std::vector<A>> loss, top, rest;
  std::vector<T> dlogits;
};
template <class T>
class rows_over_ranks {
 public:
  using A = accumulator_t<T>;

  rows_over_ranks(shape s, const row_options& opt) : s_(s), opt_(opt) {}

  row_results<A, T> run(const cuts& at, model_ranks::hosts how = model_ranks::hosts::compare) {
    device_memory::instance().clear();
    fill();
    const std::size_t ranks = at.size() - 1;
    std::vector<numbers<A>> loss, top, rest;
    for (std::size_t r = 0; r < ranks; ++r)
      loss.emplace_back(1, s_.rows), top.emplace_back(1, s_.rows), rest.emplace_back(1, s_.rows);
    const std::size_t bytes = vocab_parallel_cross_entropy_workspace<cuda, T>(s_.rows, s_.cols, ranks, opt_.of);
    on_ranks(
        ranks, bytes,
        [&](const model_ranks& c, context& ctx) {
          const std::size_t r = c.rank(), cols = at[r + 1] - at[r];
          const vocab_shard shard{at[r], s_.cols};
          const auto mine = z_->matrix().cols_from(at[r], cols), d = dz_->matrix().cols_from(at[r], cols);
          vocab_parallel_cross_entropy_forward<cuda>(
              c, mine, shard, target_, {loss[r].vector(), top[r].vector(), rest[r].vector()}, opt_.of, ctx);
          const std::size_t kept = opt_.of.label_smoothing == 0 ? 3 : 4;
          EXPECT_EQ(c.sent, ranks == 1 ? 0 : (16 + kept * sizeof(A) * s_.rows + 15) / 16 * 16);
          const std::span<const A> top_of = top[r].vector(), rest_of = rest[r].vector();
          vocab_parallel_cross_entropy_backward<cuda, T>(mine, shard, target_, upstream_->vector(), {top_of, rest_of},
                                                         opt_.in_place ? mine : d, opt_.of, ctx);
        },
        how);
    row_results<A, T> out;
    for (std::size_t r = 0; r < ranks; ++r) {
      EXPECT_TRUE(loss[r].is_alone() && top[r].is_alone() && rest[r].is_alone());
      out.loss.push_back(loss[r].all()), out.top.push_back(top[r].all()), out.rest.push_back(rest[r].all());
    }
    EXPECT_TRUE(z_->is_alone() && dz_->is_alone());
    out.dlogits = (opt_.in_place ? z_ : dz_)->all();
    return out;
  }
  /// In f64 by backend generic, on the numbers that T has.
  row_results<double, double> wanted(const cuts& at) {
    device_memory::instance().clear();
    fill();
    std::vector<double> z = wide(z_->all()), dz(z.size());
    const std::vector<double> up = wide(upstream_->all());
    const std::size_t ranks = at.size() - 1;
    row_results<double, double> out;
    out.loss.assign(ranks, std::vector<double>(s_.rows)), out.top = out.rest = out.loss;
    comm::threads::run(ranks, [&](const comm::threads& c) {
      const std::size_t r = c.rank(), cols = at[r + 1] - at[r];
      const vocab_shard shard{at[r], s_.cols};
      const auto part = [&](std::vector<double>& m) {
        return matrix_view(m.data(), s_.rows, s_.cols).cols_from(at[r], cols);
      };
      vocab_parallel_cross_entropy_forward<generic>(c, part(z), shard, target_, {out.loss[r], out.top[r], out.rest[r]},
                                                    opt_.of);
      vocab_parallel_cross_entropy_backward<generic, double>(part(z), shard, target_, up, {out.top[r], out.rest[r]},
                                                             part(dz), opt_.of);
    });
    out.dlogits = dz;
    return out;
  }

 private:
  void fill() {
    z_.emplace(numbers<T>(s_.rows, s_.cols, s_.apart).fill(1));
    for (std::size_t i = 0; i < s_.rows; ++i)
      for (std::size_t j = 0; j < s_.cols; ++j) {
        T& v = z_->data[i * z_->stride + j];
        v = T(static_cast<float>(v) * opt_.scale);
      }
    target_ = labels_of(s_.rows, s_.cols);
    if (opt_.edges) put_edges();
    dz_.emplace(s_.rows, s_.cols, s_.apart);
    upstream_.emplace(numbers<A>(1, opt_.upstream_of_rows ? s_.rows : 1).fill(3, 2));
  }
  void put_edges() {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const auto put = [&](std::size_t i, std::size_t first, std::size_t end, float v) {
      for (std::size_t j = first; j < end; ++j) z_->data[i * z_->stride + j] = T(v);
    };
    const std::size_t last = s_.cols - 1;
    put(0, last, last + 1, std::numeric_limits<float>::quiet_NaN());
    put(1, 2, 3, infinity);
    put(2, 0, s_.cols, -infinity);
    put(3, 0, s_.cols, infinity);  // an ignored row
    const auto t = static_cast<std::size_t>(target_[4]);
    put(4, t, t + 1, -infinity);
    put(5, 0, s_.cols * 2 / 3, -infinity);
  }

  shape s_;
  row_options opt_;
  std::optional<numbers<T>> z_, dz_;
  std::optional<numbers<A>> upstream_;
  std::span<std::int64_t> target_;
};

const auto even_cuts = [](std::size_t vocab, std::size_t ranks) {
  cuts at;
  for (std::size_t r = 0; r <= ranks; ++r) at.push_back(vocab * r / ranks);
  return at;
};

template <class T>
void expect_rows(shape s, const row_options& opt) {
  rows_over_ranks<T> of(s, opt);
  const bool own_losses = opt.of.classes == smoothing_classes::partition && opt.of.label_smoothing > 0;
  for (const cuts& at : {even_cuts(s.cols, 1), even_cuts(s.cols, 2), even_cuts(s.cols, 3),
                         own_losses ? even_cuts(s.cols, 2) : cuts{0, 0, s.cols / 3, s.cols}}) {
    const auto got = of.run(at), again = of.run(at);
    const auto wanted = of.wanted(own_losses ? at : cuts{0, s.cols});
    const std::size_t ranks = at.size() - 1;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::vector<double>& loss = wanted.loss[own_losses ? r : 0];
      EXPECT_LT(error_of(got.loss[r], loss), sizeof(T) == 8 ? 1e-13 : 4e-7) << "loss of " << ranks;
      EXPECT_TRUE(same_bits(got.top[r], got.top[0]) && same_bits(got.rest[r], got.rest[0]));
      EXPECT_TRUE(own_losses || same_bits(got.loss[r], got.loss[0]));
      EXPECT_TRUE(same_bits(got.loss[r], again.loss[r]) && same_bits(got.rest[r], again.rest[r]));
    }
    EXPECT_LT(error_of(got.dlogits, wanted.dlogits), sizeof(T) == 8   ? 1e-13
                                                     : sizeof(T) == 4 ? 1e-6
                                                                      : 4e-3)
        << "dlogits of " << ranks;
    EXPECT_TRUE(same_bits(got.dlogits, again.dlogits));
  }
}
TEST(cuda_ranks, vocab_parallel_cross_entropy) {
  for (const shape& s : {shape{7, 1001}, shape{6, 64, 4}}) {
    expect_rows<float>(s, {});
    expect_rows<float>(s, {.in_place = true, .upstream_of_rows = true});
    expect_rows<bfloat16>(s, {.scale = 8});
  }
  expect_rows<double>({5, 70}, {});
  expect_rows<float>({5, 70}, {.scale = 300});
}
TEST(cuda_ranks, vocab_parallel_cross_entropy_with_smoothing) {
  for (const auto formula : {smoothing_formula::pytorch, smoothing_formula::megatron})
    for (const auto classes : {smoothing_classes::global, smoothing_classes::partition}) {
      expect_rows<float>({7, 101}, {{.label_smoothing = 0.1, .formula = formula, .classes = classes}});
      expect_rows<bfloat16>({6, 64, 8}, {{.label_smoothing = 0.1, .formula = formula, .classes = classes}});
    }
}
// NaN and inf are where the CPU has them: of a row on any rank in that row on all, and nowhere else.
TEST(cuda_ranks, logits_that_are_no_numbers) {
  const auto alike = [](double a, double b) {
    return std::isfinite(b) ? std::fabs(a - b) <= 1e-5 * std::fabs(b) + 1e-6 : std::isnan(b) ? std::isnan(a) : a == b;
  };
  for (const double smoothing : {0.0, 0.1}) {
    rows_over_ranks<float> of({8, 66}, {.of = {.label_smoothing = smoothing}, .edges = true});
    const cuts at = even_cuts(66, 3);
    const auto got = of.run(at);
    const auto wanted = of.wanted(at);
    for (std::size_t i = 0; i < 8; ++i)
      for (std::size_t r = 0; r < 3; ++r) {
        EXPECT_PRED2(alike, got.loss[r][i], wanted.loss[r][i]) << "row " << i;
        EXPECT_PRED2(alike, got.top[r][i], wanted.top[r][i]) << "row " << i;
        EXPECT_PRED2(alike, got.rest[r][i], wanted.rest[r][i]) << "row " << i;
      }
    for (std::size_t k = 0; k < 8 * 66; ++k) EXPECT_PRED2(alike, got.dlogits[k], wanted.dlogits[k]) << "row " << k / 66;
  }
}
// Without a communicator of the hosts nothing is compared, and results are the same.
TEST(cuda_ranks, hosts_that_exchange_nothing) {
  rows_over_ranks<float> of({7, 101}, {});
  const auto got = of.run(even_cuts(101, 3), model_ranks::hosts::exchange_nothing), wanted = of.run(even_cuts(101, 3));
  EXPECT_TRUE(same_bits(got.loss[2], wanted.loss[0]) && same_bits(got.dlogits, wanted.dlogits));
}

struct layer_options {
  vocab_parallel_fused_linear_cross_entropy_options of{};
  gradient mode = gradient::overwrite;
  std::size_t chunk = 0;  ///< 0: all rows at once
  bool bias = false, weighted = false, metrics = false;
  bool backward = false;  ///< gradients by the call of that name, for an upstream gradient a row
};
template <class A, class T>
struct layer_results {
  std::vector<std::vector<A>> loss;  ///< and what goes with it, of every rank
  std::vector<std::vector<T>> dx;
  std::vector<T> dw, dbias;
};
template <class T>
class layer_over_ranks {
 public:
  using A = accumulator_t<T>;

  layer_over_ranks(shape s, std::size_t vocab, const layer_options& opt) : s_(s), vocab_(vocab), opt_(opt) {}

  layer_results<A, T> run(const cuts& at) {
    const std::size_t ranks = at.size() - 1;
    device_memory::instance().clear();
    fill(ranks);
    context shape_of_call(serial(), none_);
    shape_of_call.logit_rows(opt_.chunk);
    std::size_t bytes = 0;
    for (std::size_t r = 0; r < ranks; ++r)
      bytes = std::max(bytes, vocab_parallel_fused_linear_cross_entropy_workspace<cuda, T>(
                                  s_.rows, s_.cols, at[r + 1] - at[r], vocab_, ranks, shape_of_call));
    on_ranks(ranks, bytes, [&](const model_ranks& c, context& ctx) { call(c, at, ctx); });
    layer_results<A, T> out;
    for (std::size_t r = 0; r < ranks; ++r) {
      results_of_rank& own = of_[r];
      EXPECT_TRUE(own.loss.is_alone() && own.dx.is_alone() && own.z_loss.is_alone() && own.hits.is_alone());
      out.dx.push_back(own.dx.all());
      out.loss.push_back(own.loss.all());
      if (!opt_.metrics) continue;
      for (const auto& more : {own.z_loss.all(), own.hits.all()})
        out.loss.back().insert(out.loss.back().end(), more.begin(), more.end());
      for (std::size_t k = 0; k <= s_.rows; ++k) out.loss.back().push_back(static_cast<A>(own.integers[k]));
    }
    EXPECT_TRUE(dw_->is_alone() && dbias_->is_alone());
    out.dw = dw_->all(), out.dbias = dbias_->all();
    return out;
  }
  /// By one rank, in f64, by backend generic.
  layer_results<double, double> wanted() {
    device_memory::instance().clear();
    fill(1);
    const std::size_t losses = losses_of();
    std::vector<double> x = wide(x_->all()), w = wide(w_->all()), bias = wide(bias_->all()), dx(x.size()),
                        dw = wide(dw_->all()), dbias = wide(dbias_->all()), loss(losses), z_loss(losses), hits(losses);
    const std::vector<double> weight = wide(weight_->all()), up = wide(upstream_->all());
    std::vector<std::int64_t> integers(s_.rows + 1);
    const auto matrix = [&](auto& m) { return matrix_view(m.data(), m.size() / s_.cols, s_.cols); };
    const linear_shard<double> part{{matrix(x), matrix(w), opt_.bias ? std::span(bias) : std::span<double>()},
                                    {0, vocab_}};
    const linear_gradients<double> to{matrix(dx), matrix(dw), opt_.bias ? std::span(dbias) : std::span<double>(),
                                      opt_.mode};
    cross_entropy_metrics<double> metrics{z_loss, hits, std::span(integers).first(s_.rows),
                                          std::span(integers).subspan(s_.rows)};
    if (!opt_.metrics) metrics = {};
    const comm::serial alone;
    const auto run = [&](const auto& of_class) {
      vocab_parallel_fused_linear_cross_entropy_forward<generic, double>(
          alone, part, target_, {loss, metrics}, opt_.backward ? linear_gradients<double>{} : to, opt_.of, of_class);
      if (opt_.backward)
        vocab_parallel_fused_linear_cross_entropy_backward<generic, double>(alone, part, target_, up, to, opt_.of,
                                                                            of_class);
    };
    opt_.weighted ? run(weight) : run(absent);
    if (opt_.metrics) {
      loss.insert(loss.end(), z_loss.begin(), z_loss.end()), loss.insert(loss.end(), hits.begin(), hits.end());
      for (const std::int64_t v : integers) loss.push_back(static_cast<double>(v));
    }
    if (!opt_.bias) dbias = wide(dbias_->all());
    return {{loss}, {dx}, dw, dbias};
  }

 private:
  struct results_of_rank {
    numbers<A> loss, z_loss, hits;
    numbers<T> dx;
    std::int64_t* integers;
  };
  std::size_t losses_of() const { return opt_.of.loss.reduction == reduction::none ? s_.rows : 1; }
  void fill(std::size_t ranks) {
    x_.emplace(numbers<T>(s_.rows, s_.cols, s_.apart).fill(1));
    w_.emplace(numbers<T>(vocab_, s_.cols).fill(2)), bias_.emplace(numbers<T>(1, vocab_).fill(3));
    weight_.emplace(numbers<A>(1, vocab_).fill(4, 1.5f)), upstream_.emplace(numbers<A>(1, s_.rows).fill(5, 2));
    dw_.emplace(numbers<T>(vocab_, s_.cols).fill(6)), dbias_.emplace(numbers<T>(1, vocab_).fill(7));
    target_ = labels_of(s_.rows, vocab_, opt_.of.loss.ignore_index);
    of_.clear();
    for (std::size_t r = 0; r < ranks; ++r)
      of_.push_back({numbers<A>(1, losses_of()), numbers<A>(1, losses_of()), numbers<A>(1, losses_of()),
                     numbers<T>(s_.rows, s_.cols, s_.apart),
                     static_cast<std::int64_t*>(device_memory::instance().take((s_.rows + 1) * sizeof(std::int64_t)))});
  }
  void call(const model_ranks& c, const cuts& at, context& ctx) {
    const std::size_t r = c.rank(), first = at[r], cols = at[r + 1] - first;
    results_of_rank& own = of_[r];
    ctx.logit_rows(opt_.chunk);
    const auto of_classes = [&](const numbers<T>& m) { return m.matrix().rows_from(first, cols); };
    const auto part_of = [&](const numbers<T>& v) {
      return opt_.bias ? v.vector().subspan(first, cols) : std::span<T>();
    };
    const linear_shard<T> part{{x_->matrix(), of_classes(*w_), part_of(*bias_)}, {first, vocab_}};
    const linear_gradients<T> to{own.dx.matrix(), of_classes(*dw_), part_of(*dbias_), opt_.mode};
    cross_entropy_metrics<A> metrics{
        own.z_loss.vector(), own.hits.vector(), {own.integers, s_.rows}, {own.integers + s_.rows, 1}};
    if (!opt_.metrics) metrics = {};
    const auto run = [&](const auto& of_class) {
      vocab_parallel_fused_linear_cross_entropy_forward<cuda, T>(c, part, target_, {own.loss.vector(), metrics},
                                                                 opt_.backward ? linear_gradients<T>{} : to, opt_.of,
                                                                 of_class, ctx);
      if (opt_.backward)
        vocab_parallel_fused_linear_cross_entropy_backward<cuda, T>(c, part, target_, upstream_->vector(), to, opt_.of,
                                                                    of_class, ctx);
    };
    opt_.weighted ? run(weight_->vector()) : run(absent);
  }

  shape s_;
  std::size_t vocab_;
  layer_options opt_;
  workspace none_;
  std::optional<numbers<T>> x_, w_, bias_, dw_, dbias_;
  std::optional<numbers<A>> weight_, upstream_;
  std::span<std::int64_t> target_;
  std::vector<results_of_rank> of_;
};

template <class T>
void expect_layer(shape s, const layer_options& opt) {
  constexpr std::size_t vocab = 73;
  layer_over_ranks<T> of(s, vocab, opt);
  const auto wanted = of.wanted();
  const double gradients = sizeof(T) == 8 ? 1e-12 : sizeof(T) == 4 ? 2e-6 : 8e-3;
  for (const cuts& at : {even_cuts(vocab, 1), even_cuts(vocab, 2), even_cuts(vocab, 3), cuts{0, 40, 40, vocab}}) {
    const auto got = of.run(at), again = of.run(at);
    const std::size_t ranks = at.size() - 1;
    for (std::size_t r = 0; r < ranks; ++r) {
      EXPECT_LT(error_of(got.loss[r], wanted.loss[0]), sizeof(T) == 8 ? 1e-12 : 4e-7) << ranks << " ranks";
      EXPECT_TRUE(same_bits(got.loss[r], got.loss[0]) && same_bits(got.dx[r], got.dx[0]));
      EXPECT_TRUE(same_bits(got.loss[r], again.loss[r]) && same_bits(got.dx[r], again.dx[r]));
    }
    EXPECT_LT(error_of(got.dx[0], wanted.dx[0]), gradients) << "dx of " << ranks;
    EXPECT_LT(error_of(got.dw, wanted.dw), gradients) << "dw of " << ranks;
    EXPECT_LT(error_of(got.dbias, wanted.dbias), gradients) << "dbias of " << ranks;
    EXPECT_TRUE(same_bits(got.dw, again.dw) && same_bits(got.dbias, again.dbias));
  }
}
TEST(cuda_ranks, vocab_parallel_fused_linear_cross_entropy) {
  expect_layer<float>({11, 40}, {.bias = true, .metrics = true});
  expect_layer<float>({13, 19, 2}, {.mode = gradient::accumulate, .chunk = 4});
  expect_layer<bfloat16>({11, 40}, {.chunk = 8, .bias = true});
  expect_layer<double>({5, 8}, {.bias = true});
}
TEST(cuda_ranks, vocab_parallel_fused_linear_cross_entropy_with_options) {
  const cross_entropy_options smoothed{.ignore_index = 3, .label_smoothing = 0.1},
      all{.label_smoothing = 0.1, .lse_square_scale = 0.01, .softcap = 5, .denominator = 3};
  expect_layer<float>({11, 24},
                      {.of = {smoothed, true, 0.5}, .chunk = 4, .bias = true, .weighted = true, .metrics = true});
  expect_layer<float>({11, 24}, {.of = {all, true}, .weighted = true, .metrics = true});
  expect_layer<float>(
      {11, 24}, {.of = {{.reduction = reduction::none, .softcap = 2}}, .chunk = 3, .metrics = true, .backward = true});
  expect_layer<bfloat16>({11, 24}, {.of = {smoothed}, .mode = gradient::accumulate, .weighted = true});
}

struct scaled_options {
  vocab_parallel_fused_linear_scaled_cross_entropy_options of{};
  gradient mode = gradient::overwrite;
  std::size_t chunk = 0;
  bool bias = false, of_entropy = true, backward = false;
};
/// nll, entropy and lse; the gradients of nll, and of entropy.
template <class T>
class scaled_over_ranks {
 public:
  using A = accumulator_t<T>;
  static constexpr std::size_t vocab = 73;

  scaled_over_ranks(shape s, const scaled_options& opt) : s_(s), opt_(opt) {}

  layer_results<A, T> run(const cuts& at) {
    const std::size_t ranks = at.size() - 1;
    device_memory::instance().clear();
    fill();
    std::vector<numbers<A>> results;
    std::vector<numbers<T>> dx;
    for (std::size_t r = 0; r < ranks; ++r)
      results.emplace_back(3, s_.rows), dx.emplace_back(s_.rows, s_.cols, s_.apart);
    workspace none;
    context of_call(serial(), none);
    of_call.logit_rows(opt_.chunk);
    std::size_t bytes = 0;
    for (std::size_t r = 0; r < ranks; ++r)
      bytes = std::max(bytes, vocab_parallel_fused_linear_scaled_cross_entropy_workspace<cuda, T>(
                                  s_.rows, s_.cols, at[r + 1] - at[r], vocab, ranks, of_call));
    on_ranks(ranks, bytes, [&](const model_ranks& c, context& ctx) {
      const std::size_t r = c.rank(), first = at[r], cols = at[r + 1] - first;
      ctx.logit_rows(opt_.chunk);
      const auto part_of = [&](const numbers<T>& v) {
        return opt_.bias ? v.vector().subspan(first, cols) : std::span<T>();
      };
      const linear_shard<T> part{{x_->matrix(), w_->matrix().rows_from(first, cols), part_of(*bias_)}, {first, vocab}};
      const linear_gradients<T> to{dx[r].matrix(), dw_->matrix().rows_from(first, cols), part_of(*dbias_), opt_.mode};
      const auto row = [&](std::size_t k) { return std::span(results[r].data + k * s_.rows, s_.rows); };
      call<cuda, T>(c, part, {row(0), row(1), row(2)}, to, {nll_->vector(), entropy_->vector()}, ctx);
    });
    layer_results<A, T> out;
    for (std::size_t r = 0; r < ranks; ++r) {
      EXPECT_TRUE(results[r].is_alone() && dx[r].is_alone());
      out.loss.push_back(results[r].all()), out.dx.push_back(dx[r].all());
    }
    EXPECT_TRUE(dw_->is_alone() && dbias_->is_alone());
    out.dw = dw_->all(), out.dbias = dbias_->all();
    return out;
  }
  layer_results<double, double> wanted() {
    device_memory::instance().clear();
    fill();
    std::vector<double> x = wide(x_->all()), w = wide(w_->all()), bias = wide(bias_->all()), dx(x.size()),
                        dw = wide(dw_->all()), dbias = wide(dbias_->all()), results(3 * s_.rows);
    const std::vector<double> nll = wide(nll_->all()), entropy = wide(entropy_->all());
    const auto matrix = [&](auto& m) { return matrix_view(m.data(), m.size() / s_.cols, s_.cols); };
    const auto given = [&](std::vector<double>& v) { return opt_.bias ? std::span(v) : std::span<double>(); };
    const auto row = [&](std::size_t k) { return std::span(results).subspan(k * s_.rows, s_.rows); };
    call<generic, double>(comm::serial(), {{matrix(x), matrix(w), given(bias)}, {0, vocab}}, {row(0), row(1), row(2)},
                          {matrix(dx), matrix(dw), given(dbias), opt_.mode}, {nll, entropy}, default_context());
    return {{results}, {dx}, dw, dbias};
  }

 private:
  template <class B, class E>
  void call(communicator_ref c, const linear_shard<E>& part, scaled_cross_entropy_results<accumulator_t<E>> results,
            linear_gradients<E> to, scaled_cross_entropy_upstream<accumulator_t<E>> g, context& ctx) {
    if (!opt_.of_entropy) g.entropy = {};
    if (opt_.backward) {
      vocab_parallel_fused_linear_scaled_cross_entropy_forward<B, E>(c, part, target_, results, {}, opt_.of, {}, ctx);
      vocab_parallel_fused_linear_scaled_cross_entropy_backward<B, E>(c, part, target_, g, to, opt_.of, ctx);
    } else {
      vocab_parallel_fused_linear_scaled_cross_entropy_forward<B, E>(c, part, target_, results, to, opt_.of, g, ctx);
    }
  }
  void fill() {
    x_.emplace(numbers<T>(s_.rows, s_.cols, s_.apart).fill(1));
    w_.emplace(numbers<T>(vocab, s_.cols).fill(2)), bias_.emplace(numbers<T>(1, vocab).fill(3));
    dw_.emplace(numbers<T>(vocab, s_.cols).fill(6)), dbias_.emplace(numbers<T>(1, vocab).fill(7));
    nll_.emplace(numbers<A>(1, s_.rows).fill(4, 1.5f)), entropy_.emplace(numbers<A>(1, s_.rows).fill(5, 0.5f));
    target_ = labels_of(s_.rows, vocab, opt_.of.ignore_index);
  }

  shape s_;
  scaled_options opt_;
  std::optional<numbers<T>> x_, w_, bias_, dw_, dbias_;
  std::optional<numbers<A>> nll_, entropy_;
  std::span<std::int64_t> target_;
};
template <class T>
void expect_scaled(shape s, const scaled_options& opt) {
  constexpr std::size_t vocab = scaled_over_ranks<T>::vocab;
  scaled_over_ranks<T> of(s, opt);
  const auto wanted = of.wanted();
  const double gradients = sizeof(T) == 8 ? 1e-12 : sizeof(T) == 4 ? 2e-5 : 8e-3;
  for (const cuts& at : {even_cuts(vocab, 1), even_cuts(vocab, 2), cuts{0, 40, 40, vocab}}) {
    const auto got = of.run(at), again = of.run(at);
    const std::size_t ranks = at.size() - 1;
    for (std::size_t r = 0; r < ranks; ++r) {
      EXPECT_LT(error_of(got.loss[r], wanted.loss[0]), sizeof(T) == 8 ? 1e-12 : 2e-6) << ranks << " ranks";
      EXPECT_TRUE(same_bits(got.loss[r], got.loss[0]) && same_bits(got.dx[r], got.dx[0]));
      EXPECT_TRUE(same_bits(got.loss[r], again.loss[r]) && same_bits(got.dx[r], again.dx[r]));
    }
    EXPECT_LT(error_of(got.dx[0], wanted.dx[0]), gradients) << "dx of " << ranks;
    EXPECT_LT(error_of(got.dw, wanted.dw), gradients) << "dw of " << ranks;
    EXPECT_LT(error_of(got.dbias, wanted.dbias), gradients) << "dbias of " << ranks;
    EXPECT_TRUE(same_bits(got.dw, again.dw) && same_bits(got.dbias, again.dbias));
  }
}
TEST(cuda_ranks, vocab_parallel_fused_linear_scaled_cross_entropy) {
  expect_scaled<float>({11, 24}, {.of = {.temperature = 0.7}, .chunk = 4, .bias = true});
  expect_scaled<float>({11, 24, 2}, {.mode = gradient::accumulate, .of_entropy = false, .backward = true});
  expect_scaled<bfloat16>({11, 24}, {.of = {.temperature = 2}, .bias = true});
  expect_scaled<double>({5, 8}, {});
}

// Two ranks, whose call finds what it is to refuse before it writes.
class cuda_ranks_refuse : public testing::Test {
 protected:
  static constexpr std::size_t rows = 5, vocab = 40;
  cuda_ranks_refuse() {
    device_memory::instance().clear();
    z_.emplace(numbers<float>(rows, vocab).fill(1)), dz_.emplace(rows, vocab);
    for (int r = 0; r < 2; ++r) results_.push_back(numbers<float>(3, rows));
    target_ = labels_of(rows, vocab);
  }
  vocab_parallel_results<float> of_rank(std::size_t r) {
    const auto row = [&](std::size_t k) { return std::span(results_[r].data + k * rows, rows); };
    return {row(0), row(1), row(2)};
  }
  template <class B>
  void call(communicator_ref c, std::size_t first, context& ctx, std::span<const std::int64_t> labels) {
    vocab_parallel_cross_entropy_forward<B>(c, z_->matrix().cols_from(20 * c.rank(), 20), {first, vocab}, labels,
                                            of_rank(c.rank()), {}, ctx);
  }
  void expect_error(std::size_t rank, const std::string& said, const std::string& wanted) {
    EXPECT_EQ(said, "tigon: vocab_parallel_cross_entropy_forward: " + wanted) << "rank " << rank;
  }
  void expect_unwritten() {
    for (const numbers<float>& of : results_)
      for (const float v : of.all()) EXPECT_TRUE(std::isnan(v));
  }

  std::optional<numbers<float>> z_, dz_;
  std::vector<numbers<float>> results_;
  std::span<std::int64_t> target_;
};
TEST_F(cuda_ranks_refuse, communicators_of_another_place) {
  const std::vector<std::int64_t> of_host(rows, 1);
  on_ranks(2, 4096, [&](const model_ranks& c, context& ctx) {
    expect_error(
        c.rank(), error_from([&] { call<cuda>(*c.host(), 20 * c.rank(), ctx, target_); }),
        "comm is a communicator of the host; expected one that gathers in the memory of the device, as comm::nccl "
        "does (rank 0)");
    expect_error(c.rank(), error_from([&] { call<generic>(c, 20 * c.rank(), ctx, of_host); }),
                 "comm is a communicator of a device; expected one that gathers in the memory of the host (rank 0)");
    workspace none;
    context other(serial(), none, gpu::queue(stream_of_rank(7)));
    expect_error(c.rank(), error_from([&] { call<cuda>(c, 20 * c.rank(), other, target_); }),
                 "comm is a communicator of another stream; expected one of the context's stream (rank 0)");
  });
  expect_unwritten();
}
TEST_F(cuda_ranks_refuse, shards_that_are_not_the_vocabulary) {
  on_ranks(2, 4096, [&](const model_ranks& c, context& ctx) {
    expect_error(c.rank(), error_from([&] { call<cuda>(c, 10 * c.rank(), ctx, target_); }),
                 "shard.first is 10 on rank 1; expected 20, where the shard before it ends");
  });
  expect_unwritten();
}
// No rank leaves before all have gathered; then each throws, when it waits.
TEST_F(cuda_ranks_refuse, labels_out_of_range_when_all_have_gathered) {
  target_[2] = 40, target_[4] = -7;
  on_ranks(2, 4096, [&](const model_ranks& c, context& ctx) {
    for (int k = 0; k < 2; ++k) call<cuda>(c, 20 * c.rank(), ctx, target_);
    expect_error(c.rank(), error_from([&] { gpu::throw_reported(static_cast<cudaStream_t>(ctx.stream())); }),
                 "target[2] is 40; expected at least 0 and below 40, or ignore_index -100");
  });
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(std::isnan(of_rank(r).loss[2]) && std::isnan(of_rank(r).loss[4]));
    EXPECT_TRUE(of_rank(r).loss[0] > 0 && of_rank(r).loss[3] == 0);
  }
}

}  // namespace

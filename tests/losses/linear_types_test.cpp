// Every fused linear loss with frozen weights, and with types of its own for w and for the gradients of w.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_cosine_distillation.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_grpo.hpp>
#include <tigon/losses/fused_linear_jsd.hpp>
#include <tigon/losses/fused_linear_kl_div.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>
#include <tigon/losses/selective_logprob.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>

#include "support/backends.hpp"
#include "support/chunk_backends.hpp"
#include "support/errors.hpp"
#include "support/frozen.hpp"
#include "support/linear_shards.hpp"
#include "support/problem.hpp"

#include "support/kernels.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// Tiles of 8 rows and 64 columns.
struct small_tiles : test::usual_backend {
  using parent = test::usual_backend;
  static constexpr backend_info info{"small_tiles", {device::cpu}};
  using overrides = op_list<>;
  static constexpr chunk_tuning chunk{.rule = chunk_rule::stream, .rows = 8, .cols = 64};
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::context, tigon::gradient, tigon::parameters;
using tigon::backends::small_chunks, tigon::backends::small_tiles;

constexpr std::size_t sequences = 8, length = 3, rows = sequences * length, hidden = 20, vocab = 150;

/// Labels of a layer. Those of one type for all have the kernels of other programs (support/kernels.hpp).
template <class Y>
using label_of = std::conditional_t<std::same_as<Y, float> || std::same_as<Y, bfloat16>, std::int64_t, std::int32_t>;

/// A layer of these types, and all that a loss reads beside it. Numbers are those that bf16 holds, of w where it has
/// them.
template <class Y>
struct problem {
  using X = tigon::input_t<Y>;
  using W = tigon::weight_t<Y>;
  using G = tigon::weight_gradient_t<Y>;
  using I = label_of<Y>;
  guarded_matrix<X> x, teacher_x, teacher_logits, dx;
  guarded_matrix<W> w, teacher_w;
  guarded<W> bias;
  guarded_matrix<G> dw;
  guarded<G> dbias;
  guarded<float> loss, ones;
  guarded_matrix<I> target;
  guarded<std::uint8_t> liked;

  TIGON_TEST_NOINLINE explicit problem(bool w_of_bf16)
      : x(rows, hidden, 1),
        teacher_x(rows, hidden),
        teacher_logits(rows, vocab, 1),
        dx(rows, hidden, 3),
        w(vocab, hidden, 2),
        teacher_w(vocab, hidden),
        bias(vocab),
        dw(vocab, hidden, 4),
        dbias(vocab),
        loss(rows),
        ones(rows),
        target(sequences, length),
        liked(sequences) {
    const auto numbers = [](std::size_t count, std::uint64_t seed, double deviation, bool of_bf16) {
      auto all = normal_values(count, seed, {.deviation = deviation});
      for (double& v : all) v = of_bf16 ? to_f64(from_f64<bfloat16>(v)) : v;
      return all;
    };
    x.assign(numbers(rows * hidden, 1, 1, true));
    teacher_x.assign(numbers(rows * hidden, 2, 1, true));
    w.assign(numbers(vocab * hidden, 3, 0.4, w_of_bf16));
    teacher_w.assign(numbers(vocab * hidden, 4, 0.4, w_of_bf16));
    bias.assign(numbers(vocab, 5, 1, w_of_bf16));
    auto logs = normal_values(rows * vocab, 6, {.deviation = 2});
    for (double& v : logs) v = to_f64(from_f64<bfloat16>(v - 7));  // whose exponentials add up to about 1
    teacher_logits.assign(logs);
    ones.assign(std::vector<double>(rows, 1.0));
    for (std::size_t i = 0; i < rows; ++i)
      target(i / length, i % length) = i % 7 == 3 ? -100 : static_cast<I>(i * 37 % vocab);
    for (std::size_t s = 0; s < sequences; ++s) liked[s] = s % 3 == 0;
    clear();
  }
  void clear() { dx.clear(), dw.clear(), dbias.clear(), loss.clear(); }
  tigon::linear_layer<Y> layer() const { return {x, w, {bias.data(), bias.size()}}; }
  tigon::linear_layer<Y> teacher() const { return {teacher_x, teacher_w}; }
  tigon::linear_gradients<Y> gradients(gradient mode = gradient::overwrite) {
    return {dx.view(), dw.view(), dbias, mode};
  }
  std::span<const I> labels() const { return {target.view().data, rows}; }
};

/// A loss with its gradients, and the workspace that it names.
struct cross_entropy {
  static constexpr const char* name = "fused_linear_cross_entropy";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    tigon::fused_linear_cross_entropy_forward<B>(p.layer(), p.labels(), {std::span(p.loss).first(1)}, to, {},
                                                 tigon::absent, {}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::fused_linear_cross_entropy_workspace<B, Y>(rows, hidden, vocab, ctx, of);
  }
};
struct scaled_cross_entropy {
  static constexpr const char* name = "fused_linear_scaled_cross_entropy";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    tigon::fused_linear_scaled_cross_entropy_forward<B>(p.layer(), p.labels(), {.nll = p.loss}, to, {}, {.nll = p.ones},
                                                        ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::fused_linear_scaled_cross_entropy_workspace<B, Y>(rows, hidden, vocab, ctx, of);
  }
};
struct logprob {
  static constexpr const char* name = "selective_logprob";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    guarded<tigon::lse_parts<float>> lse(rows);
    tigon::selective_logprob_forward<B>(p.layer(), p.labels(), p.loss, lse, {}, ctx);
    tigon::selective_logprob_backward<B>(p.layer(), p.labels(), p.ones, lse, to, {}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::selective_logprob_workspace<B, Y>(rows, hidden, vocab, ctx, of);
  }
};
struct cosine {
  static constexpr const char* name = "fused_linear_cosine_distillation";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    tigon::fused_linear_cosine_distillation_forward<B>(p.layer(), p.teacher(), p.labels(), {std::span(p.loss).first(1)},
                                                       to, {}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::fused_linear_distillation_workspace<B, Y>(rows, hidden, vocab, hidden, vocab, ctx, of);
  }
};
struct jsd {
  static constexpr const char* name = "fused_linear_jsd";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    tigon::fused_linear_jsd_forward<B>(p.layer(), p.teacher(), p.labels(), std::span(p.loss).first(1), to, {}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return cosine::bytes<B, Y>(of, ctx);
  }
};
struct dpo {
  static constexpr const char* name = "fused_linear_dpo";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    tigon::fused_linear_dpo_forward<B>(p.layer(), {p.target.view()}, {.loss = std::span(p.loss).first(1)}, to,
                                       {.beta = 0.7}, {.layer = p.teacher()}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::fused_linear_preference_workspace<B, Y>(sequences / 2, length, hidden, vocab, hidden, ctx, of);
  }
};
struct kto {
  static constexpr const char* name = "fused_linear_kto";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    tigon::fused_linear_kto_forward<B>(p.layer(), {p.target.view(), p.liked}, {}, {.loss = std::span(p.loss).first(1)},
                                       to, {.beta = 0.7}, {.layer = p.teacher()}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::fused_linear_unpaired_preference_workspace<B, Y>(sequences, length, hidden, vocab, hidden, ctx, of);
  }
};
struct grpo {
  static constexpr const char* name = "fused_linear_grpo";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    guarded_matrix<label_of<Y>> ids(sequences, length);
    for (std::size_t i = 0; i < rows; ++i)
      ids(i / length, i % length) = std::max(p.target(i / length, i % length), label_of<Y>{0});
    tigon::fused_linear_grpo_forward<B>(p.layer(),
                                        {.ids = ids.view(), .advantages = std::span(p.ones).first(sequences)},
                                        {.loss = std::span(p.loss).first(1)}, to, {}, {.layer = p.teacher()}, {}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::fused_linear_grpo_workspace<B, Y>(sequences, rows, hidden, vocab, {}, hidden, ctx, of);
  }
};

/// A teacher's logits that were made before; probabilities by their exponentials.
struct given_logits {
  static constexpr const char* name = "fused_linear_jsd_of_given_logits";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    tigon::fused_linear_jsd_forward<B>(p.layer(), p.teacher_logits.view(), p.labels(), std::span(p.loss).first(1), to,
                                       {}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return cosine::bytes<B, Y>(of, ctx);
  }
};
struct kl_div {
  static constexpr const char* name = "fused_linear_kl_div";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    tigon::fused_linear_kl_div_forward<B>(p.layer(), p.teacher_logits.view(), p.labels(), std::span(p.loss).first(1),
                                          to, {.log_target = true}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::fused_linear_kl_div_workspace<B, Y>(rows, hidden, vocab, ctx, of);
  }
};
struct split_cross_entropy {
  static constexpr const char* name = "vocab_parallel_fused_linear_cross_entropy";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    const tigon::linear_shard<Y> all{p.layer(), {0, vocab}};
    tigon::vocab_parallel_fused_linear_cross_entropy_forward<B>(
        tigon::comm::serial{}, all, p.labels(), {std::span(p.loss).first(1)}, to, {}, tigon::absent, ctx);
  }
};
struct split_scaled_cross_entropy {
  static constexpr const char* name = "vocab_parallel_fused_linear_scaled_cross_entropy";
  template <class B, class Y>
  static void run(problem<Y>& p, const tigon::linear_gradients<Y>& to, context& ctx) {
    const tigon::linear_shard<Y> all{p.layer(), {0, vocab}};
    tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward<B>(tigon::comm::serial{}, all, p.labels(),
                                                                       {.nll = p.loss}, to, {}, {.nll = p.ones}, ctx);
  }
  template <class B, class Y>
  static std::size_t bytes(parameters of, const context& ctx) {
    return tigon::vocab_parallel_fused_linear_scaled_cross_entropy_workspace<B, Y>(rows, hidden, vocab, vocab, 1, ctx,
                                                                                   of);
  }
};

template <class L, class B>
struct of_loss {
  using loss = L;
  using backend = B;
};
struct loss_names {
  template <class P>
  static std::string GetName(int) {
    return std::string(P::loss::name) + "_" + std::string(P::backend::info.name);
  }
};
template <class On>
class linear_types : public testing::Test {};
using losses = testing::Types<of_loss<cross_entropy, small_chunks>, of_loss<cross_entropy, small_tiles>,
                              of_loss<scaled_cross_entropy, small_chunks>, of_loss<logprob, small_chunks>,
                              of_loss<logprob, small_tiles>, of_loss<cosine, small_chunks>, of_loss<jsd, small_chunks>,
                              of_loss<dpo, small_chunks>, of_loss<kto, small_chunks>, of_loss<grpo, small_chunks>,
                              of_loss<given_logits, small_chunks>, of_loss<kl_div, small_chunks>,
                              of_loss<split_scaled_cross_entropy, small_chunks>>;
TYPED_TEST_SUITE(linear_types, losses, loss_names);

using main_gradients = tigon::linear_types<bfloat16, bfloat16, float>;
using wide_weights = tigon::linear_types<bfloat16, float>;

TYPED_TEST(linear_types, frozen_weights_make_no_sums) {
  using L = typename TypeParam::loss;
  using B = typename TypeParam::backend;
  problem<bfloat16> p(true);  // whose sums are not dw itself
  frozen_case c;
  c.name = L::name;
  c.clear = [&] { p.clear(); };
  c.others = [&] { return bits_of(p.dx, p.loss); };
  c.of_parameters = {[&] { return bits_of(p.dw); }, [&] { return bits_of(p.dbias); }};
  c.run = [&](unsigned given, context& ctx) {
    L::template run<B>(p, {p.dx.view(), if_given(given, 0, p.dw), if_given(given, 1, p.dbias)}, ctx);
  };
  c.bytes = [](parameters of, const context& ctx) { return L::template bytes<B, bfloat16>(of, ctx); };
  check_frozen(c);
}

/// In units of |reference| + its root mean square. Beside f32 alone, what differs is the order of sums.
constexpr double loss_bound = 2e-6, gradient_bound = 2e-5;
template <class T>
constexpr double rounded_bound = std::same_as<T, float>      ? gradient_bound
                                 : std::same_as<T, bfloat16> ? 8e-3
                                                             : 1e-3;

template <class L, class B, class Y, class Whole = L>
TIGON_TEST_NOINLINE void compare_with_f32(bool w_of_bf16) {
  constexpr double of_dx = rounded_bound<tigon::input_t<Y>>, of_dw = rounded_bound<tigon::weight_gradient_t<Y>>;
  problem<float> whole(w_of_bf16);
  problem<Y> p(w_of_bf16);
  Whole::template run<B>(whole, whole.gradients(), tigon::default_context());
  L::template run<B>(p, p.gradients(), tigon::default_context());
  const auto losses_of = [](const guarded<float>& loss) {
    auto all = loss.f64();
    std::erase_if(all, [](double v) { return std::isnan(v); });  // what is not written
    return all;
  };
  EXPECT_TRUE(close(losses_of(p.loss), losses_of(whole.loss), loss_bound)) << "loss";
  EXPECT_TRUE(close(p.dx.f64(), whole.dx.f64(), of_dx)) << "dx";
  EXPECT_TRUE(close(p.dw.f64(), whole.dw.f64(), of_dw)) << "dw";
  EXPECT_TRUE(close(p.dbias.f64(), whole.dbias.f64(), of_dw)) << "dbias";
  EXPECT_TRUE(p.dx.padding_intact() && p.dw.padding_intact());
  // Main gradients: a second batch is added in f32.
  L::template run<B>(p, p.gradients(gradient::accumulate), tigon::default_context());
  auto twice = whole.dw.f64(), twice_bias = whole.dbias.f64();
  for (double& v : twice) v *= 2;
  for (double& v : twice_bias) v *= 2;
  EXPECT_TRUE(close(p.dw.f64(), twice, of_dw)) << "dw of two";
  EXPECT_TRUE(close(p.dbias.f64(), twice_bias, of_dw)) << "dbias of two";
}

TYPED_TEST(linear_types, gradients_of_w_in_f32) {
  compare_with_f32<typename TypeParam::loss, typename TypeParam::backend, main_gradients>(true);
}

TYPED_TEST(linear_types, w_in_f32_with_x_in_bf16) {
  compare_with_f32<typename TypeParam::loss, typename TypeParam::backend, wide_weights>(false);
}

/// Losses whose own tests have no f16. Numbers are those that f16 holds, too.
template <class On>
class linear_types_of_f16 : public testing::Test {};
using losses_without_f16 = testing::Types<of_loss<given_logits, small_chunks>, of_loss<kl_div, small_chunks>,
                                          of_loss<split_scaled_cross_entropy, small_chunks>>;
TYPED_TEST_SUITE(linear_types_of_f16, losses_without_f16, loss_names);

TYPED_TEST(linear_types_of_f16, round_results_alone) {
  compare_with_f32<typename TypeParam::loss, typename TypeParam::backend, tigon::float16>(true);
}

TEST(linear_types_of_one_rank, are_those_of_the_whole_vocabulary) {
  compare_with_f32<split_cross_entropy, small_chunks, main_gradients, cross_entropy>(true);
}

/// Classes on two ranks: dx, which is the sum of both, is rounded to its own type, and dw of each rank is in f32.
template <class Y>
TIGON_TEST_NOINLINE void compare_ranks_with_one() {
  problem<Y> whole(false), p(false);
  split_scaled_cross_entropy::run<small_chunks>(whole, whole.gradients(), tigon::default_context());
  using X = tigon::input_t<Y>;
  guarded_matrix<X> dx[] = {guarded_matrix<X>(rows, hidden, 1), guarded_matrix<X>(rows, hidden, 2)};
  on_ranks(2, [&](const tigon::comm::threads& c, context& ctx) {
    const std::size_t r = c.rank(), first = r == 0 ? 0 : 67, n = r == 0 ? 67 : vocab - 67;
    auto layer = p.layer();
    layer.w = layer.w.rows_from(first, n), layer.bias = layer.bias.subspan(first, n);
    tigon::linear_gradients<Y> to{dx[r].view(), p.dw.view().rows_from(first, n), std::span(p.dbias).subspan(first, n)};
    guarded<float> nll(rows);
    tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward<small_chunks>(
        c, tigon::linear_shard<Y>{layer, {first, vocab}}, p.labels(), {.nll = nll}, to, {}, {.nll = p.ones}, ctx);
    if (r == 0) std::ranges::copy(nll, p.loss.begin());
  });
  EXPECT_TRUE(close(p.loss.f64(), whole.loss.f64(), loss_bound)) << "nll";
  EXPECT_TRUE(close(p.dw.f64(), whole.dw.f64(), gradient_bound)) << "dw";
  EXPECT_TRUE(close(p.dbias.f64(), whole.dbias.f64(), gradient_bound)) << "dbias";
  EXPECT_EQ(dx[0].f64(), dx[1].f64());
  EXPECT_TRUE(close(dx[0].f64(), whole.dx.f64(), rounded_bound<X>)) << "dx";
  EXPECT_TRUE(dx[0].padding_intact() && dx[1].padding_intact());
}

TEST(linear_types_of_ranks, have_the_sum_of_dx_and_their_own_dw) {
  compare_ranks_with_one<main_gradients>();
  compare_ranks_with_one<wide_weights>();
}

/// The gradients of another upstream gradient, of dw in f32.
TEST(linear_types_of_saved_gradients, are_multiplied) {
  problem<main_gradients> p(true), out(true);
  dpo::run<small_chunks>(p, p.gradients(), tigon::default_context());
  tigon::fused_linear_backward<tigon::op::fused_linear_dpo, small_chunks>(
      tigon::saved_gradients<main_gradients>{p.dx, p.dw, p.dbias}, 0.5f, out.gradients());
  auto dx = p.dx.f64(), dw = p.dw.f64();
  for (double& v : dx) v *= 0.5;
  for (double& v : dw) v *= 0.5;
  EXPECT_EQ(out.dx.f64(), dx);
  EXPECT_EQ(out.dw.f64(), dw);
}

/// Packed weights of their own type.
TEST(linear_types_of_packed_weights, have_the_same_bits) {
  problem<wide_weights> p(false), q(false);
  const auto run = [](problem<wide_weights>& of, const tigon::linear_layer<wide_weights>& layer) {
    tigon::fused_linear_cross_entropy_forward<small_chunks>(layer, of.labels(), {std::span(of.loss).first(1)},
                                                            of.gradients());
  };
  run(p, p.layer());
  using tigon::transpose;
  guarded<std::byte> logits(tigon::gemm_pack_bytes<small_chunks, bfloat16, float>(hidden, vocab) + 64, guard::before),
      gradient(tigon::gemm_pack_bytes<small_chunks, float, float>(vocab, hidden) + 64, guard::before);
  auto layer = q.layer();
  layer.packed = {tigon::gemm_pack<small_chunks, bfloat16>(q.w.view(), std::span<std::byte>(logits), transpose::yes),
                  tigon::gemm_pack<small_chunks, float>(q.w.view(), std::span<std::byte>(gradient))};
  run(q, layer);
  EXPECT_EQ(bits_of(p.dx, p.dw, p.dbias, p.loss), bits_of(q.dx, q.dw, q.dbias, q.loss));
}

}  // namespace

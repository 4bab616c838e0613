#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/grpo_loss.hpp>

namespace {
tigon::matrix_view<const std::int64_t> ids(void* p, size_t sequences, size_t length) {
  return {static_cast<const std::int64_t*>(p), sequences, length};
}
tigon::policy_batch<float> policy(void* tokens, void* advantages, void* old_logp, void* ref_logp, size_t batch,
                                  size_t length) {
  const auto of_tokens = [=](void* p) {
    return tigon::matrix_view<const float>(static_cast<const float*>(p), batch, length);
  };
  return {ids(tokens, batch, length), vector<const float>(advantages, batch), of_tokens(old_logp), of_tokens(ref_logp)};
}
std::span<tigon::lse_parts<float>> parts(void* p, size_t n) { return vector<tigon::lse_parts<float>>(p, n); }
/// Sequences of a layer, with one for a reference, or none.
struct layers {
  tigon::linear_layer<T> of;
  tigon::linear_gradients<T> gradients;
  tigon::reference_model<T> reference;
  layers(void* x, void* w, void* ref_x, void* ref_w, void* dx, void* dw, size_t rows, size_t hidden, size_t vocab)
      : of{matrix(x, rows, hidden), matrix(w, vocab, hidden)},
        gradients{matrix(dx, rows, hidden), matrix(dw, vocab, hidden)} {
    if (ref_w != nullptr) reference.layer = {matrix(ref_x, rows, hidden), matrix(ref_w, vocab, hidden)};
  }
};
}  // namespace

TIGON_BENCH_DOOR int grpo_loss_forward(void* z, void* tokens, void* advantages, void* old_logp, void* ref_logp,
                                       void* loss, void* saved, size_t batch, size_t length, size_t vocab) {
  return call([=](auto& ctx) {
    tigon::grpo_loss_forward<B>(matrix(z, batch * length, vocab),
                                policy(tokens, advantages, old_logp, ref_logp, batch, length), vector<float>(loss, 1),
                                parts(saved, batch * length), {}, {}, ctx);
  });
}
TIGON_BENCH_DOOR int grpo_loss_backward(void* z, void* tokens, void* advantages, void* old_logp, void* ref_logp,
                                        void* saved, void* dz, size_t batch, size_t length, size_t vocab) {
  return call([=](auto& ctx) {
    tigon::grpo_loss_backward<B>(matrix(z, batch * length, vocab),
                                 policy(tokens, advantages, old_logp, ref_logp, batch, length),
                                 parts(saved, batch * length), {}, matrix(dz, batch * length, vocab), {}, ctx);
  });
}
TIGON_BENCH_DOOR int fused_linear_dpo_forward(void* x, void* w, void* ref_x, void* ref_w, void* target, void* loss,
                                              void* dx, void* dw, size_t sequences, size_t length, size_t hidden,
                                              size_t vocab) {
  return call([=](auto& ctx) {
    const layers l(x, w, ref_x, ref_w, dx, dw, sequences * length, hidden, vocab);
    tigon::fused_linear_dpo_forward<B>(l.of, {ids(target, sequences, length)}, {.loss = vector<float>(loss, 1)},
                                       l.gradients, {}, l.reference, ctx);
  });
}
TIGON_BENCH_DOOR int fused_linear_orpo_forward(void* x, void* w, void* target, void* loss, void* dx, void* dw,
                                               size_t sequences, size_t length, size_t hidden, size_t vocab) {
  return call([=](auto& ctx) {
    const layers l(x, w, nullptr, nullptr, dx, dw, sequences * length, hidden, vocab);
    tigon::fused_linear_orpo_forward<B>(l.of, {ids(target, sequences, length)}, {.loss = vector<float>(loss, 1)},
                                        l.gradients, {}, ctx);
  });
}
TIGON_BENCH_DOOR int fused_linear_kto_forward(void* x, void* w, void* ref_x, void* ref_w, void* target, void* desirable,
                                              void* kl, void* loss, void* dx, void* dw, size_t sequences, size_t length,
                                              size_t hidden, size_t vocab) {
  return call([=](auto& ctx) {
    const layers l(x, w, ref_x, ref_w, dx, dw, sequences * length, hidden, vocab);
    tigon::fused_linear_kto_forward<B>(
        l.of, {ids(target, sequences, length), vector<const std::uint8_t>(desirable, sequences)},
        vector<const float>(kl, 1), {.loss = vector<float>(loss, 1)}, l.gradients, {}, l.reference, ctx);
  });
}
TIGON_BENCH_DOOR size_t fused_linear_dpo_workspace(size_t sequences, size_t length, size_t hidden, size_t vocab,
                                                   size_t reference_hidden) {
  return tigon::fused_linear_preference_workspace<B, T>(sequences / 2, length, hidden, vocab, reference_hidden,
                                                        context_of_calls());
}
TIGON_BENCH_DOOR size_t fused_linear_kto_workspace(size_t sequences, size_t length, size_t hidden, size_t vocab,
                                                   size_t reference_hidden) {
  return tigon::fused_linear_unpaired_preference_workspace<B, T>(sequences, length, hidden, vocab, reference_hidden,
                                                                 context_of_calls());
}

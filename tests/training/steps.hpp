// Training, written once: what a transformer's step is made of, as an interface. Fused operators of a backend implement
// it (fused.cpp, compiled once a backend), and plain loops (plain.hpp).
#ifndef TIGON_TESTS_TRAINING_STEPS_HPP
#define TIGON_TESTS_TRAINING_STEPS_HPP

#include <tigon/core/views.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tigon::test::training {

using tokens = std::span<const std::int32_t>;

enum class gate_form {
  swiglu,  ///< gate and up are two operands
  packed,  ///< swiglu of one operand that has both
  geglu,
};
enum class rotary_form { whole, partial, multimodal };

struct model_config {
  std::string name;
  std::size_t vocab = 128, layers = 2, hidden = 32, intermediate = 40, heads = 4, kv_heads = 2, batch = 2, seq_len = 24;
  gate_form gate = gate_form::swiglu;
  rotary_form rotary = rotary_form::whole;
  std::size_t rotary_dim = 8;    ///< of partial
  std::size_t sections[3] = {};  ///< of multimodal
  double norm_eps = 1e-5, norm_offset = 0, embedding_scale = 1;
  double softcap = 0;  ///< of the logits; 0: none
  bool tied = false;   ///< the head is the embedding
  std::size_t experts = 0, top_k = 0;
  std::size_t streams = 0, sinkhorn_steps = 20;  ///< of hyper-connections; 0: a residual stream
  double sinkhorn_eps = 1e-6, post_mult = 2;

  std::size_t head_dim() const { return hidden / heads; }
  std::size_t qkv() const { return (heads + 2 * kv_heads) * head_dim(); }
  std::size_t window() const { return batch * seq_len; }
  std::size_t wide() const { return streams * hidden; }
  std::size_t mixes() const { return streams * (streams + 2); }
  std::size_t mlps() const { return experts != 0 ? experts : 1; }
  std::size_t mlps_of_token() const { return experts != 0 ? top_k : 1; }
};

/// A matrix that owns its memory.
template <class R>
struct buffer {
  std::size_t rows = 0, cols = 0;
  std::vector<R> memory;

  buffer() = default;
  buffer(std::size_t r, std::size_t c) : rows(r), cols(c), memory(r * c) {}
  matrix_view<R> view() { return {memory.data(), rows, cols}; }
  matrix_view<const R> view() const { return {memory.data(), rows, cols}; }
};

/// cos and sin of the pairs of a head: a row a position, or with sections a row a token in each of three tables.
template <class R>
struct rotary_tables {
  buffer<R> cos, sin;
};

/// The weights of all experts, or their gradients.
template <class E>
struct expert_matrices {
  matrix_view<E> gate_up, down;
};

/// What a mixture of experts keeps of its forward pass.
template <class R>
struct mixture_state {
  buffer<R> logits, weights, saved;  ///< [tokens, experts], [tokens, k]; gate and up of every choice
  buffer<std::int32_t> chosen;       ///< [tokens, k]
};

/// The weights of hyper-connections, or their gradients.
template <class E>
struct connection_matrices {
  matrix_view<E> phi, bias, alpha;
};

/// What hyper-connections keep of their forward pass: the coefficients, what these are made of, and input and output of
/// the layer between them.
template <class R>
struct connection_state {
  buffer<R> h_pre, h_post, h_res, mix, in, f;
  std::vector<R> rstd;
};

/// The steps. Outputs are overwritten unless it says "adds", and share no memory with another argument.
template <class R>
struct steps {
  using in = matrix_view<const R>;
  using out = matrix_view<R>;
  using layer_function = std::function<void(in, out)>;

  virtual ~steps() = default;

  /// y = w[ids];   dw = sums of dy over the tokens, or adds them
  virtual void embed(in w, tokens ids, out y) = 0;
  virtual void embed_backward(in dy, tokens ids, out dw, bool adds) = 0;
  /// y = x w^T;   dx = dy w,  dw = dy^T x
  virtual void linear(in x, in w, out y) = 0;
  virtual void linear_backward(in dy, in x, in w, out dx, out dw) = 0;
  /// y = x rstd (offset + w),  rstd = 1 / sqrt(mean x^2 + eps)
  virtual void norm(in x, in w, out y, std::span<R> rstd) = 0;
  /// s = x + r,  y = norm(s);   dx is the gradient of x and of r, from dy and the gradient ds of s, which may be empty
  virtual void add_norm(in x, in r, in w, out y, out s, std::span<R> rstd) = 0;
  virtual void add_norm_backward(in dy, in ds, in s, in w, std::span<const R> rstd, out dx, out dw) = 0;
  /// The rotation of q and k in rows of q, k and v, in place; its transpose
  virtual void rotate(out qkv, const rotary_tables<R>& tables) = 0;
  virtual void rotate_backward(out dqkv, const rotary_tables<R>& tables) = 0;
  /// Causal attention of q, k and v; lse [batch * heads * seq_len]
  virtual void attend(in qkv, out o, std::span<R> lse) = 0;
  virtual void attend_backward(in d_o, in qkv, in o, std::span<const R> lse, out dqkv) = 0;
  /// The gated product of rows of gate and up
  virtual void gate(in gate_up, out y) = 0;
  virtual void gate_backward(in dy, in gate_up, out dgate_up) = 0;
  /// The choices from state.logits, and y, the sum of the chosen experts' MLPs of x; dx without what goes through the
  /// logits, and the gradient of these
  virtual void experts(in x, expert_matrices<const R> w, mixture_state<R>& state, out y) = 0;
  virtual void experts_backward(in dy, in x, expert_matrices<const R> w, const mixture_state<R>& state, out dx,
                                expert_matrices<R> dw, out dlogits) = 0;
  /// y = h_res x + h_post layer(h_pre x), with coefficients made of x;   of the gradients `layer` takes that of its
  /// output to that of its input
  virtual void connect(in x, connection_matrices<const R> w, const layer_function& layer, connection_state<R>& state,
                       out y) = 0;
  virtual void connect_backward(in dy, in x, connection_matrices<const R> w, const layer_function& layer,
                                connection_state<R>& state, out dx, connection_matrices<R> dw) = 0;
  /// Mean cross entropy of softcap(x w^T), and its gradients
  virtual double head(in x, in w, tokens targets, out dx, out dw) = 0;
};

/// The backends that are linked: fused.cpp adds one each time it is compiled.
using make_steps = std::function<std::unique_ptr<steps<float>>(const model_config&)>;
inline std::map<std::string, make_steps>& fused_backends() {
  static std::map<std::string, make_steps> all;
  return all;
}

}  // namespace tigon::test::training

#endif  // TIGON_TESTS_TRAINING_STEPS_HPP

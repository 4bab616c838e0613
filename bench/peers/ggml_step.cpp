// One training step of a Llama in f32 by ggml: forward, backward and AdamW, on random weights and tokens. Not part of
// any target, because it needs ggml; ggml_step.py builds and runs it.
//
//   ggml_step VOCAB LAYERS HIDDEN INTERMEDIATE HEADS KV_HEADS TOKENS STEPS THREADS
//
// Prints the loss and the tokens per second of the median step. ggml has no fused attention with gradients, takes
// labels as rows of probabilities, and does not clip.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml-opt.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

using tensor = ggml_tensor*;

struct sizes {
  int vocab, layers, hidden, intermediate, heads, kv_heads, tokens;
  int dim() const { return hidden / heads; }
};

struct layer {
  tensor norm1, q, k, v, out, norm2, gate, up, down;
};

class model {
 public:
  model(const sizes& s, ggml_backend_t backend)
      : s_(s), weights_(ggml_init({256 * ggml_tensor_overhead(), nullptr, true})) {
    embedding = matrix(s.hidden, s.vocab);
    for (int l = 0; l < s.layers; ++l) {
      const int kv = s.kv_heads * s.dim();
      layers.push_back({vector(), matrix(s.hidden, s.hidden), matrix(s.hidden, kv), matrix(s.hidden, kv),
                        matrix(s.hidden, s.hidden), vector(), matrix(s.hidden, s.intermediate),
                        matrix(s.hidden, s.intermediate), matrix(s.intermediate, s.hidden)});
    }
    final_norm = vector();
    head = matrix(s.hidden, s.vocab);
    ids = ggml_new_tensor_1d(weights_, GGML_TYPE_I32, s.tokens);
    positions = ggml_new_tensor_1d(weights_, GGML_TYPE_I32, s.tokens);
    ggml_set_input(ids);
    ggml_set_input(positions);
    ggml_backend_alloc_ctx_tensors(weights_, backend);
    fill();
  }

  /// Logits [vocab, tokens] in a graph of `g`.
  tensor logits(ggml_context* g) const {
    tensor x = ggml_get_rows(g, embedding, ids);
    for (const layer& w : layers) {
      x = ggml_add(g, x, attention(g, w, norm(g, x, w.norm1)));
      const tensor y = norm(g, x, w.norm2);
      const tensor product = ggml_swiglu_split(g, ggml_mul_mat(g, w.gate, y), ggml_mul_mat(g, w.up, y));
      x = ggml_add(g, x, ggml_mul_mat(g, w.down, product));
    }
    return ggml_mul_mat(g, head, norm(g, x, final_norm));
  }

  tensor ids, positions;

 private:
  tensor parameter(tensor t) {
    ggml_set_param(t);
    parameters_.push_back(t);
    return t;
  }
  tensor matrix(int in, int out) { return parameter(ggml_new_tensor_2d(weights_, GGML_TYPE_F32, in, out)); }
  tensor vector() { return parameter(ggml_new_tensor_1d(weights_, GGML_TYPE_F32, s_.hidden)); }

  void fill() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    for (const tensor t : parameters_) {
      std::vector<float> values(static_cast<std::size_t>(ggml_nelements(t)), 1);
      if (ggml_n_dims(t) == 2)
        for (float& x : values) x = normal(random);
      ggml_backend_tensor_set(t, values.data(), 0, ggml_nbytes(t));
    }
    std::vector<int> at(static_cast<std::size_t>(s_.tokens));
    for (int i = 0; i < s_.tokens; ++i) at[static_cast<std::size_t>(i)] = i;
    ggml_backend_tensor_set(positions, at.data(), 0, ggml_nbytes(positions));
  }

  static tensor norm(ggml_context* g, tensor x, tensor w) { return ggml_mul(g, ggml_rms_norm(g, x, 1e-5f), w); }

  /// [dim, heads, tokens], rotated.
  tensor rotated(ggml_context* g, tensor x, int heads) const {
    return ggml_rope(g, ggml_reshape_3d(g, x, s_.dim(), heads, s_.tokens), positions, s_.dim(), GGML_ROPE_TYPE_NEOX);
  }
  tensor attention(ggml_context* g, const layer& w, tensor y) const {
    const tensor q = ggml_permute(g, rotated(g, ggml_mul_mat(g, w.q, y), s_.heads), 0, 2, 1, 3);
    const tensor k = ggml_permute(g, rotated(g, ggml_mul_mat(g, w.k, y), s_.kv_heads), 0, 2, 1, 3);
    const tensor v = ggml_reshape_3d(g, ggml_mul_mat(g, w.v, y), s_.dim(), s_.kv_heads, s_.tokens);
    const tensor by_dim = ggml_cont(g, ggml_permute(g, v, 1, 2, 0, 3));  // [tokens, dim, kv_heads]
    const float scale = 1 / std::sqrt(static_cast<float>(s_.dim()));
    const tensor scores = ggml_diag_mask_inf(g, ggml_scale(g, ggml_mul_mat(g, k, q), scale), 0);
    const tensor o = ggml_mul_mat(g, by_dim, ggml_soft_max(g, scores));  // [dim, tokens, heads]
    return ggml_mul_mat(g, w.out, ggml_cont_2d(g, ggml_permute(g, o, 0, 2, 1, 3), s_.hidden, s_.tokens));
  }

  sizes s_;
  ggml_context* weights_;
  std::vector<tensor> parameters_;
  tensor embedding, final_norm, head;
  std::vector<layer> layers;
};

}  // namespace

int main(int count, char** words) {
  if (count != 10) return std::fprintf(stderr, "nine numbers are needed: see the head of this file\n"), 2;
  const auto number = [&](int i) { return std::atoi(words[i]); };
  const sizes s{number(1), number(2), number(3), number(4), number(5), number(6), number(7)};
  const int steps = number(8);

  ggml_backend_t backend = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(backend, number(9));
  model llama(s, backend);
  ggml_backend_sched_t schedule = ggml_backend_sched_new(&backend, nullptr, 1, GGML_DEFAULT_GRAPH_SIZE * 4,
                                                         /*parallel=*/false, /*op_offload=*/false);
  ggml_context* graph =
      ggml_init({16 * GGML_DEFAULT_GRAPH_SIZE * ggml_tensor_overhead() + 8 * ggml_graph_overhead(), nullptr, true});

  ggml_opt_params by = ggml_opt_default_params(schedule, GGML_OPT_LOSS_TYPE_CROSS_ENTROPY);
  by.ctx_compute = graph;
  by.inputs = llama.ids;
  by.outputs = llama.logits(graph);
  ggml_opt_context_t training = ggml_opt_init(by);

  std::mt19937 random(2);
  std::vector<int> ids(static_cast<std::size_t>(s.tokens));
  std::vector<float> labels(ids.size() * static_cast<std::size_t>(s.vocab));
  std::vector<double> seconds;
  for (int step = 0; step < steps; ++step) {
    std::fill(labels.begin(), labels.end(), 0.f);
    for (int& id : ids) id = static_cast<int>(random() % static_cast<unsigned>(s.vocab));
    for (std::size_t i = 0; i < ids.size(); ++i)
      labels[i * static_cast<std::size_t>(s.vocab) + random() % static_cast<unsigned>(s.vocab)] = 1;
    ggml_opt_alloc(training, /*backward=*/true);
    ggml_backend_tensor_set(llama.ids, ids.data(), 0, ggml_nbytes(llama.ids));
    ggml_backend_tensor_set(ggml_opt_labels(training), labels.data(), 0, labels.size() * sizeof(float));
    const auto began = std::chrono::steady_clock::now();
    ggml_opt_eval(training, nullptr);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    float loss = 0;
    ggml_backend_tensor_get(ggml_opt_loss(training), &loss, 0, sizeof loss);
    std::printf("step %d: loss %.4f, %.0f ms\n", step, static_cast<double>(loss), 1e3 * seconds.back());
    std::fflush(stdout);
  }
  std::sort(seconds.begin() + 1, seconds.end());  // the first one allocates
  std::printf("%.2f tokens/s\n", s.tokens / seconds[1 + (seconds.size() - 1) / 2]);
}

// Truth of training: 32 steps of AdamW on text of the repository, by the fused operators of each backend in f32,
// against plain loops in f32 and in f64.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>

#include "model.hpp"
#include "plain.hpp"

namespace tigon::test::training {
namespace {

// What two runs may be apart. Two of them in f32, each with roundings of its own, are seen to be 1e-6, 1.4e-5 and 4e-6
// apart, log-probabilities of unlikely tokens most; the faults below 1.7e-4, 8e-4 and 5e-4 at the least.
constexpr double most_loss = 2e-5, most_log_prob = 1e-4, most_weight = 2e-5;
constexpr std::size_t likeliest = 20;
// Of logits of a router: far above what they may be apart.
constexpr double least_margin = 2e-5;

std::vector<model_config> make_models() {
  model_config llama{.name = "llama"};
  model_config gemma{.name = "gemma"};
  gemma.gate = gate_form::geglu;
  gemma.norm_offset = 1;
  gemma.softcap = 4;  // low enough that it bends these logits
  gemma.tied = true;
  gemma.embedding_scale = std::sqrt(static_cast<double>(gemma.hidden));
  model_config qwen2vl{.name = "qwen2vl"};
  qwen2vl.rotary = rotary_form::multimodal;
  qwen2vl.sections[0] = 2, qwen2vl.sections[1] = 1, qwen2vl.sections[2] = 1;
  model_config phi{.name = "phi"};
  phi.gate = gate_form::packed;
  phi.rotary = rotary_form::partial;
  phi.rotary_dim = 4;
  model_config mixture{.name = "mixture"};
  mixture.experts = 4;
  mixture.top_k = 2;
  mixture.intermediate = 24;
  model_config connected{.name = "connected"};
  connected.streams = 4;
  return {llama, gemma, qwen2vl, phi, mixture, connected};
}
const model_config& named(const std::string& name) {
  static const std::vector<model_config> all = make_models();
  return *std::find_if(all.begin(), all.end(), [&](const model_config& c) { return c.name == name; });
}

/// Bytes of a file that hardly ever changes.
const std::vector<std::int32_t>& text() {
  static const std::vector<std::int32_t> ids = [] {
    std::ifstream file(TIGON_TRAINING_TEXT);
    std::vector<std::int32_t> out;
    for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) out.push_back(*at & 127);
    return out;
  }();
  return ids;
}

template <class R>
const record& plainly(const std::string& name) {
  static std::map<std::string, record> done;
  auto found = done.find(name);
  if (found == done.end()) {
    plain<R> with(named(name));
    found = done.emplace(name, train<R>(named(name), with, text())).first;
  }
  return found->second;
}

/// The largest difference of each kind.
struct distance {
  double loss = 0, log_prob = 0, weight = 0;
  std::string worst;  ///< parameter
  bool within() const { return loss <= most_loss && log_prob <= most_log_prob && weight <= most_weight; }
};
std::ostream& operator<<(std::ostream& out, const distance& d) {
  return out << "loss " << d.loss << ", log-probability " << d.log_prob << ", " << d.worst << ' ' << d.weight;
}

/// NaN is far from everything.
void widen(double& to, double a, double b) {
  const double apart = std::abs(a - b);
  if (!(apart <= to)) to = apart;
}

/// The likeliest tokens of each row, one after the other. Of tokens that are equally likely up to rounding either may
/// come first: at each place, both probabilities are compared that `b` gives to the token of `a` and of `b`.
void compare_likeliest(const buffer<double>& a, const buffer<double>& b, distance& d) {
  const auto order = [](const buffer<double>& of, std::size_t i) {
    std::vector<std::size_t> ids(of.cols);
    std::iota(ids.begin(), ids.end(), std::size_t{0});
    const double* p = of.view().row(i);
    std::stable_sort(ids.begin(), ids.end(), [=](std::size_t u, std::size_t v) { return p[u] > p[v]; });
    ids.resize(likeliest);
    return ids;
  };
  for (std::size_t i = 0; i < a.rows; ++i) {
    const auto of_a = order(a, i), of_b = order(b, i);
    for (std::size_t k = 0; k < likeliest; ++k) {
      widen(d.log_prob, a.view().row(i)[of_a[k]], b.view().row(i)[of_a[k]]);
      widen(d.log_prob, b.view().row(i)[of_a[k]], b.view().row(i)[of_b[k]]);
    }
  }
}

distance apart(const model_config& c, const record& a, const record& b) {
  distance d;
  for (std::size_t i = 0; i < b.losses.size(); ++i) widen(d.loss, a.losses[i], b.losses[i]);
  compare_likeliest(a.log_probs, b.log_probs, d);
  for (const auto& m : parameters(c).all)
    for (std::size_t i = m.begin; i < m.begin + m.size(); ++i) {
      const double before = d.weight;
      widen(d.weight, a.weights[i], b.weights[i]);
      if (d.weight != before) d.worst = m.name;
    }
  return d;
}

std::vector<std::string> backend_names() {
  std::vector<std::string> out;
  for (const auto& [name, make] : fused_backends()) out.push_back(name);
  return out;
}

class convergence : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(convergence, is_that_of_plain_loops) {
  const auto& [name, backend] = GetParam();
  const model_config& c = named(name);
  const auto with = fused_backends().at(backend)(c);
  const record fused = train<float>(c, *with, text());
  const distance of_f64 = apart(c, fused, plainly<double>(name)), of_f32 = apart(c, fused, plainly<float>(name));
  std::ostringstream told;
  told << "from f64: " << of_f64 << "; from plain f32: " << of_f32;
  std::printf("%s\n", told.str().c_str());
  EXPECT_EQ(fused.losses.size(), std::size_t{training_steps});
  EXPECT_TRUE(of_f64.within() && of_f32.within()) << told.str();
}
INSTANTIATE_TEST_SUITE_P(models, convergence,
                         testing::Combine(testing::Values("llama", "gemma", "qwen2vl", "phi", "mixture", "connected"),
                                          testing::ValuesIn(backend_names())),
                         [](const auto& of) { return std::get<0>(of.param) + "_" + std::get<1>(of.param); });

TEST(convergence, has_every_backend) {
  EXPECT_TRUE(fused_backends().contains("highway"));
#if defined(TIGON_TESTS_ENGINES)
  for (const char* name : {"generic", "ascend", "eigen", "xsimd"}) EXPECT_TRUE(fused_backends().contains(name)) << name;
#endif
}

class plain_models : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(models, plain_models,
                         testing::Values("llama", "gemma", "qwen2vl", "phi", "mixture", "connected"),
                         [](const auto& of) { return of.param; });

/// So that what is compared is training, and a mixture's choices are those of the mathematics.
TEST_P(plain_models, learn) {
  const record& r = plainly<double>(GetParam());
  EXPECT_LT(r.losses.back(), r.losses.front() - 1);
  EXPECT_GT(r.margin, least_margin);
  const distance d = apart(named(GetParam()), plainly<float>(GetParam()), r);
  std::ostringstream told;
  told << "loss " << r.losses.front() << " to " << r.losses.back() << ", margin " << r.margin
       << "; plain f32 from f64: " << d;
  std::printf("%s\n", told.str().c_str());
  EXPECT_TRUE(d.within()) << d;
}

/// All of them have one order of steps, which differences in f64 check.
TEST_P(plain_models, have_the_gradient_of_their_loss) {
  const model_config& c = named(GetParam());
  plain<double> with(c);
  model<double> m(c, with);
  const auto start = initial(m.layout(), c);
  std::vector<double> w(start.begin(), start.end()), g(w.size()), none(w.size());
  const tokens ids = tokens(text()).first(c.window()), targets = tokens(text()).subspan(1, c.window());
  m.step(w, g, ids, targets);
  example::rng draw(3);
  for (const auto& p : m.layout().all) {
    std::vector<double> way(p.size());
    double slope = 0, steepest = 0, length = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      way[i] = draw.normal();
      slope += way[i] * g[p.begin + i];
      length += way[i] * way[i];
      steepest += g[p.begin + i] * g[p.begin + i];
    }
    const double h = 1e-5 / std::sqrt(length);
    const auto loss = [&](double by) {
      std::vector<double> moved = w;
      for (std::size_t i = 0; i < p.size(); ++i) moved[p.begin + i] += by * h * way[i];
      return m.step(moved, none, ids, targets);
    };
    EXPECT_GT(steepest, 0) << p.name;
    EXPECT_NEAR((loss(1) - loss(-1)) / (2 * h), slope, 1e-6 * std::sqrt(steepest * length)) << p.name;
  }
}

/// A step that is wrong in one thing.
enum class fault {
  keys_after,
  norm_gradient,
  residual_gradient,
  rotation_back,
  gate_gradient,
  router_gradient,
  tied,
  coefficient_gradient,
};
class faulty : public plain<float> {
 public:
  faulty(const model_config& c, fault what) : plain<float>(c), what_(what), intermediate_(c.intermediate) {
    causal_ = what != fault::keys_after;
    mixes_back_ = what != fault::residual_gradient;
  }

  void add_norm_backward(in dy, in ds, in s, in w, std::span<const float> rstd, out dx, out dw) override {
    plain::add_norm_backward(dy, what_ == fault::residual_gradient ? in() : ds, s, w, rstd, dx, dw);
    if (what_ == fault::norm_gradient) dw.data[3] = -dw.data[3];
  }
  void rotate_backward(out dqkv, const rotary_tables<float>& t) override {
    what_ == fault::rotation_back ? plain::rotate(dqkv, t) : plain::rotate_backward(dqkv, t);
  }
  void gate_backward(in dy, in gate_up, out d) override {
    plain::gate_backward(dy, gate_up, d);
    for (std::size_t i = 0; what_ == fault::gate_gradient && i < d.rows; ++i)
      std::swap(d.row(i)[0], d.row(i)[intermediate_]);
  }
  void experts_backward(in dy, in x, expert_matrices<const float> w, const mixture_state<float>& s, out dx,
                        expert_matrices<float> dw, out dlogits) override {
    plain::experts_backward(dy, x, w, s, dx, dw, dlogits);
    for (std::size_t t = 0; what_ == fault::router_gradient && t < dlogits.rows; ++t)
      std::fill_n(dlogits.row(t), dlogits.cols, 0.0f);
  }
  void connect_backward(in dy, in x, connection_matrices<const float> w, const layer_function& layer,
                        connection_state<float>& s, out dx, connection_matrices<float> dw) override {
    plain::connect_backward(dy, x, w, layer, s, dx, dw);
    if (what_ == fault::coefficient_gradient) std::swap(dw.bias.data[0], dw.bias.data[dw.bias.cols - 1]);
  }
  void embed_backward(in dy, tokens ids, out dw, bool adds) override {
    plain::embed_backward(dy, ids, dw, adds && what_ != fault::tied);
  }

 private:
  fault what_;
  std::size_t intermediate_;
};

TEST_P(plain_models, with_a_fault_are_seen) {
  const model_config& c = named(GetParam());
  const auto expect_seen = [&](steps<float>& with, const char* what) {
    const distance d = apart(c, train<float>(c, with, text()), plainly<double>(c.name));
    std::printf("%s: %g, %g, %g\n", what, d.loss, d.log_prob, d.weight);
    EXPECT_GT(d.loss, most_loss) << what;
    EXPECT_GT(d.log_prob, most_log_prob) << what;
    EXPECT_GT(d.weight, most_weight) << what;
  };
  const auto with_fault = [&](fault what, const char* name) {
    faulty with(c, what);
    expect_seen(with, name);
  };
  const auto with_config = [&](const char* name, const auto& change) {
    model_config other = c;
    change(other);
    plain<float> with(other);
    expect_seen(with, name);
  };
  with_fault(fault::keys_after, "keys after the query");
  with_fault(fault::norm_gradient, "a sign in the gradient of a norm");
  with_fault(fault::residual_gradient, "no gradient of the residual stream");
  with_fault(fault::rotation_back, "a gradient that is rotated forwards");
  with_fault(fault::gate_gradient, "gate and up in each other's place");
  with_config("another eps", [](model_config& o) { o.norm_eps = 1e-3; });
  if (c.experts != 0) with_fault(fault::router_gradient, "no gradient of the router");
  if (c.tied) with_fault(fault::tied, "a tied embedding without the head's gradient");
  if (c.norm_offset != 0) with_config("no offset", [](model_config& o) { o.norm_offset = 0; });
  if (c.softcap != 0) with_config("no softcap", [](model_config& o) { o.softcap = 0; });
  if (c.gate == gate_form::geglu) with_config("another gate", [](model_config& o) { o.gate = gate_form::swiglu; });
  if (c.rotary == rotary_form::multimodal)
    with_config("other sections", [](model_config& o) { std::swap(o.sections[0], o.sections[1]); });
  if (c.streams != 0) {
    with_fault(fault::coefficient_gradient, "gradients of two coefficients in each other's place");
    with_config("fewer steps of the balance", [](model_config& o) { o.sinkhorn_steps = 2; });
    with_config("another factor of the layer", [](model_config& o) { o.post_mult = 1.99; });
  }
  if (c.rotary == rotary_form::partial) with_config("a smaller rotation", [](model_config& o) { o.rotary_dim = 2; });
}

}  // namespace
}  // namespace tigon::test::training

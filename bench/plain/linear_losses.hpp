// Losses behind a linear layer in elementary steps: logits are kept whole, in the element type; log-probabilities and
// gradients by them in f32 (f64 of f64).
#ifndef TIGON_BENCH_PLAIN_LINEAR_LOSSES_HPP
#define TIGON_BENCH_PLAIN_LINEAR_LOSSES_HPP

#include "plain/losses.hpp"
#include "plain/products.hpp"
#include "support/matrix.hpp"

#include <cmath>
#include <cstdint>
#include <span>

namespace tigon_bench::passes {

/// A layer and its gradients; bias and dbias may have no memory. Without dx no gradient is made.
template <class T>
struct linear {
  in<T> x, w;
  tigon::vector_view<const T> bias{};
  out<T> dx, dw;
  tigon::vector_view<T> dbias{};

  bool trained() const { return dx.data != nullptr; }
};

/// Matrices of logits that a loss takes: so many of T, and so many intermediate results. Numbers of the rows beside
/// them.
template <class T>
class logit_steps {
 public:
  using A = tigon::accumulator_t<T>;

  logit_steps(std::size_t rows, std::size_t vocab) : z_(rows, vocab), dz_(rows, vocab), s_(rows), u_(rows) {
    for (matrix<A>* m : {&logs_, &g_, &t_, &other_}) *m = matrix<A>(rows, vocab);
  }
  std::size_t bytes() const { return z_.bytes() + dz_.bytes() + 4 * logs_.bytes() + s_.bytes() + u_.bytes(); }

  /// Logits of the layer.
  void logits(tigon::context& ctx, const linear<T>& l) const { logits(ctx, l, z_.view()); }
  static void logits(tigon::context& ctx, const linear<T>& l, out<T> z) {
    product_nt<T>(ctx, l.x, l.w, z);
    if (l.bias.data != nullptr) each(ctx, z, sum, in<T>(z), l.bias);
  }
  /// The layer's gradients from those of its logits.
  void gradients(tigon::context& ctx, const linear<T>& l) const {
    product_nn<T>(ctx, dz_.view(), l.w, l.dx);
    product_tn<T>(ctx, dz_.view(), l.x, l.dw);
    if (l.dbias.data != nullptr) sum_columns(ctx, in<T>(dz_.view()), l.dbias);
  }

  out<T> z() const { return z_.view(); }
  out<T> dz() const { return dz_.view(); }
  out<A> logs() const { return logs_.view(); }
  out<A> g() const { return g_.view(); }
  out<A> t() const { return t_.view(); }
  out<A> other() const { return other_.view(); }
  A* numbers() const { return s_.data(); }

  /// Log-probabilities of the targets, of the logits at hand or of others.
  void log_probabilities(tigon::context& ctx, std::span<const std::int32_t> target, A* logp) const {
    log_probabilities_of(ctx, z(), target, logp);
  }
  void log_probabilities_of(tigon::context& ctx, in<T> logits, std::span<const std::int32_t> target, A* logp) const {
    log_softmax<T, A>(ctx, logits, logs(), t(), numbers());
    for (std::size_t i = 0; i < z_.rows; ++i) logp[i] = logs().row(i)[static_cast<std::size_t>(target[i])];
  }
  /// Their gradients u, to those of the logits: u ([j = target] - p_j).
  void log_probabilities_backward(tigon::context& ctx, std::span<const std::int32_t> target, const A* u,
                                  out<T> dz) const {
    for (std::size_t i = 0; i < z_.rows; ++i) s_[i] = -u[i];
    each(ctx, t(), exponential, in<A>(logs()));
    each_with(ctx, t(), static_cast<const A*>(numbers()), scaled, in<A>(t()));
    for (std::size_t i = 0; i < z_.rows; ++i) t().row(i)[static_cast<std::size_t>(target[i])] += u[i];
    each(ctx, dz, same, in<A>(t()));
  }
  A* room_for_gradients() const { return u_.data(); }

 private:
  matrix<T> z_, dz_;
  matrix<A> logs_, g_, t_, other_;
  buffer<A> s_, u_;
};

/// Cross entropy, mean over the rows.
template <class T, class A>
void linear_cross_entropy(tigon::context& ctx, const linear<T>& l, std::span<const std::int32_t> target, A* loss,
                          const matrix<T>& logits, const matrix<T>& dlogits) {
  logit_steps<T>::logits(ctx, l, logits.view());
  cross_entropy<T>(ctx, logits.view(), target, loss, l.trained() ? dlogits.view() : out<T>());
  if (!l.trained()) return;
  product_nn<T>(ctx, dlogits.view(), l.w, l.dx);
  product_tn<T>(ctx, dlogits.view(), l.x, l.dw);
}

/// Numbers of every row, and their upstream gradients.
template <class A>
struct nll_and_entropy {
  A *nll, *entropy;
  const A *of_nll, *of_entropy;
};
/// nll and entropy of every row, and the gradients of sum of_nll nll + of_entropy entropy.
template <class T, class A>
void linear_scaled_cross_entropy(tigon::context& ctx, const linear<T>& l, std::span<const std::int32_t> target,
                                 const logit_steps<T>& m, nll_and_entropy<A> to) {
  A *const nll = to.nll, *const entropy = to.entropy;
  const A *const of_nll = to.of_nll, *const of_entropy = to.of_entropy;
  const std::size_t rows = l.x.rows;
  m.logits(ctx, l);
  m.log_probabilities(ctx, target, nll);
  numbers(nll, rows, [](A v) { return -v; });
  each(ctx, m.g(), exponential, in<A>(m.logs()));
  each_and_sum(ctx, m.t(), entropy, product, in<A>(m.g()), in<A>(m.logs()));
  numbers(entropy, rows, [](A v) { return -v; });
  if (!l.trained()) return;
  // d entropy / dz = -p (log p + entropy)
  each_with(ctx, m.other(), static_cast<const A*>(entropy), raised, in<A>(m.logs()));
  each(ctx, m.other(), product, in<A>(m.g()), in<A>(m.other()));
  A* const s = m.numbers();
  for (std::size_t i = 0; i < rows; ++i) s[i] = -of_entropy[i];
  each_with(ctx, m.other(), static_cast<const A*>(s), scaled, in<A>(m.other()));
  each_with(ctx, m.g(), of_nll, scaled, in<A>(m.g()));
  for (std::size_t i = 0; i < rows; ++i) m.g().row(i)[static_cast<std::size_t>(target[i])] -= of_nll[i];
  each(ctx, m.dz(), sum, in<A>(m.g()), in<A>(m.other()));
  m.gradients(ctx, l);
}

/// kl_div of given probabilities.
template <class T, class A>
void linear_kl_div(tigon::context& ctx, const linear<T>& l, in<T> teacher, const logit_steps<T>& m, A* loss) {
  m.logits(ctx, l);
  log_softmax<T, A>(ctx, m.z(), m.logs(), m.t(), m.numbers());
  each(ctx, m.other(), same, teacher);
  kl_div<A, A>(ctx, m.logs(), m.other(), loss, l.trained() ? m.g() : out<A>());
  if (!l.trained()) return;
  log_softmax_backward<T, A>(ctx, m.g(), m.logs(), m.dz(), m.t(), m.numbers());
  m.gradients(ctx, l);
}

/// Returns the divergence of logits from a teacher's, mean over the rows, and writes its gradient unless dz is empty.
template <class T, class A>
A jsd_of_logits(tigon::context& ctx, const logit_steps<T>& m, in<T> teacher, out<T> dz) {
  A loss = 0;
  log_softmax<T, A>(ctx, m.z(), m.logs(), m.t(), m.numbers());
  log_softmax<T, A>(ctx, teacher, m.other(), m.t(), m.numbers());
  jsd<A, A>(ctx, m.logs(), m.other(), &loss, dz.data == nullptr ? out<A>() : m.g());
  if (dz.data != nullptr) log_softmax_backward<T, A>(ctx, m.g(), m.logs(), dz, m.t(), m.numbers());
  return loss;
}

/// beta (1 - cos of the angle between the rows), mean over them.
template <class T, class A>
A cosine_of_logits(tigon::context& ctx, const logit_steps<T>& m, in<T> teacher, out<T> dz, A beta = A(0.5)) {
  const std::size_t rows = teacher.rows;
  const A n = static_cast<A>(rows);
  A *const s = m.numbers(), *const length = m.room_for_gradients();
  const auto unit = [&](in<T> z, out<A> to, A* r) {
    each_and_sum(ctx, m.t(), r, square, z);
    numbers(r, rows, [](A v) { return 1 / std::sqrt(v); });
    each_with(ctx, to, static_cast<const A*>(r), scaled, z);
  };
  unit(teacher, m.other(), s);
  unit(m.z(), m.logs(), length);
  each_and_sum(ctx, m.t(), s, product, in<A>(m.logs()), in<A>(m.other()));
  const A loss = beta * (1 - sum_of(s, rows) / n);
  if (dz.data == nullptr) return loss;
  // d/dz = beta / |z| (s (s t) - t)
  each_with(ctx, m.g(), static_cast<const A*>(s), scaled, in<A>(m.logs()));
  each(ctx, m.g(), difference, in<A>(m.g()), in<A>(m.other()));
  numbers(length, rows, [=](A v) { return v * beta / n; });
  each_with(ctx, dz, static_cast<const A*>(length), scaled, in<A>(m.g()));
  return loss;
}

/// Half the squared distance of the rows, mean over them.
template <class T, class A>
A distance_of_logits(tigon::context& ctx, const logit_steps<T>& m, in<T> teacher, out<T> dz) {
  const A n = static_cast<A>(teacher.rows);
  each(ctx, m.g(), difference, in<T>(m.z()), teacher);
  each_and_sum(ctx, m.t(), m.numbers(), square, in<A>(m.g()));
  if (dz.data != nullptr) each(ctx, dz, times(1 / n), in<A>(m.g()));
  return sum_of(m.numbers(), teacher.rows) / (2 * n);
}

/// The weights of labels and of a soft loss: 1/2 each, or the soft loss alone.
struct soft_weights {
  double hard, soft;
};

template <class T>
struct two_layers {
  const linear<T>& student;
  const linear<T>& teacher;
};
template <class T>
struct distillation_room {
  out<T> teacher_logits, of_labels;
};

/// A linear layer that follows another one, and labels. soft(ctx, m, teacher, dz) returns the loss and writes dz
/// where it has memory.
template <class T, class A, class Soft>
void linear_distillation(tigon::context& ctx, two_layers<T> of, std::span<const std::int32_t> target,
                         const logit_steps<T>& m, distillation_room<T> room, soft_weights weight, A* loss, Soft soft) {
  const linear<T>& l = of.student;
  const out<T> of_labels = room.of_labels;
  m.logits(ctx, l);
  logit_steps<T>::logits(ctx, of.teacher, room.teacher_logits);
  const A value = soft(ctx, m, in<T>(room.teacher_logits), l.trained() ? m.dz() : out<T>());
  *loss = static_cast<A>(weight.soft) * value;
  A hard = 0;
  if (weight.hard != 0) {
    cross_entropy<T>(ctx, m.z(), target, &hard, l.trained() ? of_labels : out<T>());
    *loss += static_cast<A>(weight.hard) * hard;
  }
  if (!l.trained()) return;
  each(ctx, m.dz(), times(static_cast<A>(weight.soft)), in<T>(m.dz()));
  if (weight.hard != 0) {
    each(ctx, of_labels, times(static_cast<A>(weight.hard)), in<T>(of_labels));
    each(ctx, m.dz(), sum, in<T>(m.dz()), in<T>(of_labels));
  }
  m.gradients(ctx, l);
}

/// Log-probabilities of every token.
template <class A>
struct token_numbers {
  std::span<A> logp, ref_logp;
};

/// A function of the log-probabilities of targets, and of a reference's where it has memory (x of no rows: none).
/// f(logp, ref_logp, u) returns the loss and writes its derivatives by logp.
template <class T, class A, class F>
void linear_token_loss(tigon::context& ctx, const linear<T>& l, const linear<T>& reference,
                       std::span<const std::int32_t> target, const logit_steps<T>& m, token_numbers<A> numbers, A* loss,
                       F f) {
  const std::span<A> logp = numbers.logp, ref_logp = numbers.ref_logp;
  if (reference.x.rows != 0) {
    m.logits(ctx, reference);
    m.log_probabilities(ctx, target, ref_logp.data());
  }
  m.logits(ctx, l);
  m.log_probabilities(ctx, target, logp.data());
  *loss = static_cast<A>(f(std::span<const A>(logp), std::span<const A>(ref_logp), m.room_for_gradients()));
  if (!l.trained()) return;
  m.log_probabilities_backward(ctx, target, m.room_for_gradients(), m.dz());
  m.gradients(ctx, l);
}

/// Cross entropy of logits and a divergence from a teacher's probabilities or their logarithms, one after the other.
enum class distance { tvd, jsd };
template <class T, class A>
void cross_entropy_and(tigon::context& ctx, distance by, in<T> z, std::span<const std::int32_t> target, in<T> teacher,
                       const logit_steps<T>& m, A* loss, out<T> dlogits) {
  A of_labels = 0, of_teacher = 0;
  const bool trained = dlogits.data != nullptr;
  const out<A> g = trained ? m.g() : out<A>();
  cross_entropy<T>(ctx, z, target, &of_labels, trained ? m.dz() : out<T>());
  log_softmax<T, A>(ctx, z, m.logs(), m.t(), m.numbers());
  each(ctx, m.other(), same, teacher);
  if (by == distance::jsd) {
    jsd<A, A>(ctx, m.logs(), m.other(), &of_teacher, g);
  } else {
    each(ctx, m.t(), exponential, in<A>(m.logs()));
    tvd<A, A>(ctx, m.t(), m.other(), &of_teacher, g);
    if (trained) each(ctx, g, product, in<A>(g), in<A>(m.t()));  // through the exponential
  }
  *loss = of_labels + of_teacher;
  if (!trained) return;
  log_softmax_backward<T, A>(ctx, m.g(), m.logs(), dlogits, m.t(), m.numbers());
  each(ctx, dlogits, sum, in<T>(dlogits), in<T>(m.dz()));
}

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_LINEAR_LOSSES_HPP

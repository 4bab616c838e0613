// Divergences, policy losses, preference losses, and mixtures of experts.
#include "layers.hpp"

namespace tigon_torch {
namespace {

using two = std::tuple<Tensor, Tensor>;
using four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using six = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

two jsd(Tensor student, Tensor teacher, maybe labels, double beta, int64_t ignore, bool need) {
  const char* op = "jsd";
  expect_like(op, "teacher_log_probs", teacher, "student_log_probs", student);
  const matrix s = rows_of(op, "student_log_probs", student), t = rows_of(op, "teacher_log_probs", teacher);
  const vector ids = labels ? labels_of(op, "labels", *labels, student) : vector{};
  Tensor loss = make(student, {}, wide(student)), d = need ? make(student, sizes(student)) : nothing(student);
  wide_table(op, s.of).losses->jsd(call(student), s, t, ids, vector_of(loss), need ? rows_of(d) : matrix{},
                                   {beta, ignore});
  return {loss, d};
}

/// A loss, or its gradient: a number, or with reduction none (3) one an element.
matrix elements(const Tensor& t, bool all) {
  if (all) return rows_of(t);
  const vector v = vector_of(t);
  return {v.data, v.of, 1, v.size, v.size};
}

Tensor kl_div(Tensor student, Tensor teacher, bool log_target, double eps, int64_t reduce) {
  const char* op = "kl_div";
  expect_like(op, "teacher", teacher, "student_log_probs", student);
  const matrix s = rows_of(op, "student_log_probs", student), t = rows_of(op, "teacher", teacher);
  Tensor loss = make(student, reduce == 3 ? sizes(student) : std::vector<int64_t>{}, wide(student));
  wide_table(op, s.of).losses->kl_div(call(student), s, t, elements(loss, reduce == 3),
                                      {static_cast<int>(reduce), log_target, eps});
  return loss;
}

two kl_div_backward(Tensor upstream, Tensor student, Tensor teacher, bool log_target, double eps, int64_t reduce,
                    bool need_student, bool need_teacher) {
  const char* op = "kl_div_backward";
  const matrix s = rows_of(op, "student_log_probs", student), t = rows_of(op, "teacher", teacher);
  upstream_of(upstream, student);
  Tensor ds = need_student ? make(student, sizes(student)) : nothing(student);
  Tensor dt = need_teacher ? make(teacher, sizes(teacher)) : nothing(student);
  wide_table(op, s.of).losses->kl_div_backward(
      call(student), s, t, elements(upstream, reduce == 3), need_student ? rows_of(ds) : matrix{},
      need_teacher ? rows_of(dt) : matrix{}, {static_cast<int>(reduce), log_target, eps});
  return {ds, dt};
}

/// [batch, len] in the type of the sums, or without memory.
matrix of_tokens(const char* op, const char* name, maybe& t, const Tensor& like) {
  if (!t) return {};
  expect_dims(op, name, *t, 2);
  real_type_of(op, name, *t);
  if (t->scalar_type() != wide(like)) t = torch::stable::to(*t, wide(like));
  return rows_of(op, name, *t);
}

matrix ids_of(const char* op, const char* name, Tensor& t) {
  make_ids(op, name, t);
  expect_dims(op, name, t, 2);
  return rows_of(t);
}

/// x [batch, len, columns] of ids [batch, len]; with one_more it may have len + 1 rows a sequence.
void expect_tokens(const char* op, const char* name, const Tensor& x, const char* other, const Tensor& ids,
                   bool one_more) {
  std::vector<int64_t> given = leading(x), longer = sizes(ids);
  longer.back() += one_more;
  if (given != sizes(ids) && given != longer)
    fail(op, std::string(name) + " is " + text(sizes(x)) + "; expected " + text(sizes(ids)) + " x columns, as " +
                 other + (one_more ? ", or one token more" : ""));
}

/// A reference layer beside this one, or none.
std::optional<layer_arguments> reference_of(const char* op, const layer_arguments& a, const maybe& x, const maybe& w,
                                            const maybe& bias) {
  if (x.has_value() != w.has_value()) fail(op, "ref_x and ref_weight are not both given; expected both or none");
  if (!x && bias) fail(op, "ref_bias is given without ref_x; expected a layer or none");
  if (!x) return std::nullopt;
  if (leading(*x) != leading(a.x))
    fail(op, "ref_x is " + text(sizes(*x)) + "; expected " + text(leading(a.x)) + " x columns, as x");
  if (x->scalar_type() != a.x.scalar_type())
    fail(op, "ref_x is of " + name_of(x->scalar_type()) + "; expected " + name_of(a.x.scalar_type()) + ", as x");
  return layer_of(op, *x, *w, bias);
}

/// What a policy loss reads beside logits or hidden states `like`.
struct policy_tensors {
  Tensor ids, advantages;
  maybe old_logp, ref_logp, mask, sampling_ratio;
  policy_batch batch;

  policy_tensors(const char* op, const Tensor& like, Tensor i, Tensor a, maybe o, maybe r, maybe m, maybe s)
      : ids(i), advantages(a), old_logp(o), ref_logp(r), mask(m), sampling_ratio(s) {
    batch.ids = ids_of(op, "ids", ids);
    maybe given = advantages;
    batch.advantages = wide_vector(op, "advantages", given, like);
    advantages = *given;
    batch.old_logp = of_tokens(op, "old_logp", old_logp, like);
    batch.ref_logp = of_tokens(op, "ref_logp", ref_logp, like);
    if (mask) mask = torch::stable::to(*mask, wide(like));  // of any type: a token counts, or 0
    batch.mask = of_tokens(op, "mask", mask, like);
    batch.sampling_ratio = of_tokens(op, "sampling_ratio", sampling_ratio, like);
  }
};

/// The scalars in the order of tigon_torch.ops._POLICY.
policy_options policy_of(const char* op, int64_t type, int64_t level, int64_t luspo, bool reduce, bool corrected,
                         const std::vector<double>& s) {
  if (s.size() != 14) fail(op, "scalars are " + std::to_string(s.size()) + " numbers; expected 14");
  return {static_cast<int>(type),
          static_cast<int>(level),
          static_cast<int>(luspo),
          reduce,
          corrected,
          s[0],
          s[1],
          s[2],
          s[3],
          s[4],
          s[5],
          s[6],
          s[7],
          s[8],
          s[9],
          s[10],
          s[11],
          s[12],
          s[13]};
}

four grpo_loss(Tensor logits, Tensor ids, Tensor advantages, maybe old_logp, maybe ref_logp, maybe mask,
               maybe sampling_ratio, int64_t type, int64_t level, int64_t luspo, bool reduce, bool corrected,
               std::vector<double> scalars) {
  const char* op = "grpo_loss";
  const policy_options opt = policy_of(op, type, level, luspo, reduce, corrected, scalars);
  const matrix z = rows_of(op, "logits", logits);
  policy_tensors in(op, logits, ids, advantages, old_logp, ref_logp, mask, sampling_ratio);
  expect_tokens(op, "logits", logits, "ids", ids, true);
  const std::vector<int64_t> of_loss = reduce ? std::vector<int64_t>{} : sizes(ids);
  Tensor loss = make(logits, of_loss, wide(logits)), clipped = make(logits, of_loss, wide(logits));
  Tensor kl = ref_logp ? make(logits, of_loss, wide(logits)) : nothing(loss);
  Tensor saved = make(logits, {static_cast<int64_t>(z.rows), 2}, wide(logits));
  wide_table(op, z.of).losses->grpo_loss(call(logits), z, in.batch, vector_of(loss), vector_of(saved),
                                         ref_logp ? vector_of(kl) : vector{}, vector_of(clipped), opt);
  return {loss, kl, clipped, saved};
}

Tensor grpo_loss_backward(Tensor upstream, Tensor saved, Tensor logits, Tensor ids, Tensor advantages, maybe old_logp,
                          maybe ref_logp, maybe mask, maybe sampling_ratio, int64_t type, int64_t level, int64_t luspo,
                          bool reduce, bool corrected, std::vector<double> scalars) {
  const char* op = "grpo_loss_backward";
  const policy_options opt = policy_of(op, type, level, luspo, reduce, corrected, scalars);
  const matrix z = rows_of(op, "logits", logits);
  policy_tensors in(op, logits, ids, advantages, old_logp, ref_logp, mask, sampling_ratio);
  expect_tokens(op, "logits", logits, "ids", ids, true);
  Tensor dlogits = make(logits, sizes(logits));
  wide_table(op, z.of).losses->grpo_loss_backward(call(logits), z, in.batch, vector_of(saved),
                                                  upstream_of(upstream, logits), rows_of(dlogits), opt);
  return dlogits;
}

/// The reference is a layer, or its log-probabilities, or none. Gradients are those of the loss times `upstream`, or 1.
six fused_linear_grpo(Tensor x, Tensor w, maybe bias, Tensor ids, Tensor advantages, maybe old_logp, maybe ref_logp,
                      maybe mask, maybe sampling_ratio, maybe ref_x, maybe ref_w, maybe ref_bias, maybe upstream,
                      int64_t type, int64_t level, int64_t luspo, bool reduce, bool corrected,
                      std::vector<double> scalars, bool need_dx, bool need_dw, bool need_db) {
  const char* op = "fused_linear_grpo";
  const policy_options opt = policy_of(op, type, level, luspo, reduce, corrected, scalars);
  const layer_arguments a = layer_of(op, x, w, bias);
  const policy_tensors in(op, x, ids, advantages, old_logp, ref_logp, mask, sampling_ratio);
  expect_tokens(op, "x", x, "ids", ids, true);
  linear_policy_call c;
  c.layer = a.layer, c.batch = in.batch;
  const std::optional<layer_arguments> reference = reference_of(op, a, ref_x, ref_w, ref_bias);
  if (reference) c.reference = reference->layer;
  if (upstream) c.upstream = upstream_of(*upstream, x);
  const std::vector<int64_t> of_loss = reduce ? std::vector<int64_t>{} : sizes(ids);
  const bool referenced = reference || ref_logp;
  Tensor loss = make(x, of_loss, wide(x)), clipped = make(x, of_loss, wide(x));
  Tensor kl = referenced ? make(x, of_loss, wide(x)) : nothing(loss);
  c.loss = vector_of(loss), c.clipped = vector_of(clipped);
  if (referenced) c.kl = vector_of(kl);
  const made_gradients g(a, need_dx, need_dw, need_db);
  c.to = g.to;
  wide_table(op, a.layer.x.of).preferences->fused_linear_grpo(call(a.x), c, opt);
  return {loss, kl, clipped, g.dx, g.dw, g.bias_gradient(bias)};
}

/// scalars: beta, label_smoothing, discopop_tau, gamma, alpha, desirable_weight, undesirable_weight.
five fused_linear_preference(Tensor x, Tensor w, maybe bias, Tensor target, maybe nll_target, maybe desirable, maybe kl,
                             maybe ref_x, maybe ref_w, maybe ref_bias, maybe ref_logps, int64_t kind, int64_t dpo,
                             int64_t ignore, bool nll, bool average, std::vector<double> scalars, bool need_dx,
                             bool need_dw, bool need_db) {
  const char* op = "fused_linear_preference";
  if (scalars.size() != 7) fail(op, "scalars are " + std::to_string(scalars.size()) + " numbers; expected 7");
  const preference_options opt{static_cast<preference>(kind),
                               static_cast<int>(dpo),
                               ignore,
                               nll,
                               average,
                               scalars[0],
                               scalars[1],
                               scalars[2],
                               scalars[3],
                               scalars[4],
                               scalars[5],
                               scalars[6]};
  const layer_arguments a = layer_of(op, x, w, bias);
  preference_call c;
  c.layer = a.layer;
  c.target = ids_of(op, "target", target);
  expect_tokens(op, "x", x, "target", target, false);
  if (nll_target) c.nll_target = ids_of(op, "nll_target", *nll_target);
  const bool pairs = opt.kind != preference::kto;
  if (!pairs) {
    if (!desirable) fail(op, "desirable is absent; expected one number a sequence");
    expect_dims(op, "desirable", *desirable, 1);
    desirable = torch::stable::contiguous(torch::stable::to(*desirable, ScalarType::Byte));
    if (size(desirable->numel()) != c.target.rows)
      fail(op, "desirable has " + std::to_string(desirable->numel()) + " numbers; expected " +
                   std::to_string(c.target.rows) + ", one a sequence");
    c.desirable = static_cast<const unsigned char*>(desirable->data_ptr());
    c.kl = wide_vector(op, "kl", kl, x);
  }
  const std::optional<layer_arguments> reference = reference_of(op, a, ref_x, ref_w, ref_bias);
  if (reference) c.reference.layer = reference->layer;
  if (ref_logps) {
    if (sizes(*ref_logps) != sizes(target) && sizes(*ref_logps) != leading(target))
      fail(op, "ref_logps is " + text(sizes(*ref_logps)) + "; expected " + text(leading(target)) + " or " +
                   text(sizes(target)) + ", as target");
    real_type_of(op, "ref_logps", *ref_logps);
    if (ref_logps->scalar_type() != wide(x)) ref_logps = torch::stable::to(*ref_logps, wide(x));
    ref_logps = torch::stable::contiguous(*ref_logps), c.reference.logps = vector_of(*ref_logps);
  }
  const auto n = static_cast<int64_t>(c.target.rows);
  Tensor loss = make(x, {}, wide(x)), results = make(x, {pairs ? n / 2 * 4 + 3 : 2 * n}, wide(x));
  c.loss = vector_of(loss), c.results = vector_of(results);
  const made_gradients g(a, need_dx, need_dw, need_db);
  c.to = g.to;
  wide_table(op, a.layer.x.of).preferences->fused_linear_preference(call(a.x), c, opt);
  return {loss, results, g.dx, g.dw, g.bias_gradient(bias)};
}

}  // namespace
}  // namespace tigon_torch

#if !TIGON_TORCH_CUDA
STABLE_TORCH_LIBRARY_FRAGMENT(tigon, m) {
  m.def(
      "jsd(Tensor student_log_probs, Tensor teacher_log_probs, Tensor? labels, float beta, int ignore_index,"
      " bool need_gradient) -> (Tensor, Tensor)");
  m.def("kl_div(Tensor student_log_probs, Tensor teacher, bool log_target, float eps, int reduction) -> Tensor");
  m.def(
      "kl_div_backward(Tensor upstream, Tensor student_log_probs, Tensor teacher, bool log_target, float eps,"
      " int reduction, bool need_student, bool need_teacher) -> (Tensor, Tensor)");
  m.def(
      "grpo_loss(Tensor logits, Tensor ids, Tensor advantages, Tensor? old_logp, Tensor? ref_logp, Tensor? mask,"
      " Tensor? sampling_ratio, int type, int level, int luspo, bool reduce, bool bias_corrected_kl,"
      " float[] scalars) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "grpo_loss_backward(Tensor upstream, Tensor saved, Tensor logits, Tensor ids, Tensor advantages,"
      " Tensor? old_logp, Tensor? ref_logp, Tensor? mask, Tensor? sampling_ratio, int type, int level, int luspo,"
      " bool reduce, bool bias_corrected_kl, float[] scalars) -> Tensor");
  m.def(
      "fused_linear_preference(Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? nll_target,"
      " Tensor? desirable, Tensor? kl, Tensor? ref_x, Tensor? ref_weight, Tensor? ref_bias, Tensor? ref_logps,"
      " int kind, int dpo, int ignore_index, bool nll, bool average, float[] scalars, bool need_dx, bool need_dw,"
      " bool need_db) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "fused_linear_grpo(Tensor x, Tensor weight, Tensor? bias, Tensor ids, Tensor advantages, Tensor? old_logp,"
      " Tensor? ref_logp, Tensor? mask, Tensor? sampling_ratio, Tensor? ref_x, Tensor? ref_weight, Tensor? ref_bias,"
      " Tensor? upstream, int type, int level, int luspo, bool reduce, bool bias_corrected_kl, float[] scalars,"
      " bool need_dx, bool need_dw, bool need_db) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}
#endif

STABLE_TORCH_LIBRARY_IMPL(tigon, TIGON_TORCH_KEY, m) {
  TIGON_TORCH_IMPL(m, losses, jsd);
  TIGON_TORCH_IMPL(m, losses, kl_div);
  TIGON_TORCH_IMPL(m, losses, kl_div_backward);
  TIGON_TORCH_IMPL(m, losses, grpo_loss);
  TIGON_TORCH_IMPL(m, losses, grpo_loss_backward);
  TIGON_TORCH_IMPL(m, preferences, fused_linear_preference);
  TIGON_TORCH_IMPL(m, preferences, fused_linear_grpo);
}

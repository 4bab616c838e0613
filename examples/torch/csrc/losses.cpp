// Losses on given probabilities or logits: divergences, policy losses.
#include <tigon/losses/grpo_loss.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>

#include "call.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

void jsd(const host& h, matrix student, matrix teacher, vector labels, vector loss, matrix dstudent,
         const jsd_options& o) {
  with_type("jsd", student.of, [&]<class T>() {
    const tigon::jsd_options opt{o.beta, o.ignore_index, 0};
    run(
        h, [&](const tigon::context&) { return tigon::jsd_workspace(student.rows); },
        [&](tigon::context& ctx) {
          const auto s = view<const T>(student), t = view<const T>(teacher);
          const auto to = view<tigon::accumulator_t<T>>(loss);
          if (labels.data != nullptr)
            tigon::jsd_forward(s, t, to, view<T>(dstudent), opt, view<const std::int64_t>(labels), ctx);
          else
            tigon::jsd_forward(s, t, to, view<T>(dstudent), opt, tigon::absent, ctx);
        });
  });
}

tigon::kl_div_options options(const kl_div_options& o) {
  return {static_cast<tigon::divergence_reduction>(o.reduce), o.log_target, o.eps, 0};
}

void kl_div(const host& h, matrix student, matrix teacher, matrix loss, const kl_div_options& o) {
  with_type("kl_div", student.of, [&]<class T>() {
    run(
        h, [&](const tigon::context&) { return tigon::kl_div_workspace(student.rows); },
        [&](tigon::context& ctx) {
          tigon::kl_div_forward(view<const T>(student), view<const T>(teacher), view<tigon::accumulator_t<T>>(loss),
                                tigon::matrix_view<T>{}, options(o), ctx);
        });
  });
}

void kl_div_backward(const host& h, matrix student, matrix teacher, matrix upstream, matrix dstudent, matrix dteacher,
                     const kl_div_options& o) {
  with_type("kl_div_backward", student.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      const auto g = view<const tigon::accumulator_t<T>>(upstream);
      if (dstudent.data != nullptr)
        tigon::kl_div_backward(view<const T>(teacher), g, view<T>(dstudent), options(o), ctx);
      if (dteacher.data != nullptr)
        tigon::kl_div_teacher_backward(view<const T>(student), view<const T>(teacher), g, view<T>(dteacher), options(o),
                                       ctx);
    });
  });
}

tigon::policy_options options(const policy_options& o) {
  tigon::policy_options opt;
  opt.type = static_cast<tigon::policy_loss>(o.type), opt.level = static_cast<tigon::importance>(o.level);
  opt.reduce = o.reduce, opt.bias_corrected_kl = o.bias_corrected_kl;
  opt.luspo = static_cast<tigon::luspo_reduction>(o.luspo);
  opt.temperature = o.temperature, opt.beta = o.beta;
  opt.epsilon_low = o.epsilon_low, opt.epsilon_high = o.epsilon_high;
  opt.delta = o.delta, opt.max_log_ratio = o.max_log_ratio;
  opt.tau_positive = o.tau_positive, opt.tau_negative = o.tau_negative;
  opt.k_positive = o.k_positive, opt.lambda_positive = o.lambda_positive;
  opt.k_negative = o.k_negative, opt.lambda_negative = o.lambda_negative;
  opt.max_length = o.max_length, opt.denominator = o.denominator;
  return opt;
}
template <class A>
tigon::policy_batch<A> batch_of(const policy_batch& b) {
  tigon::policy_batch<A> batch{view<const std::int64_t>(b.ids), view<const A>(b.advantages)};
  batch.old_logp = view<const A>(b.old_logp), batch.ref_logp = view<const A>(b.ref_logp);
  batch.sampling_ratio = view<const A>(b.sampling_ratio);
  if (b.mask.data != nullptr) batch.mask = view<const A>(b.mask);
  return batch;
}
template <class A, class P>
std::span<tigon::lse_parts<A>> saved_of(const vector& v) {
  return {static_cast<P*>(v.data), v.size / 2};
}

void grpo_loss(const host& h, matrix logits, const policy_batch& of, vector loss, vector saved, vector kl,
               vector clipped, const policy_options& o) {
  with_type("grpo_loss", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context&) {
          return tigon::grpo_loss_workspace<tigon::default_backend, T>(logits.rows, of.ids.rows);
        },
        [&](tigon::context& ctx) {
          tigon::policy_metrics<A> metrics;
          metrics.kl = view<A>(kl), metrics.clipped = view<A>(clipped);
          tigon::grpo_loss_forward(view<const T>(logits), batch_of<A>(of), view<A>(loss),
                                   saved_of<A, tigon::lse_parts<A>>(saved), options(o), metrics, ctx);
        });
  });
}

void grpo_loss_backward(const host& h, matrix logits, const policy_batch& of, vector saved, vector upstream,
                        matrix dlogits, const policy_options& o) {
  with_type("grpo_loss_backward", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context&) {
          return tigon::grpo_loss_workspace<tigon::default_backend, T>(logits.rows, of.ids.rows);
        },
        [&](tigon::context& ctx) {
          tigon::grpo_loss_backward(view<const T>(logits), batch_of<A>(of), saved_of<A, tigon::lse_parts<A>>(saved),
                                    view<const A>(upstream), view<T>(dlogits), options(o), ctx);
        });
  });
}

}  // namespace

const loss_kernels* losses() {
  static constexpr loss_kernels table{&jsd, &kl_div, &kl_div_backward, &grpo_loss, &grpo_loss_backward};
  return &table;
}

}  // namespace tigon_torch

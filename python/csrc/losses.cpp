// Losses on given probabilities or logits: divergences, policy losses.
#include <tigon/losses/grpo_loss.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>

#include "call.hpp"
#include "groups.hpp"
#include "policy.hpp"

namespace tigon_torch {
namespace {

void jsd(const host& h, matrix student, matrix teacher, vector labels, vector loss, matrix dstudent,
         const jsd_options& o) {
  with_type<tigon::op::jsd>("jsd", student.of, [&]<class T>() {
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
  with_type<tigon::op::kl_div>("kl_div", student.of, [&]<class T>() {
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
  with_type<tigon::op::kl_div>("kl_div_backward", student.of, [&]<class T>() {
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

void grpo_loss(const host& h, matrix logits, const policy_batch& of, vector loss, vector saved, vector kl,
               vector clipped, const policy_options& o) {
  with_type<tigon::op::grpo_loss>("grpo_loss", logits.of, [&]<class T>() {
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
                                   parts_of<tigon::lse_parts<A>>(saved), policy_options_of(o), metrics, ctx);
        });
  });
}

void grpo_loss_backward(const host& h, matrix logits, const policy_batch& of, vector saved, vector upstream,
                        matrix dlogits, const policy_options& o) {
  with_type<tigon::op::grpo_loss>("grpo_loss_backward", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context&) {
          return tigon::grpo_loss_workspace<tigon::default_backend, T>(logits.rows, of.ids.rows);
        },
        [&](tigon::context& ctx) {
          tigon::grpo_loss_backward(view<const T>(logits), batch_of<A>(of), parts_of<tigon::lse_parts<A>>(saved),
                                    view<const A>(upstream), view<T>(dlogits), policy_options_of(o), ctx);
        });
  });
}

}  // namespace

const loss_kernels* losses() {
  static constexpr loss_kernels table{
      entry<tigon::op::jsd>(&jsd), entry<tigon::op::kl_div>(&kl_div), entry<tigon::op::kl_div>(&kl_div_backward),
      entry<tigon::op::grpo_loss>(&grpo_loss), entry<tigon::op::grpo_loss>(&grpo_loss_backward)};
  return &table;
}

}  // namespace tigon_torch

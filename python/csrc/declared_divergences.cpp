// Total variation distance; cross entropy with a divergence; log-probabilities of ids.
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/selective_log_softmax.hpp>
#include <tigon/losses/tvd.hpp>

#include "declared.hpp"
#include "groups.hpp"
#include "labels.hpp"
#include "policy.hpp"

namespace tigon_torch {
namespace {

tigon::tvd_options tvd_of(int reduction, std::int64_t ignore_index) {
  tigon::tvd_options opt;
  opt.reduction = static_cast<tigon::divergence_reduction>(reduction), opt.ignore_index = ignore_index;
  return opt;
}
void tvd(const host& h, matrix student, matrix teacher, id_vector labels, wide_matrix loss, int reduction,
         std::int64_t ignore_index) {
  with_type<tigon::op::tvd>("tvd", student.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h, [&](const tigon::context&) { return tigon::tvd_workspace(student.rows); },
        [&](tigon::context& ctx) {
          with_labels(labels, [&](auto ids) {
            tigon::tvd_forward(view<const T>(student), view<const T>(teacher), view<A>(loss), tigon::matrix_view<T>{},
                               tvd_of(reduction, ignore_index), ids, ctx);
          });
        });
  });
}
void tvd_backward(const host& h, wide_matrix upstream, matrix student, matrix teacher, id_vector labels,
                  matrix dstudent, matrix dteacher, int reduction, std::int64_t ignore_index) {
  with_type<tigon::op::tvd>("tvd_backward", student.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const tigon::tvd_options opt = tvd_of(reduction, ignore_index);
    run(
        h, [&](const tigon::context&) { return tigon::tvd_workspace(student.rows); },
        [&](tigon::context& ctx) {
          with_labels(labels, [&](auto ids) {
            const auto q = view<const T>(student), p = view<const T>(teacher);
            if (dstudent.data != nullptr)
              tigon::tvd_backward(q, p, view<const A>(upstream), view<T>(dstudent), opt, ids, ctx);
            if (dteacher.data != nullptr)
              tigon::tvd_teacher_backward(q, p, view<const A>(upstream), view<T>(dteacher), opt, ids, ctx);
          });
        });
  });
}

tigon::cross_entropy_divergence_options options(std::int64_t ignore_index, int reduction, double smoothing,
                                                double z_loss, double weight_ce, double weight_divergence,
                                                double temperature, double beta) {
  tigon::cross_entropy_divergence_options opt;
  opt.ignore_index = ignore_index, opt.reduction = static_cast<tigon::reduction>(reduction);
  opt.label_smoothing = smoothing, opt.lse_square_scale = z_loss;
  opt.weight_ce = weight_ce, opt.weight_divergence = weight_divergence;
  opt.temperature = temperature, opt.beta = beta;
  return opt;
}
/// The losses; and dlogits times upstream, where there is memory for it.
template <class Op>
void with_divergence(const host& h, const matrix& logits, const id_vector& target, const matrix& teacher,
                     const vector& weight, const vector& loss, const vector& ce, const vector& divergence,
                     const vector& upstream, const matrix& dlogits,
                     const tigon::cross_entropy_divergence_options& opt) {
  with_type<Op>(Op::name.data(), logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const std::size_t losses = opt.reduction == tigon::reduction::none ? logits.rows : 1;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::workspace::bytes_for<A>(losses) +
                 tigon::cross_entropy_divergence_workspace<tigon::default_backend, T>(logits.rows, logits.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::workspace::frame frame(ctx.workspace());
          const std::span<A> to = loss.data != nullptr ? view<A>(loss) : std::span(frame.take<A>(losses), losses);
          const auto z = view<const T>(logits), p = view<const T>(teacher);
          const auto dz = view<T>(dlogits);
          const auto labels = view<const std::int64_t>(target);
          if constexpr (std::is_same_v<Op, tigon::op::cross_entropy_tvd>)
            tigon::cross_entropy_tvd_forward(z, labels, p, {to, view<A>(ce), view<A>(divergence)}, dz, opt,
                                             view<const A>(weight), ctx);
          else
            tigon::cross_entropy_jsd_forward(z, labels, p, {to, view<A>(ce), view<A>(divergence)}, dz, opt,
                                             view<const A>(weight), ctx);
          if (dz.data != nullptr) tigon::cross_entropy_backward(dz, view<const A>(upstream), dz, ctx);
        });
  });
}
/// The last number says whether the parts are wanted, which their memory says, too.
template <class Op>
void cross_entropy_divergence(const host& h, matrix logits, id_vector target, matrix teacher, vector weight,
                              vector loss, vector ce, vector divergence, std::int64_t ignore_index, int reduction,
                              double smoothing, double z_loss, double weight_ce, double weight_divergence,
                              double temperature, double beta, int) {
  with_divergence<Op>(
      h, logits, target, teacher, weight, loss, ce, divergence, {}, {},
      options(ignore_index, reduction, smoothing, z_loss, weight_ce, weight_divergence, temperature, beta));
}
template <class Op>
void cross_entropy_divergence_backward(const host& h, vector upstream, matrix logits, id_vector target, matrix teacher,
                                       vector weight, matrix dlogits, std::int64_t ignore_index, int reduction,
                                       double smoothing, double z_loss, double weight_ce, double weight_divergence,
                                       double temperature, double beta, int) {
  with_divergence<Op>(
      h, logits, target, teacher, weight, {}, {}, {}, upstream, dlogits,
      options(ignore_index, reduction, smoothing, z_loss, weight_ce, weight_divergence, temperature, beta));
}

/// ids of `batch` sequences, and a row of logits for each id, or one more for each sequence.
template <class E>
tigon::matrix_view<E> sequences_of(const vector& v, std::size_t batch) {
  const std::size_t len = batch == 0 ? 0 : v.size / batch;
  return {static_cast<E*>(v.data), batch, len, len};
}
void selective_log_softmax(const host& h, matrix logits, id_vector ids, vector logp, vector saved, std::size_t batch,
                           double temperature) {
  with_type<tigon::op::selective_log_softmax>("selective_log_softmax", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context&) {
          return tigon::selective_log_softmax_workspace<tigon::default_backend, T>(logits.rows);
        },
        [&](tigon::context& ctx) {
          tigon::selective_log_softmax_forward(view<const T>(logits), sequences_of<const std::int64_t>(ids, batch),
                                               sequences_of<A>(logp, batch), {temperature}, tigon::absent,
                                               parts_of<tigon::lse_parts<A>>(saved), ctx);
        });
  });
}
void selective_log_softmax_backward(const host& h, vector dlogp, matrix logits, id_vector ids, vector saved,
                                    matrix dlogits, std::size_t batch, double temperature) {
  with_type<tigon::op::selective_log_softmax>("selective_log_softmax_backward", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context&) {
          return tigon::selective_log_softmax_workspace<tigon::default_backend, T>(logits.rows);
        },
        [&](tigon::context& ctx) {
          tigon::selective_log_softmax_backward(view<const T>(logits), sequences_of<const std::int64_t>(ids, batch),
                                                parts_of<const tigon::lse_parts<A>>(saved),
                                                sequences_of<const A>(dlogp, batch), view<T>(dlogits), {temperature},
                                                tigon::absent, ctx);
        });
  });
}

}  // namespace

declared_operators declared_divergences() {
  static constexpr declared_operator table[] = {
      declared<&tvd, tigon::op::tvd>("tvd"),
      declared<&tvd_backward, tigon::op::tvd>("tvd_backward"),
      declared<&cross_entropy_divergence<tigon::op::cross_entropy_tvd>, tigon::op::cross_entropy_tvd>(
          "cross_entropy_tvd"),
      declared<&cross_entropy_divergence_backward<tigon::op::cross_entropy_tvd>, tigon::op::cross_entropy_tvd>(
          "cross_entropy_tvd_backward"),
      declared<&cross_entropy_divergence<tigon::op::cross_entropy_jsd>, tigon::op::cross_entropy_jsd>(
          "cross_entropy_jsd"),
      declared<&cross_entropy_divergence_backward<tigon::op::cross_entropy_jsd>, tigon::op::cross_entropy_jsd>(
          "cross_entropy_jsd_backward"),
      declared<&selective_log_softmax, tigon::op::selective_log_softmax>("selective_log_softmax"),
      declared<&selective_log_softmax_backward, tigon::op::selective_log_softmax>("selective_log_softmax_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch

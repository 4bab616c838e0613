// Total variation distance; log-probabilities of ids.
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
      declared<&selective_log_softmax, tigon::op::selective_log_softmax>("selective_log_softmax"),
      declared<&selective_log_softmax_backward, tigon::op::selective_log_softmax>("selective_log_softmax_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch

// Total variation distance.
#include <tigon/losses/tvd.hpp>

#include "declared.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

tigon::tvd_options tvd_of(int reduction, std::int64_t ignore_index) {
  tigon::tvd_options opt;
  opt.reduction = static_cast<tigon::divergence_reduction>(reduction), opt.ignore_index = ignore_index;
  return opt;
}
/// f(labels) with the labels, or without any.
template <class F>
void with_labels(id_vector labels, F f) {
  if (labels.data != nullptr)
    f(view<const std::int64_t>(labels));
  else
    f(tigon::absent);
}

void tvd(const host& h, matrix student, matrix teacher, id_vector labels, wide_matrix loss, int reduction,
         std::int64_t ignore_index) {
  with_type("tvd", student.of, [&]<class T>() {
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
  with_type("tvd_backward", student.of, [&]<class T>() {
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

}  // namespace

declared_operators declared_divergences() {
  static constexpr declared_operator table[] = {
      declared<&tvd>("tvd"),
      declared<&tvd_backward>("tvd_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch

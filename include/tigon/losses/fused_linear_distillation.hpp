// A student's linear layer learns from labels and from a teacher's linear layer; neither's logits exist as a whole.
#ifndef TIGON_LOSSES_FUSED_LINEAR_DISTILLATION_HPP
#define TIGON_LOSSES_FUSED_LINEAR_DISTILLATION_HPP

#include <tigon/losses/divergence/fused_linear_distillation_kernel.hpp>

namespace tigon {

/// With z = x w^T + bias, t the teacher's logits, n the number of rows whose target is not ignore_index:
///
///   hard = 1/n sum_i -log softmax(z_i)[target_i],   soft = 1/n sum_i soft_i(z_i / temperature, t_i / temperature)
///   loss = weight_hard hard + weight_soft soft
///   D = dloss/dz,   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j];   all times upstream in backward
///   with a softcap z = softcap tanh((x w^T + bias) / softcap), and D is times 1 - (z / softcap)^2
///
/// soft_i comes from a soft loss: jsd_soft, cosine_soft, or one of your own (see soft_loss_row).
///
/// Formula    docs/formulas/distillation.md.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; of the teacher x [rows,
///            teacher_hidden], w [teacher_vocab, teacher_hidden], bias [teacher_vocab], or none, or in their place
///            logits [rows, teacher_vocab] that were made before; target [rows]; losses [1]. vocab >= 1, teacher_vocab
///            >= vocab; rows and both hidden may be 0.
/// Types      all matrices and biases of one type, f32, bf16, f16 or f64; losses f32 (f64 for f64); target std::int32_t
///            or std::int64_t. With linear_types x and dx have one type, w and bias one, their gradients one (f64 is
///            refused), and each output has the error of its own type.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64), totals in f64; one rounding at
///            each output. A call of at most 8 rows in f32 is f64 throughout, unless the soft loss is one of your own
///            (docs/formulas/fused_linear_cross_entropy.md, few rows).
/// Options    backward takes those of forward.
/// Writes     the losses that have memory, dx, dw, dbias; a gradient whose view has no memory is not computed. dw and
///            dbias are added to with gradient::accumulate. A part with weight 0 is not computed unless its loss has
///            memory; without the soft part the teacher is not read.
/// Ignored    a row whose target is ignore_index is not read, nor is the teacher's row; it takes part in no product of
///            either layer, and its dx is 0. With mask_soft = false the soft part is of all rows, ignored ones
///            included. The bits of a row's dx depend on the others through n alone. Two calls of as many rows, both
///            with dx or both without, have the same bits of the losses, dw and dbias where the rows that count are the
///            same and in the same order, wherever the ignored ones are.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     2 * chunk * teacher_vocab logits in f32, and with a softcap chunk * vocab numbers more, by default at
///            most 64 MiB (B::chunk); for 16-bit w also an f32 dw; see fused_linear_distillation_workspace. Both w may
///            come packed (linear_layer). A call of at most 8 rows in f32 has these numbers in f64, of all rows at a
///            time.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace, and index (in
///            every build) for a target outside [0, vocab) that is not ignore_index; before the first write.
/// Edges      no kept row: zeros. NaN or +inf in a row of logits: NaN. -inf at the target: hard inf, finite D. A D
///            below the smallest normal f32 (f64) is taken as 0.
/// Max error  losses 3e-6 of |reference|, in bf16 too; gradients f32 2e-5, bf16 8e-3 of |reference| + its root mean
///            square; of at most 8 rows of f32 loss and gradients within 2.4e-7 of their L2 norms
///            (tests/losses/fused_linear_distillation_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const tigon::linear_layer teacher = layer;
/// const tigon::cosine_soft<float> soft{1};
/// tigon::fused_linear_distillation_forward(layer, teacher, target, soft, {loss}, gradients);
/// tigon::fused_linear_distillation_backward(layer, teacher, target, soft, 2, gradients);  // for a gradient of 2
/// ```
struct fused_linear_distillation_options;

/// Losses and gradients in one call, with a soft loss of your own. See fused_linear_distillation_options for the
/// contract, soft_loss_row for the soft loss.
template <class B = default_backend, class T, class Target, class Soft>
void fused_linear_distillation_forward(const linear_layer<T>& student,
                                       const std::type_identity_t<distillation_teacher<T>>& teacher,
                                       const Target& target, const Soft& soft,
                                       std::type_identity_t<distillation_losses<accumulator_t<T>>> losses,
                                       std::type_identity_t<linear_gradients<T>> gradients = {},
                                       fused_linear_distillation_options opt = {},
                                       context& ctx = default_context<B>()) {
  detail::distil<B, T, Target, op_list<>>(
      "fused_linear_distillation_forward",
      {student, teacher, target, &losses, gradients, opt, opt.upstream, Soft::takes_neg_inf}, ctx,
      [&]<class I>(const auto& call, const I* labels, const auto& rows) {
        kernel_for<op::fused_linear_distillation, B>::template forward<B, T, I>(call, labels, soft, rows, ctx);
      });
}

/// dx, dw and dbias for an upstream gradient of the loss; everything is computed again.
template <class B = default_backend, class T, class Target, class Soft>
void fused_linear_distillation_backward(const linear_layer<T>& student,
                                        const std::type_identity_t<distillation_teacher<T>>& teacher,
                                        const Target& target, const Soft& soft, double upstream,
                                        std::type_identity_t<linear_gradients<T>> gradients,
                                        fused_linear_distillation_options opt = {},
                                        context& ctx = default_context<B>()) {
  detail::distil<B, T, Target, op_list<>>(
      "fused_linear_distillation_backward",
      {student, teacher, target, nullptr, gradients, opt, upstream, Soft::takes_neg_inf}, ctx,
      [&]<class I>(const auto& call, const I* labels, const auto& rows) {
        kernel_for<op::fused_linear_distillation, B>::template backward<B, T, I>(call, labels, soft, rows, ctx);
      });
}

TIGON_EXPLAINS(fused_linear_distillation_forward)
TIGON_EXPLAINS(fused_linear_distillation_backward)

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_DISTILLATION_HPP

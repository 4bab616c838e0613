// Labels that a GPU reads: which rows count, and what becomes of the losses of rows. Labels out of range are reported
// (report.hpp); nothing is read for them, their loss is NaN and their gradient 0.
#ifndef TIGON_BACKENDS_CUDA_LABELS_HPP
#define TIGON_BACKENDS_CUDA_LABELS_HPP

#include <tigon/backends/cuda/group.hpp>
#include <tigon/backends/cuda/runtime.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/softmax/cross_entropy_options.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// The label of a row, and its logit; without meaning where the row does not count.
template <class Z>
struct row_label {
  unsigned column;
  bool counts, is_ignored;
  Z own;
};
/// target[i], one of so many columns, or ignored.
template <class I>
struct labels_of_rows {
  const I* target;
  std::int64_t ignored;
  unsigned cols;
  TIGON_DEVICE_INLINE bool in_range(I t) const {
    const auto wide = static_cast<std::int64_t>(t);
    return wide >= 0 && wide < static_cast<std::int64_t>(cols) && wide != ignored;
  }
  /// Of label t, with the logit that the row has there; nothing waits for that here.
  template <class Z>
  TIGON_DEVICE_INLINE row_label<Z> of(I t, const Z* row) const {
    row_label<Z> label;
    label.counts = in_range(t), label.is_ignored = static_cast<std::int64_t>(t) == ignored;
    label.column = label.counts ? static_cast<unsigned>(t) : 0;
    if (label.counts) label.own = row[label.column];
    return label;
  }
};

/// Reports the first label that is neither in range nor ignored. All threads of the only block come here.
template <class I>
TIGON_DEVICE_INLINE void report_labels(const labels_of_rows<I>& labels, std::size_t rows, const char* op,
                                       index_report* report) {
  const std::size_t i = first_where(rows, [&](std::size_t k) {
    const I t = labels.target[k];
    return !labels.in_range(t) && static_cast<std::int64_t>(t) != labels.ignored;
  });
  if (threadIdx.x == 0 && i < rows)
    report->make({op, "target", i, static_cast<std::int64_t>(labels.target[i]), labels.cols, labels.ignored, true, 0});
}
template <class I>
__global__ void __launch_bounds__(1024)
    check_labels(labels_of_rows<I> labels, std::size_t rows, const char* op, index_report* report) {
  report_labels(labels, rows, op, report);
}

/// What the rows of a call share, in memory of the device, and by what their gradients are multiplied.
template <class A>
struct loss_scale {
  const cross_entropy_scale* on_device = nullptr;
  const A* upstream = nullptr;    ///< null: 1
  std::size_t upstream_step = 0;  ///< 0: one number for all rows; or 1

  /// Of the rows from `begin` on.
  loss_scale from(std::size_t begin) const {
    return {on_device, upstream == nullptr ? nullptr : upstream + begin * upstream_step, upstream_step};
  }
};

/// What begin_loss finds.
struct counted_labels {
  cross_entropy_scale scale;
  std::int64_t kept;
};

/// The weights of classes, as they come and in A; null: 1.
template <class W, class A>
struct class_weights {
  const W* given;
  A* widened;
};
/// What a loss divides by, and where labels out of range are reported.
struct loss_divisor {
  bool mean, smooth;
  double denominator;
  index_report* report;
  const char* op;
};
/// The labels of a call: their check, how many count, and the denominators. One block.
template <class I, class A, class W>
__global__ void __launch_bounds__(1024) begin_loss(labels_of_rows<I> labels, std::size_t rows,
                                                   class_weights<W, A> weights, loss_divisor by, counted_labels* to) {
  const W* const weight = weights.given;
  A* const widened = weights.widened;
  double sum[3] = {};  // rows that count, their weights, all weights
  for (std::size_t j = threadIdx.x; weight != nullptr && j < labels.cols; j += blockDim.x) {
    widened[j] = static_cast<A>(weight[j]);
    if (by.smooth) sum[2] += static_cast<double>(widened[j]);
  }
  for (std::size_t i = threadIdx.x; i < rows; i += blockDim.x)
    if (const I t = labels.target[i]; labels.in_range(t))
      sum[0] += 1, sum[1] += weight == nullptr ? 1.0 : static_cast<double>(static_cast<A>(weight[t]));
  group<0>::reduce<add>(sum);
  report_labels(labels, rows, by.op, by.report);
  if (threadIdx.x != 0) return;
  const auto inverse = [](double n) { return n == 0 ? 0.0 : 1 / n; };
  to->kept = static_cast<std::int64_t>(sum[0]);
  to->scale.main = by.mean ? inverse(by.denominator != 0 ? by.denominator : sum[1]) : 1;
  to->scale.z = by.mean ? inverse(by.denominator != 0 ? by.denominator : sum[0]) : 1;
  to->scale.weight_sum = weight == nullptr ? static_cast<double>(labels.cols) : sum[2];
}

/// Where results of the rows of a call go.
template <class A>
struct loss_results {
  A *loss, *z_loss, *accuracy;
  std::int64_t *predicted, *kept;
  bool each;  ///< a result a row, instead of their sum
};

/// Losses of rows to the results of a call: sums in f64, in an order that the number of rows decides. One block.
template <class I, class A>
__global__ void __launch_bounds__(1024) finish_loss(labels_of_rows<I> labels, std::size_t rows, cross_entropy_rows of,
                                                    const counted_labels* counted, loss_results<A> to) {
  double sum[3] = {};
  for (std::size_t i = threadIdx.x; i < rows; i += blockDim.x) {
    const double hit = of.predicted != nullptr && labels.in_range(labels.target[i]) &&
                       of.predicted[i] == static_cast<std::int64_t>(labels.target[i]);
    sum[0] += of.loss[i], sum[1] += of.z_loss[i], sum[2] += hit;
    if (to.predicted != nullptr) to.predicted[i] = of.predicted[i];
    if (!to.each) continue;
    if (to.loss != nullptr) to.loss[i] = static_cast<A>(of.loss[i]);
    if (to.z_loss != nullptr) to.z_loss[i] = static_cast<A>(of.z_loss[i]);
    if (to.accuracy != nullptr) to.accuracy[i] = static_cast<A>(hit);
  }
  group<0>::reduce<add>(sum);
  if (threadIdx.x != 0) return;
  if (to.kept != nullptr) *to.kept = counted->kept;
  if (to.each) return;
  if (to.loss != nullptr) *to.loss = static_cast<A>(sum[0]);
  if (to.z_loss != nullptr) *to.z_loss = static_cast<A>(sum[1]);
  if (to.accuracy != nullptr)
    *to.accuracy = static_cast<A>(counted->kept == 0 ? 0 : sum[2] / static_cast<double>(counted->kept));
}

/// As tigon::detail::loss_rows, with everything in memory of the device. Checks the labels.
template <class A>
class rows_of_losses {
 public:
  cross_entropy_rows out;
  loss_scale<A> scale;
  const A* weight = nullptr;

  static constexpr std::size_t bytes(std::size_t rows, std::size_t vocab) {
    return tigon::detail::loss_rows<A>::bytes(rows, vocab) + workspace::bytes_for<counted_labels>(1);
  }
  template <class I, class Weight>
  rows_of_losses(std::string_view op, workspace::frame& frame, std::span<const I> target, std::size_t vocab,
                 Weight class_weight, const cross_entropy_metrics<A>& metrics, const cross_entropy_options& opt,
                 context& ctx)
      : ctx_(ctx), vocab_(columns(vocab)) {
    out.loss = frame.template take<double>(target.size());
    out.z_loss = frame.template take<double>(target.size());
    auto* const predicted = frame.template take<std::int64_t>(target.size());
    if (metrics.token_accuracy.data() != nullptr || metrics.predicted_tokens.data() != nullptr)
      out.predicted = predicted;
    A* const widened = frame.template take<A>(vocab);
    counted_ = frame.template take<counted_labels>(1);
    scale.on_device = &counted_->scale;
    if (class_weight) weight = widened;
    using W = std::remove_const_t<std::remove_pointer_t<decltype(class_weight.data)>>;
    const loss_divisor by{opt.reduction == reduction::mean, opt.label_smoothing > 0, opt.denominator,
                          report_of(stream_of(ctx)), op.data()};
    launch(ctx, begin_loss<I, A, W>, dim3(1), dim3(1024), labels_of(target, opt), target.size(),
           class_weights<W, A>{class_weight.data, widened}, by, counted_);
  }
  template <class I>
  void finish(std::span<const I> target, std::span<A> loss, const cross_entropy_metrics<A>& metrics,
              const cross_entropy_options& opt) const {
    launch(
        ctx_, finish_loss<I, A>, dim3(1), dim3(1024), labels_of(target, opt), target.size(), out, counted_,
        loss_results<A>{loss.data(), metrics.z_loss.data(), metrics.token_accuracy.data(),
                        metrics.predicted_tokens.data(), metrics.kept_rows.data(), opt.reduction == reduction::none});
  }

 private:
  template <class I>
  labels_of_rows<I> labels_of(std::span<const I> target, const cross_entropy_options& opt) const {
    return {target.data(), opt.ignore_index, vocab_};
  }
  context& ctx_;
  unsigned vocab_;
  counted_labels* counted_;
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_LABELS_HPP

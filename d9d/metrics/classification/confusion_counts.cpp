#include "d9d/metrics/classification/confusion_counts.h"

#include <limits>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/ignore_index.h"

namespace d9d {

at::Tensor ConfusionCounts::support() const { return tp + fn; }

ConfusionCounts count_labels(const at::Tensor& predicted, const at::Tensor& targets) {
  D9D_CHECK(predicted.sizes() == targets.sizes() && predicted.dim() > 0, StateError,
            "[metrics] expected targets of the shape of the predictions ", predicted.sizes(), ", got ", targets.sizes(),
            ". Give a 0 or 1 for each label.");
  const at::Tensor labels = targets.reshape({-1, targets.size(-1)});
  const at::Tensor is = labels.eq(1);
  const at::Tensor is_not = labels.eq(0);
  const at::Tensor chosen = predicted.to(at::kBool).reshape(labels.sizes());
  const at::Tensor left = chosen.logical_not();
  return {.tp = chosen.logical_and(is).sum(0),
          .fp = chosen.logical_and(is_not).sum(0),
          .tn = left.logical_and(is_not).sum(0),
          .fn = left.logical_and(is).sum(0)};
}

// Sums by class, so that memory does not grow with the number of classes times that of samples.
ConfusionCounts count_classes(const at::Tensor& predicted, const at::Tensor& targets, std::int64_t num_classes) {
  D9D_CHECK(predicted.dim() > 0 && predicted.sizes().slice(0, predicted.dim() - 1) == targets.sizes(), StateError,
            "[metrics] expected a target for each sample of predictions ", predicted.sizes(), " ([..., k]), got ",
            targets.sizes(), ". Give the class of each sample.");
  const at::Tensor labels = targets.to(at::kLong).flatten();
  const at::Tensor counted = labels.ge(0).logical_and(labels.lt(num_classes));
  const at::Tensor classes = labels.masked_fill(counted.logical_not(), 0);
  const at::Tensor chosen = predicted.reshape({labels.numel(), predicted.size(-1)});
  const auto sum_by_class = [&](const at::Tensor& of, const at::Tensor& counts) {
    return at::zeros({num_classes}, labels.options()).scatter_add(0, of.flatten(), counts.to(at::kLong).flatten());
  };
  const at::Tensor is_right = chosen.eq(classes.unsqueeze(1)).any(1).logical_and(counted);
  const at::Tensor tp = sum_by_class(classes, is_right);
  const at::Tensor fp = sum_by_class(chosen, counted.unsqueeze(1).expand_as(chosen)) - tp;
  const at::Tensor fn = sum_by_class(classes, counted) - tp;
  return {.tp = tp, .fp = fp, .tn = counted.sum() - tp - fp - fn, .fn = fn, .one_of_several = true};
}

at::Tensor nan_of_wrong(const at::Tensor& targets, std::int64_t num_classes) {
  const at::Tensor classes = targets.detach().to(at::kDouble);
  const at::Tensor is_class =
      classes.ge(0).logical_and(classes.lt(num_classes)).logical_and(classes.eq(classes.trunc()));
  const at::Tensor is_right = is_class.logical_or(classes.eq(static_cast<double>(kIgnoreIndex)));
  return at::where(is_right.all(), 0.0, at::full({}, std::numeric_limits<double>::quiet_NaN(), classes.options()));
}

at::Tensor top_classes(const at::Tensor& scores, std::int64_t k) {
  if (k == 1) return scores.argmax(-1, /*keepdim=*/true);
  return std::get<1>(scores.topk(k));
}

at::Tensor classes_of(const at::Tensor& targets, const at::Tensor& scores) {
  const at::IntArrayRef samples = scores.sizes().slice(0, scores.dim() - 1);
  if (targets.sizes() == samples) return targets;
  if (targets.sizes() == scores.sizes()) {
    const at::Tensor one_hot = targets.is_floating_point() ? targets : targets.to(at::kLong);  // bool has no argmax
    return one_hot.argmax(-1).masked_fill(one_hot.eq(kIgnoreIndex).all(-1), kIgnoreIndex);
  }
  const bool has_one_each =
      targets.dim() == scores.dim() && targets.size(-1) == 1 && targets.sizes().slice(0, samples.size()) == samples;
  D9D_CHECK(has_one_each, StateError, "[metrics] expected targets of the shape ", samples, ", ", samples,
            " with a last dim of 1, or one-hot ", scores.sizes(), " for scores ", scores.sizes(), ", got ",
            targets.sizes(), ". Give the class of each sample.");
  return targets.squeeze(-1);
}

}  // namespace d9d

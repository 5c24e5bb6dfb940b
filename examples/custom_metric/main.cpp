// A metric of one's own, without a trainer: the expected calibration error of a classifier, the same on any number of
// ranks.
//
//   build/release/bin/custom_metric [ranks]
#include <cstdlib>
#include <iostream>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/core/launch/launch.h"
#include "d9d/loop/task/task.h"
#include "d9d/metrics/reduce_metrics.h"

namespace {

// How far confidence is from the share of right predictions: their difference by bins of confidence, as a mean over
// samples (Guo et al. 2017).
class CalibrationError final : public d9d::Metric {
 public:
  void update(const at::Tensor& probabilities, const at::Tensor& classes) {  // [B, C] and [B]
    const auto [confidence, guess] = probabilities.detach().to(at::kDouble).max(-1);
    const at::Tensor bin = (confidence * kNumBins).to(at::kLong).clamp_max(kNumBins - 1);
    const at::Tensor is_in = bin.unsqueeze(1) == at::arange(kNumBins, bin.options());  // [B, bins]
    const at::Tensor is_right = (guess == classes).to(at::kDouble);
    sums_.update(at::stack({at::ones_like(confidence), confidence, is_right}).mm(is_in.to(at::kDouble)));
  }
  at::Tensor compute() const override {
    const at::Tensor sums = sums_.value();
    return (sums[1] - sums[2]).abs().sum() / sums[0].sum();
  }
  std::vector<d9d::Accumulator*> accumulators() override { return {&sums_}; }

 private:
  static constexpr std::int64_t kNumBins = 10;
  d9d::Accumulator sums_{{3, kNumBins}};  // of each bin: samples, their confidence, right ones
};

constexpr std::int64_t kNumSamples = 1000, kNumClasses = 4, kBatch = 50;

// A classifier that is too confident.
void evaluate(const d9d::DistContext& context) {
  CalibrationError error;
  for (std::int64_t begin = 0; begin < kNumSamples; begin += kBatch) {
    if (begin / kBatch % context.data_parallel_size() != context.data_parallel_rank()) continue;  // another rank's
    const at::Tensor number = at::arange(begin, begin + kBatch, at::kDouble).unsqueeze(1);
    const at::Tensor logits = 3 * at::sin(number * number * at::arange(1, kNumClasses + 1));
    const at::Tensor classes = (logits + 4 * at::sin(number * at::arange(5, kNumClasses + 5))).argmax(-1);
    error.update(logits.softmax(-1), classes);
  }
  d9d::reduce_metrics({&error}, d9d::metric_ranks(context));
  if (context.is_main_process()) std::cout << "calibration error " << error.compute().item<double>() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t num_ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  return d9d::launch(d9d::LaunchConfig{.device = d9d::DeviceChoice::kCpu}, {.data_parallel_replicate = num_ranks},
                     [](d9d::DistContext& context) { evaluate(context); });
}

// A pipeline without a trainer: each rank has some layers of a network, and a loop written by hand trains them.
//
//   build/release/bin/pipeline_loop [ranks]
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/core/launch/launch.h"
#include "d9d/optim/adamw.h"
#include "d9d/optim/optimizer.h"
#include "d9d/pipelining/executor/pipeline_executor.h"

namespace {

constexpr std::int64_t kNumLayers = 8, kWidth = 16, kRows = 4, kNumMicrobatches = 8;

at::Tensor input_of(d9d::MicrobatchIndex microbatch) {
  const at::Tensor number = at::arange(kRows * kWidth, at::kFloat) + static_cast<double>(microbatch.value * 1000);
  return at::sin(number * number).view({kRows, kWidth});
}

class Layers final : public d9d::PipelineStage {
 public:
  Layers(d9d::StageIndex stage, std::int64_t num_stages)
      : is_first_(stage.value == 0), is_last_(stage.value + 1 == num_stages) {
    const std::int64_t count = kNumLayers / num_stages;
    for (std::int64_t i = stage.value * count; i < (stage.value + 1) * count; ++i) {
      layers_.push_back(
          d9d::make_module<d9d::Linear>(d9d::LinearConfig{.in_features = kWidth, .out_features = kWidth}));
      layers_.back()->materialize(at::kCPU);
      layers_.back()->reset_parameters(/*base_seed=*/static_cast<std::uint64_t>(i));
    }
  }

  std::vector<at::Tensor> transfer(d9d::MicrobatchIndex, d9d::StageBoundary) const override {
    return {at::empty({kRows, kWidth}, at::TensorOptions(at::kMeta).dtype(at::kFloat))};
  }

  std::vector<at::Tensor> forward(d9d::MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                  bool /*backward_follows*/) override {
    at::Tensor x = is_first_ ? input_of(microbatch) : arrived.front();
    for (const auto& layer : layers_) x = x + at::tanh(layer(x));
    if (!is_last_) return {x};
    const at::Tensor loss = (x - input_of(microbatch).flip(1)).square().mean() / kNumMicrobatches;
    loss_of_step += loss.item<double>();
    return {loss};
  }

  // Their gradients may wait for W.
  std::vector<at::Tensor> weights() const override {
    std::vector<at::Tensor> weights;
    for (const auto& layer : layers_) weights.push_back(layer->weight->stored());
    return weights;
  }

  double loss_of_step = 0;

 private:
  const bool is_first_, is_last_;
  std::vector<d9d::ModulePtr<d9d::Linear>> layers_;
};

void train(const d9d::DistContext& context) {
  d9d::PipelineExecutor executor(context, d9d::schedule_of(d9d::ZeroBubbleVScheduleConfig{}));
  const std::int64_t num_stages = executor.placement().num_stages();
  D9D_CHECK(kNumLayers % num_stages == 0, d9d::ConfigError, "expected stages of equal size, got ", num_stages, " of ",
            kNumLayers, " layers. Use 1, 2 or 4 ranks.");
  std::vector<std::unique_ptr<Layers>> stages;
  std::vector<d9d::PipelineStage*> borrowed;
  std::vector<d9d::NamedParameter> parameters;
  for (const d9d::StageIndex stage : executor.stages()) {
    stages.push_back(std::make_unique<Layers>(stage, num_stages));
    borrowed.push_back(stages.back().get());
    for (const at::Tensor& weight : borrowed.back()->weights()) {
      parameters.push_back({d9d::cat("weight ", stage.value, " ", parameters.size()), weight});
    }
  }
  d9d::Optimizer optimizer(d9d::AdamW(parameters, {.lr = 3e-3}));
  for (int step = 0; step <= 60; ++step) {
    executor.run(borrowed, kNumMicrobatches);
    if (step % 20 == 0 && executor.stages().back().value + 1 == num_stages) {
      std::cout << "step " << step << ": loss " << stages.back()->loss_of_step << '\n';
    }
    stages.back()->loss_of_step = 0;
    optimizer.step(optimizer.learning_rate());
    for (const auto& parameter : parameters) parameter.tensor.mutable_grad() = at::Tensor();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t num_ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  return d9d::launch(d9d::LaunchConfig{.device = d9d::DeviceChoice::kCpu}, {.pipeline_parallel = num_ranks},
                     [](d9d::DistContext& context) { train(context); });
}

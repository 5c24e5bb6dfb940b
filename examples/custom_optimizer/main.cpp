// Trains with an optimiser of one's own, adopt.h: on any mesh, with keys of its own, and from checkpoints. The model
// learns a linear map. Usage:
//   custom_optimizer examples/custom_optimizer/config.json [key.path=value ...]
#include <iostream>

#include "d9d/blocks/linear/linear.h"
#include "d9d/core/launch/launch.h"
#include "d9d/data/sequences/stack_samples.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/loop/task/shard_over_data.h"

#include "adopt.h"

namespace {

struct Config {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  d9d::AutoDataConfig data = {};
  d9d::TrainerConfig trainer = {};
  AdoptConfig optimizer = {};
  d9d::LRSchedulerConfig lr_scheduler = {};
  std::filesystem::path export_to = {};  // a folder for the trained weights; empty: none
  static constexpr auto fields() {
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh),
                               d9d::required("data", &Config::data), d9d::required("trainer", &Config::trainer),
                               d9d::required("optimizer", &Config::optimizer),
                               d9d::required("lr_scheduler", &Config::lr_scheduler),
                               d9d::defaulted("export_to", &Config::export_to));
  }
};

struct Point {
  at::Tensor x, y;  // [4] and [2]; of a batch [B, 4] and [B, 2]
  static constexpr auto fields() { return d9d::record<Point>(d9d::field("x", &Point::x), d9d::field("y", &Point::y)); }
};

struct Points : d9d::Dataset<Point> {
  std::int64_t size() const override { return 64; }
  Point get(std::int64_t index) const override {
    const at::Tensor x = at::sin(static_cast<double>(index) * at::arange(1, 5, at::kFloat));
    return {.x = x, .y = at::stack({x.sum(), x[0] - 2 * x[3]})};
  }
};

struct Types {
  using Batch = Point;
  using Input = at::Tensor;       // x
  using Shared = std::monostate;  // no further inputs
  using Output = at::Tensor;      // what the model takes y for
  using State = at::Tensor;       // y
};

struct Task : d9d::TrainTask<Types> {
  d9d::ForwardInputs<Types> build_forward_inputs(const Point& batch) override {
    return {.input = batch.x, .state = batch.y, .num_tokens = batch.x.size(0)};
  }
  d9d::LossResult compute_loss(const at::Tensor& guess, at::Tensor& y, const d9d::JobSchedule&) override {
    return {.loss = (guess - y).square().mean()};
  }
};

struct Model : d9d::Module {
  Model() : linear(register_module<d9d::Linear>("linear", d9d::LinearConfig{4, 2, /*has_bias=*/true})) {
    linear->weight->set_init(d9d::init::zeros());
    linear->bias->set_init(d9d::init::zeros());
  }
  at::Tensor forward(const at::Tensor& x, const std::monostate&) const { return linear(x); }
  const d9d::ModulePtr<d9d::Linear> linear;
};

struct Provider : d9d::ModelProvider<Types> {
  d9d::ModelStage<Types> initialize_model_stage(const d9d::DistContext&, const d9d::PipelineStageInfo&) override {
    model = d9d::make_module<Model>();
    return d9d::as_model_stage<Types>(model);
  }
  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    d9d::shard_over_data(context, model.shared(), {model->linear.shared()});
  }
  d9d::ModulePtr<Model> model;
};

void train(const Config& config, d9d::DistContext& context) {
  Task task;
  Provider provider;
  d9d::AutoDataProvider<Point> data([](const auto&) { return std::make_shared<Points>(); }, d9d::stack_samples<Point>,
                                    config.data, config.trainer.determinism.base_seed);
  AdoptProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);
  d9d::Trainer<Types> trainer(
      context, config.trainer,
      {.task = task, .model = provider, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
  if (trainer.train() == d9d::TrainingOutcome::kInterrupted) return;
  if (!config.export_to.empty()) trainer.export_to(config.export_to);
}

}  // namespace

int main(int argc, char** argv) { return d9d::launch<Config>(argc, argv, train); }

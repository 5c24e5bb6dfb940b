// A handler may write to parameters in the step after a save, while the copies of the save are still running.
#include <filesystem>
#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dtensor/dtensor.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/gpu_test.h"

namespace d9d::handler_saves_cuda_test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kWidth = 8192;  // 256 MB of weights: their copies take longer than a handler's launch

class WideModel : public toy::Model {
 public:
  WideModel() { to(at::kFloat); }
  at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
    return toy::Model::forward(x.to(at::kFloat), shared) +
           wide(at::ones({1, kWidth}, x.options().dtype(at::kFloat))).mean();
  }
  const ModulePtr<Linear> wide = register_module<Linear>("wide", LinearConfig{kWidth, kWidth, false});
};

// Writes to all parameters in one event of the second step, and keeps their values after the first step.
struct WritingTask : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainModelStagesReady,
                     [this](const ModelStagesReady& ready) { module = &ready.modules.front().get(); });
    events.subscribe(event, [this](const TrainStep& step) {
      if (step.schedule.current_step() != 1) return;
      const at::NoGradGuard no_grad;
      for (const auto& [name, parameter] : module->named_parameters()) {
        after_first.emplace(name, parameter->stored().detach().clone());
        parameter->stored().detach().fill_(7);
      }
    });
  }
  Event<TrainStep> event = kTrainStepPre;
  Module* module = nullptr;
  std::map<std::string, at::Tensor> after_first;
};

class HandlerSavesCuda : public test::GpuTest {};

TEST_F(HandlerSavesCuda, Are_not_torn_by_what_the_handler_writes) {
  for (const auto& event : {kTrainStepPre, kTrainForwardBackwardPre, kTrainForwardBackwardPost}) {
    const fs::path folder = fs::path(::testing::TempDir()) / "d9d_handler_saves";
    fs::remove_all(folder);
    toy::Job job({{toy::samples(0, 2)}, {toy::samples(2, 2)}});
    const DistContext context({.world = one_rank_world(at::Device(at::kCUDA, 0))});
    job.provider.make_model = [] { return make_module<WideModel>(); };
    job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{1}}};
    WritingTask task;
    task.event = event;
    EXPECT_EQ(job.make_trainer(context, task).train(), TrainingOutcome::kFinished);
    ASSERT_FALSE(task.after_first.empty());
    std::map<std::string, DTensor> saved;
    for (const auto& [name, expected] : task.after_first) {
      saved.emplace("model." + name, whole_dtensor(at::empty_like(expected, at::kCPU)));
    }
    const DistContext reader({.world = one_rank_world()});
    SavedCheckpoint(folder / "save-1").load({.tensors = saved}, reader.mesh(MeshDomain::kBatch), "model.");
    for (const auto& [name, expected] : task.after_first) {
      EXPECT_TRUE(at::equal(saved.at("model." + name).local, expected.cpu())) << event.id << " " << name;
    }
    fs::remove_all(folder);
  }
}

}  // namespace
}  // namespace d9d::handler_saves_cuda_test

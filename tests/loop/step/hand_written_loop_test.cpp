// The parts of the loop without the trainer: a loop written by hand has the losses and norms of Trainer, bit for bit.
#include <mutex>

#include <gtest/gtest.h>

#include "d9d/loop/job/model_builder.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/loop/step/microbatch_numbers.h"
#include "d9d/loop/step/train_pack.h"
#include "d9d/loop/step/training_stage.h"
#include "d9d/loop/task/trainable_parameters.h"
#include "d9d/metrics/reduce_metrics.h"

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::hand_written_loop_test {
namespace {

using pipeline::PipelineJob;
using Series = std::map<std::string, std::vector<double>>;

// One rank's model and everything that trains it.
class Loop {
 public:
  Loop(const DistContext& context, const PipelineJob& job)
      : context_(context),
        config_(pipeline::config_of(job)),
        task_(context, job),
        provider_(job),
        executor_(context, schedule_of(job.schedule)),
        stages_(build_model_stages(
            context, config_, provider_, executor_.placement(),
            [&](const PipelineStageInfo& info) { return initialized_stage(provider_, context, info); })),
        packs_(provider_.build_pack_stream(context, job.num_steps)),
        schedule_(job.num_steps) {
    std::vector<std::shared_ptr<Module>> modules;
    for (const auto& stage : stages_) modules.push_back(stage->module);
    module_ = local_stages(modules);
    clock_ = share_random_clock(context, *module_, config_);
    gradients_.emplace(context, *module_, config_.gradient_manager, config_.gradient_clipping, GradientMemory::kOfStep,
                       modules);
    optimizer_.emplace(AutoOptimizerProvider(job.optimizer).build_optimizer(context, trainable_parameters(*module_)));
    rates_.emplace(AutoLRSchedulerProvider(PiecewiseConfig{.initial_multiplier = 1.0,
                                                           .phases = {RestPhaseConfig{.target_multiplier = 0.5,
                                                                                      .curve = LinearCurveConfig{}}}})
                       .build_scheduler(context, job.num_steps));
    step_.gradients = &*gradients_;
    const StageJob shared{.schedule = schedule_, .clock = *clock_, .metrics = metrics_, .loss_means = loss_means_};
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      computed_.emplace_back(shared, *stages_[i],
                             TrainingStagePlace{.local = i, .is_last_of_rank = i + 1 == stages_.size()}, step_);
    }
  }

  Series train() {
    Series series;
    for (; !schedule_.is_done(); schedule_.advance()) {
      const double rate = optimizer_->learning_rate() * rates_->factor();
      run_pack();
      const StepTotals totals = gradients_->apply(*optimizer_, rate, {.num_tokens = 1});
      Metric& num_predicted = *metrics_.at("num_predicted");
      reduce_metrics({&num_predicted}, metric_ranks(context_));
      series["loss"].push_back(totals.loss);
      series["grad_norm"].push_back(totals.norm);
      series["lr"].push_back(rate);
      series["num_predicted"].push_back(num_predicted.compute().item<double>());
      num_predicted.reset();
      module_->finish_step(StepOutcome::kUpdated);
      rates_->step();
      gradients_->reset();
    }
    gradients_->close();
    return series;
  }

 private:
  void run_pack() {
    auto batches = packs_->next().value();
    for (TokenBatch& batch : batches) {
      step_.pack.push_back(std::make_unique<Microbatch<LanguageModelTypes>>(task_, std::move(batch)));
      step_.pack.back()->build_inputs();
    }
    const auto numbers = microbatch_numbers(context_, packs_->microbatch_numbers(), step_.pack.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) step_.pack[i]->number = numbers[i];
    std::vector<PipelineStage*> stages;
    for (TrainingStage& stage : computed_) stages.push_back(&stage);
    train_pack(executor_, stages, step_, /*graphs=*/nullptr);
    step_.pack.clear();
  }

  const DistContext& context_;
  const TrainerConfig config_;
  pipeline::Task task_;
  pipeline::Provider provider_;
  PipelineExecutor executor_;
  const std::vector<std::shared_ptr<AnyModelStage>> stages_;
  const std::unique_ptr<PackStream<TokenBatch>> packs_;
  JobSchedule schedule_;
  const MetricMap metrics_ = task_.create_metrics();
  MetricMap loss_means_;  // the task has one loss
  std::shared_ptr<Module> module_;
  RandomClockPtr clock_;
  std::optional<GradientManager> gradients_;
  std::optional<Optimizer> optimizer_;
  std::optional<LearningRateScheduler> rates_;
  StepMicrobatches step_;
  std::vector<TrainingStage> computed_;
};

void expect_series_of_the_trainer(const PipelineJob& job) {
  const Series expected = pipeline::series_of(pipeline::train(job));
  std::mutex mutex;
  run_ranks(RankBackend::kThreads, job.mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = job.mesh, .world = borrowed(world)});
    const Series own = Loop(context, job).train();
    const std::lock_guard lock(mutex);
    for (const char* const name : {"loss", "grad_norm", "lr"}) EXPECT_EQ(own.at(name), expected.at(name)) << name;
    EXPECT_TRUE(!context.is_main_process() || own.at("num_predicted") == expected.at("num_predicted"));
  });
}

TEST(HandWrittenLoop, Has_the_series_of_the_trainer) {
  expect_series_of_the_trainer({});
  expect_series_of_the_trainer(
      {.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2}, .schedule = OneFOneBScheduleConfig{}});
  expect_series_of_the_trainer({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                                .schedule = ZeroBubbleVScheduleConfig{},
                                .ties_embeddings = true});
}

}  // namespace
}  // namespace d9d::test::hand_written_loop_test

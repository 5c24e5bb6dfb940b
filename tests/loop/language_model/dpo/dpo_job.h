// Trains a small decoder on preferences, in float64. Returns what is logged, and all parameters.
//
// Example
//   const Trained trained = train({.job = {.mesh = {.context_parallel_shard = 2}}});
//   expect_same_job(trained, train({}));                                     // of one rank
#pragma once

#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "d9d/loop/language_model/dpo/dpo_task.h"

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::dpo {

using pipeline::PipelineJob;
using pipeline::Trained;

struct DpoJob {
  PipelineJob job = {};  // without prompts, graphs and data of its own
  DpoConfig dpo = {.beta = 0.5};
};

// One or two pairs of eight positions. The answers differ in length, and begin in the first or second half of the
// positions; one pair in five is padding.
inline TokenBatch pairs(std::int64_t step, std::int64_t number) {
  constexpr std::int64_t kLength = 8;
  std::vector<TokenSample> rows;
  for (std::int64_t pair = 0; pair < 1 + number % 2; ++pair) {
    const std::int64_t seed = 1 + 16 * step + 2 * number + pair, prompt = 1 + seed % 5;
    for (const std::int64_t answer : {0, 1}) {
      const at::Tensor position = at::arange(kLength + 1);
      const at::Tensor tokens = (position * position * 3 + 7 * seed + answer * position.ge(prompt) * 5).remainder(20);
      TokenSample row = next_token_sample(tokens);
      row.labels = row.labels.clone();
      row.labels.narrow(0, 0, prompt - 1).fill_(kIgnoreIndex);
      row.num_padding = (seed + answer) % 3;
      row.labels.narrow(0, kLength - row.num_padding, row.num_padding).fill_(kIgnoreIndex);
      if (seed % 5 == 0) make_padding(row);
      rows.push_back(row);
    }
  }
  return collate_padded(rows);
}

// Of data, training and evaluation.
struct Pairs : DataProvider<TokenBatch> {
  explicit Pairs(std::int64_t first_step) : first(first_step) {}
  std::unique_ptr<PackStream<TokenBatch>> build_pack_stream(const DistContext& context,
                                                            std::optional<std::int64_t> total_steps) override {
    struct Stream {
      std::optional<std::vector<TokenBatch>> next() {
        if (!is_endless && step > 1) return std::nullopt;
        std::vector<TokenBatch> pack;
        for (std::int64_t i = rank; i < 4; i += num_ranks) pack.push_back(pairs(first + step, i));
        ++step;
        return pack;
      }
      std::optional<std::int64_t> total_steps() const { return std::nullopt; }
      nlohmann::json state() const { return step; }
      void load_state(const nlohmann::json& state) { step = state; }
      std::int64_t first, rank, num_ranks;
      bool is_endless;
      std::int64_t step = 0;
    };
    return as_pack_stream<TokenBatch>(Stream{.first = first,
                                             .rank = context.data_parallel_rank(),
                                             .num_ranks = context.data_parallel_size(),
                                             .is_endless = total_steps.has_value()});
  }
  std::int64_t first;
};

struct Provider : ModelProvider<DpoTypes> {
  explicit Provider(const PipelineJob& job) : inner(job) {}
  ModelStage<DpoTypes> initialize_model_stage(const DistContext& context, const PipelineStageInfo& info) override {
    ModelStage<LanguageModelTypes> stage = inner.initialize_model_stage(context, info);
    return {.module = std::move(stage.module),
            .forward = std::move(stage.forward),
            .part = {.forward = std::move(stage.part.forward),
                     .last_forward = std::move(stage.part.last_forward),
                     .transfer = std::move(stage.part.transfer)}};
  }
  std::optional<PeftConfig> adapters() const override { return inner.adapters(); }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo& stage, Module& module) override {
    inner.parallelize_model_stage(context, stage, module);
  }
  pipeline::Provider inner;
};

inline Trained train(const DpoJob& job) {
  std::filesystem::create_directories(pipeline::folder());
  const std::filesystem::path metrics = pipeline::folder() / "metrics.jsonl";
  std::filesystem::remove(metrics);
  Trained trained;
  std::mutex mutex;
  const auto run = [&](World& world) {
    const DistContext context({.mesh = job.job.mesh,
                               .world = borrowed(world),
                               .local_rank = world.rank(),
                               .log_sink = [&](std::string_view line) {
                                 const std::lock_guard lock(mutex);
                                 trained.log += line;
                               }});
    DpoTask task(context, job.dpo);
    Provider provider(job.job);
    Pairs data(0), evaluated(50);
    EvaluationData<DpoTypes> sets;
    if (!job.job.evaluated.empty()) sets["validation"] = &evaluated;
    AutoOptimizerProvider optimizer(job.job.optimizer);
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}});
    Trainer<DpoTypes> trainer(context, pipeline::config_of(job.job),
                              {.task = task,
                               .model = provider,
                               .data = data,
                               .optimizer = optimizer,
                               .lr_scheduler = lr_scheduler,
                               .evaluation = sets});
    if (!job.job.sleeps.empty()) {
      trainer.events().subscribe(kTrainStepPost, [&](const auto&) {
        trainer.sleep(job.job.sleeps);
        trainer.wake();
      });
    }
    ASSERT_EQ(trainer.train(), TrainingOutcome::kFinished);
    if (job.job.on_trained) job.job.on_trained(trainer.module());
    std::vector<std::map<std::string, at::Tensor>> whole;
    for (const auto& stage : trainer.stages()) whole.push_back(stage->full_state_dict());
    const std::lock_guard lock(mutex);
    for (const auto& of_stage : whole) {
      for (const auto& [name, tensor] : of_stage) trained.parameters.try_emplace(name, tensor.detach().cpu().clone());
    }
  };
  if (job.job.is_on_gpu) {
    run(*one_rank_world(at::Device(at::kCUDA, 0)));
  } else {
    run_ranks(job.job.backend, job.job.mesh.world_size(), run);
  }
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) trained.logged.push_back(nlohmann::json::parse(line));
  return trained;
}

inline void expect_same_job(const Trained& actual, const Trained& expected) {
  const auto own = pipeline::series_of(actual), others = pipeline::series_of(expected);
  for (const char* const name : {"loss", "grad_norm", "rewards/margins", "rewards/accuracies", "logps/chosen"}) {
    EXPECT_TRUE(others.contains(name)) << name;
  }
  for (const auto& [name, values] : others) {
    ASSERT_TRUE(own.contains(name)) << name;
    ASSERT_EQ(own.at(name).size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(own.at(name)[i], values[i], tolerance("fp64").value * std::max(1.0, std::abs(values[i])))
          << name << " of line " << i;
    }
  }
  EXPECT_EQ(actual.parameters.size(), expected.parameters.size());
  for (const auto& [name, tensor] : expected.parameters) {
    ASSERT_TRUE(actual.parameters.contains(name)) << name;
    const double scale = std::max(1e-3, tensor.to(at::kDouble).abs().max().item<double>());
    const double error = (actual.parameters.at(name) - tensor).to(at::kDouble).abs().max().item<double>();
    EXPECT_LE(error, tolerance("fp64").value * scale) << name;
  }
}

}  // namespace d9d::test::dpo

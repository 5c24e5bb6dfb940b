#include "d9d/loop/component/measured_pipeline.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/allocated_bytes.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/component/equal_ranks.h"
#include "d9d/loop/component/gradient_manager.h"
#include "d9d/loop/component/local_stages.h"
#include "d9d/loop/component/model_stage_factory.h"
#include "d9d/loop/component/training_stage.h"
#include "d9d/modules/detect_non_finite.h"
#include "d9d/pipelining/executor/measure_links.h"
#include "d9d/pipelining/executor/measure_stage.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/schedules/compute_order.h"

namespace d9d {
namespace {

using Leaves = std::vector<at::Tensor>;

void wait_for_all(const DistContext& context) { (void)all_gather_object(nullptr, context.mesh(MeshDomain::kBatch)); }

// LibTorch's random generators have the same states at the end of the scope as before. Collective: ranks may be threads
// of one process.
class KeptGenerators {
 public:
  explicit KeptGenerators(const DistContext& context) : context_(context) {
    generators_.push_back(at::globalContext().defaultGenerator(at::kCPU));
    if (!context.device().is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(context.device()));
    for (const at::Generator& generator : generators_) states_.push_back(generator.get_state());
    wait_for_all(context);
  }
  void restore() {
    wait_for_all(context_);
    for (std::size_t i = 0; i < generators_.size(); ++i) generators_[i].set_state(states_[i]);
  }

 private:
  const DistContext& context_;
  std::vector<at::Generator> generators_;
  Leaves states_;
};

// Errors of `work` name the stage.
decltype(auto) in_stage(StageIndex index, const auto& work) {
  try {
    return work();
  } catch (const std::exception&) {
    add_error_place(cat("of stage ", index.value));
    throw;
  }
}

// Passes the first microbatch through a stage, without gradients, and keeps what arrives.
class Relay final : public PipelineStage {
 public:
  Relay(TaskBinding& binding, std::size_t local, StageIndex index, bool is_last)
      : binding_(binding), local_(local), index_(index), is_last_(is_last) {}

  [[nodiscard]] Leaves transfer(MicrobatchIndex, StageBoundary boundary) const override {
    return binding_.transfer(local_, 0, boundary);
  }
  [[nodiscard]] Leaves forward(MicrobatchIndex, const Leaves& leaves) override {
    arrived.clear();
    for (const at::Tensor& leaf : leaves) arrived.push_back(leaf.clone());
    if (is_last_) return {};
    return in_stage(index_, [&] { return binding_.forward(local_, 0, leaves); });
  }

  Leaves arrived = {};

 private:
  TaskBinding& binding_;
  const std::size_t local_;
  const StageIndex index_;
  const bool is_last_;
};

// The model in some number of stages, of which this rank has its own.
class Cut {
 public:
  Cut(const UnbuiltJob& job, std::int64_t num_stages_per_rank)
      : job_(job),
        num_stages_per_rank_(num_stages_per_rank),
        placement_(StagePlacement::loop(job.context.mesh(MeshDomain::kRegular).axis_size("pp"), num_stages_per_rank)),
        own_(placement_.stages_of(job.context.mesh(MeshDomain::kRegular).axis_coordinate("pp"))) {}
  ~Cut() { job_.binding.end_measuring(); }
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  // Why the model cannot be cut so; none: the stages are there.
  [[nodiscard]] std::optional<std::string> build() {
    TrainerConfig config = job_.config;
    config.model_stage_factory.source_checkpoint.reset();
    for (const StageIndex index : own_) {
      const PipelineStageInfo info{.num_stages = placement_.num_stages(), .current_stage = index.value};
      nlohmann::json refusal;
      try {
        stages_.push_back(job_.binding.initialize_model_stage(job_.context, info));
      } catch (const ConfigError& error) {
        refusal = error_line(error);
      }
      for (const nlohmann::json& each : all_gather_object(refusal, job_.context.mesh(MeshDomain::kBatch))) {
        if (!each.is_null()) return each.get<std::string>();
      }
      check_equal_model(job_.context, *stages_.back());
      (void)build_model_stage(job_.context, config, job_.model, info, stages_.back());
      if (config.detect_non_finite) detect_non_finite(*stages_.back());
    }
    module_ = local_stages(stages_);
    return std::nullopt;
  }

  void measure(RankMeasurement& measurement) {
    // LibTorch warns where memory is released under observation that was not allocated so, and measure_stage() observes.
    const AllocatedBytes observed(job_.context.device());
    const RandomClockPtr clock = share_random_clock(job_.context, *module_, job_.config);
    const MetricMap metrics = job_.task.create_metrics();
    MetricMap loss_means;
    GradientManager gradients(job_.context, *module_, job_.config.gradient_manager, job_.config.gradient_clipping,
                              GradientMemory::kOfStep, stages_);
    StepMicrobatches step{.numbers = {0}, .gradients = &gradients};
    const auto build = [&] {
      step.weights = {job_.binding.build_copy().loss_weights};
      step.shares = loss_shares(job_.context, step.weights);
      name_loss_means(loss_means, step.weights.front());
    };
    build();
    clock->microbatch = {.step = static_cast<std::uint64_t>(job_.schedule.current_step()), .number = 0};
    const std::vector<Leaves> arrived = relay();
    if (measurement.stages.empty()) measurement.link = measure_link();
    const StageJob of_stages{
        .schedule = job_.schedule, .stages = stages_, .clock = *clock, .metrics = metrics, .loss_means = loss_means};
    for (std::size_t i = 0; i < own_.size(); ++i) {
      TrainingStage stage(of_stages, job_.binding,
                          {.local = i,
                           .index = own_[i],
                           .num_stages = placement_.num_stages(),
                           .is_last_of_rank = false},  // the inputs stay until they are built anew
                          step);
      wait_for_all(job_.context);  // all ranks compute while one is measured
      StageSample sample{
          .arrived = arrived[i], .is_last = is_last(own_[i]), .device = job_.context.device(), .before_forward = build};
      measurement.stages.push_back({.num_stages = placement_.num_stages(),
                                    .stage = own_[i].value,
                                    .costs = in_stage(own_[i], [&] { return measure_stage(stage, sample); })});
    }
    note_free_bytes(measurement);
    for (const auto& [name, metric] : metrics) metric->reset();
    gradients.abandon();
    wait_for_all(job_.context);  // others may read this rank's parameters until they have come here
    gradients.close();
  }

 private:
  [[nodiscard]] bool is_last(StageIndex stage) const { return stage.value + 1 == placement_.num_stages(); }

  // What arrives at each stage.
  [[nodiscard]] std::vector<Leaves> relay() {
    const auto place = [per_rank = num_stages_per_rank_](std::int64_t num_ranks) {
      return StagePlacement::loop(num_ranks, per_rank);
    };
    PipelineExecutor executor(job_.context, {.name = "measuring", .placement = place, .order = forward_order},
                              {.method = job_.config.pipelining.messages});
    std::vector<Relay> relays;
    for (std::size_t i = 0; i < own_.size(); ++i) relays.emplace_back(job_.binding, i, own_[i], is_last(own_[i]));
    std::vector<PipelineStage*> borrowed;
    for (Relay& each : relays) borrowed.push_back(&each);
    executor.run(borrowed, /*num_microbatches=*/1);
    std::vector<Leaves> arrived;
    for (Relay& each : relays) arrived.push_back(std::move(each.arrived));
    return arrived;
  }

  [[nodiscard]] LinkCosts measure_link() const {
    LinkSample sample;
    const std::int64_t rank = own_.front().value;
    if (rank > 0) sample.from_before = job_.binding.transfer(0, 0, StageBoundary::kIncoming);
    if (rank + 1 < placement_.num_ranks()) sample.to_next = job_.binding.transfer(0, 0, StageBoundary::kOutgoing);
    return measure_links(job_.context, {.method = job_.config.pipelining.messages}, sample);
  }

  // With parameters and gradients in place: what is free, without two fp32 moments a parameter, less a tenth.
  void note_free_bytes(RankMeasurement& measurement) const {
    constexpr std::size_t kAll = 0;
    constexpr double kMomentBytes = 8, kUsed = 0.9;
    const c10::Device device = job_.context.device();
    if (device.is_cpu()) return;
    double moments = 0;
    for (const auto& [name, parameter] : module_->named_parameters()) {
      if (parameter->requires_grad()) moments += kMomentBytes * static_cast<double>(parameter->stored().numel());
    }
    c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
    const auto stats = allocator.getDeviceStats(device.index());
    const auto unused = stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
    const double free =
        static_cast<double>(allocator.getMemoryInfo(device.index()).first) + static_cast<double>(unused) - moments;
    const double before = measurement.free_bytes.value_or(std::numeric_limits<double>::infinity());
    measurement.free_bytes = std::min(before, std::max(0.0, kUsed * free));
  }

  const UnbuiltJob& job_;
  const std::int64_t num_stages_per_rank_;
  const StagePlacement placement_;
  const std::vector<StageIndex> own_;
  std::vector<std::shared_ptr<Module>> stages_;
  std::shared_ptr<Module> module_;
};

// Collective: the number of microbatches of this rank.
std::int64_t peek(const UnbuiltJob& job) {
  const auto own = static_cast<std::int64_t>(job.binding.peek().value_or(0));
  const DeviceMesh& ranks = job.context.mesh(MeshDomain::kBatch);
  const std::vector<nlohmann::json> all = all_gather_object(own, ranks);
  for (std::size_t i = 0; i < all.size(); ++i) {
    D9D_CHECK(all[i].get<std::int64_t>() > 0, ConfigError,
              "[loop::auto_schedule] expected a microbatch in the first step on every rank, on which its stages are "
              "measured, got none on rank ",
              ranks.ranks()[i], ". Name a schedule instead of auto.");
  }
  return own;
}

// What the allocator has kept for the stages that are gone, and their peaks.
void clean_up(c10::Device device) {
  if (device.is_cpu()) return;
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
  allocator.emptyCache();
  allocator.resetPeakStats(device.index());
}

void add_costs(StageCosts& to, const StageCosts& more) {
  for (const auto cost : {&StageCosts::forward, &StageCosts::backward, &StageCosts::backward_input,
                          &StageCosts::backward_weight, &StageCosts::activation_bytes, &StageCosts::deferred_bytes}) {
    to.*cost = std::max(to.*cost, more.*cost);
  }
}

}  // namespace

MeasuredPipeline merged(const std::vector<RankMeasurement>& ranks) {
  MeasuredPipeline result;
  for (const RankMeasurement& rank : ranks) {
    result.num_microbatches = std::max(result.num_microbatches, rank.num_microbatches);
    result.link.latency = std::max(result.link.latency, rank.link.latency);
    result.link.time = std::max(result.link.time, rank.link.time);
    if (rank.free_bytes) {
      result.free_bytes = result.free_bytes ? std::min(*result.free_bytes, *rank.free_bytes) : *rank.free_bytes;
    }
    for (const auto& [num_stages, stage, costs] : rank.stages) {
      auto& all = result.stages[num_stages];
      all.resize(static_cast<std::size_t>(num_stages), {0, 0, 0, 0, 0, 0});
      add_costs(all.at(static_cast<std::size_t>(stage)), costs);
    }
  }
  return result;
}

MeasuredPipeline measure_pipeline(const UnbuiltJob& job, const std::set<std::int64_t>& nums_of_stages_per_rank) {
  install_checkpoint_engine();
  RankMeasurement own{.num_microbatches = peek(job)};
  KeptGenerators generators(job.context);
  std::vector<std::string> refusals;
  std::optional<LayerDistribution> layers;
  for (const std::int64_t v : nums_of_stages_per_rank) {
    try {
      Cut cut(job, v);
      if (const auto refusal = cut.build()) {
        refusals.push_back(*refusal);
        continue;
      }
      layers = job.binding.layer_distribution();
      cut.measure(own);
    } catch (const std::exception&) {
      add_error_place(cat("while the stages of a cut into ", v,
                          " a rank were measured for trainer.pipelining.schedule ", "= auto"));
      throw;
    }
    clean_up(job.context.device());
  }
  generators.restore();
  D9D_CHECK(!own.stages.empty(), ConfigError, "[loop::auto_schedule] expected a model that can be cut into ",
            "stages, got one that refuses every number of them: ", refusals.front());
  std::vector<RankMeasurement> ranks;
  const nlohmann::json written(write_record(own));
  for (const nlohmann::json& each : all_gather_object(written, job.context.mesh(MeshDomain::kBatch))) {
    ranks.push_back(parse_record<RankMeasurement>(Json(each)));
  }
  MeasuredPipeline measured = merged(ranks);
  measured.layers = layers;
  measured.refusals = std::move(refusals);
  return measured;
}

}  // namespace d9d

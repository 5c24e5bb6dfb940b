#include "d9d/loop/measure/measured_split.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <nlohmann/json.hpp>

#include "d9d/core/collectives/gather.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/loop/job/model_builder.h"
#include "d9d/loop/measure/optimizer_sizes.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/parallelism/fsdp/fsdp_runtime.h"
#include "d9d/pipelining/executor/measure_links.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {
namespace {

using Leaves = std::vector<at::Tensor>;
using FreeBytes = std::function<double()>;

// Passes the first microbatch through a stage without gradients, and keeps the inputs that the stage receives.
class Relay final : public PipelineStage {
 public:
  Relay(const AnyMicrobatch& microbatch, const AnyModelStage& stage, FreeBytes free_bytes)
      : microbatch_(microbatch), stage_(stage), free_bytes_(std::move(free_bytes)) {}

  [[nodiscard]] Leaves transfer(MicrobatchIndex, StageBoundary boundary) const override {
    return microbatch_.transfer(stage_, boundary);
  }
  [[nodiscard]] Leaves forward(MicrobatchIndex, const Leaves& leaves, bool) override {
    arrived.clear();
    for (const at::Tensor& leaf : leaves) arrived.push_back(leaf.clone());
    if (stage_.info.is_last()) return {};
    try {
      const double before = free_bytes_();
      (void)microbatch_.forward(stage_, leaves);  // frees its outputs: the bytes that stay are `held`
      held = before - free_bytes_();
      return microbatch_.forward(stage_, leaves);
    } catch (const std::exception&) {
      add_error_place(cat("stage ", stage_.info.current_stage));
      throw;
    }
  }

  Leaves arrived = {};
  double held = 0;  // bytes that FSDP gathers

 private:
  const AnyMicrobatch& microbatch_;
  const AnyModelStage& stage_;
  const FreeBytes free_bytes_;
};

// Returns the bytes that a stage needs at the end of a step: two fp32 moments per trained element, averages of the
// weights, and, if FSDP reduces full gradients only with the last microbatch, the gradients of the shards.
double bytes_of_step_end(Module& stage, const TrainerConfig& config) {
  constexpr double kOfMoments = 8;
  std::optional<Dtype> gradient_dtype = config.gradient_manager.grad_dtype;
  bool waits = false;
  for (const auto& reduction : gradient_reductions(stage)) {
    const auto* const fsdp = dynamic_cast<const FsdpRuntime*>(reduction.get());
    if (fsdp == nullptr) continue;
    waits = waits || *fsdp->config().reduce_on_last_microbatch;
    if (fsdp->config().gradient_dtype) gradient_dtype = fsdp->config().gradient_dtype;
  }
  double bytes = config.ema ? static_cast<double>(bytes_of_averages(stage)) : 0;
  for (const auto& [name, parameter] : stage.named_parameters()) {
    if (!parameter->requires_grad()) continue;
    const c10::ScalarType dtype = gradient_dtype_of(parameter->local().scalar_type(), gradient_dtype);
    const bool is_reduced_last = waits && has_flat_shard(parameter->placements());
    const double of_element = kOfMoments + (is_reduced_last ? static_cast<double>(c10::elementSize(dtype)) : 0);
    bytes += of_element * static_cast<double>(parameter->stored().numel());
  }
  return bytes;
}

// Runs the forward of each of two stages at the same time as the backward of the other. Returns the fraction of the
// shorter computation's time that this hides; 0 if the executor runs the two one after the other. Measures each pair
// first in sequence and right after that concurrently, since a device's clock rate depends on its load just before.
double measure_overlap(const UnbuiltJob& job, std::vector<TrainingStage>& stages,
                       const std::vector<StageSample>& samples, const std::vector<StageCosts>& costs) {
  if (!job.context.device().is_cuda() || job.config.cuda_graph) return 0;
  const ComputeStreams streams(job.context.world());
  double hidden = 0, shorter = 0;
  for (const auto& [of_forward, of_backward] : {std::pair<std::size_t, std::size_t>{0, 1}, {1, 0}}) {
    StageSample beside = samples[of_forward];
    beside.before_forward = nullptr;  // it would build new inputs, but both stages use those of one microbatch
    const auto measure = [&](const ComputeStreams* which) {
      wait_for_all(job.context);
      return measure_composed({stages[of_forward], beside}, {stages[of_backward], samples[of_backward]}, which);
    };
    const double in_a_row = measure(nullptr);
    hidden += in_a_row - measure(&streams);
    shorter += std::min(costs[of_forward].forward, costs[of_backward].backward);
  }
  return std::clamp(hidden / shorter, 0.0, 1.0);
}

}  // namespace

std::int64_t num_microbatches_to_measure(const UnbuiltJob& job, std::string_view key, std::string_view remedy) {
  const MicrobatchPack* const pack = job.packs.peek();
  const std::int64_t own = pack == nullptr ? 0 : std::ssize(*pack);
  const DeviceMesh& ranks = job.context.mesh(MeshDomain::kBatch);
  const std::vector<nlohmann::json> all = all_gather_object(own, ranks);
  for (std::size_t i = 0; i < all.size(); ++i) {
    D9D_CHECK(all[i].get<std::int64_t>() > 0, ConfigError, "[loop::", key,
              "] expected a microbatch in the first step on every rank, on which its stages are measured, got none on "
              "rank ",
              ranks.ranks()[i], ". ", remedy);
  }
  return own;
}

void forget_measurement(c10::Device device) {
  if (device.is_cpu()) return;
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
  allocator.emptyCache();
  allocator.resetPeakStats(device.index());
}

void wait_for_all(const DistContext& context) { (void)all_gather_object(nullptr, context.mesh(MeshDomain::kBatch)); }

MeasuredSplit::MeasuredSplit(const UnbuiltJob& job, StagePlacement placement)
    : job_(job),
      placement_(std::move(placement)),
      own_(placement_.stages_of(job.context.mesh(MeshDomain::kRegular).axis_coordinate("pp"))),
      allocated_(job.context.device()) {}

std::optional<std::string> MeasuredSplit::build() {
  TrainerConfig config = job_.config;
  config.model_stage_factory.source_checkpoint.reset();
  config.model_stage_factory.source_adapters.reset();
  for (const StageIndex index : own_) {
    const PipelineStageInfo info{.num_stages = placement_.num_stages(), .current_stage = index.value};
    nlohmann::json refusal;
    try {
      model_stages_.push_back(job_.binding.initialize_stage(job_.context, info));
    } catch (const ConfigError& error) {
      refusal = error_line(error);
    }
    for (const nlohmann::json& each : all_gather_object(refusal, job_.context.mesh(MeshDomain::kBatch))) {
      if (!each.is_null()) return each.get<std::string>();
    }
    stages_.push_back(model_stages_.back()->module);
    check_equal_model(job_.context, *stages_.back());
    const double before = free_bytes();
    (void)build_model_stage(job_.context, config, job_.model, info, stages_.back());
    held_.push_back(before - free_bytes());
  }
  module_ = local_stages(stages_);
  return std::nullopt;
}

void MeasuredSplit::run_first_microbatch(const std::function<void(const Running&)>& work) {
  const RandomClockPtr clock = share_random_clock(job_.context, *module_, job_.config);
  const MetricMap metrics = job_.task.create_metrics();
  MetricMap loss_means;
  GradientManager gradients(job_.context, *module_, job_.config.gradient_manager, job_.config.gradient_clipping,
                            GradientMemory::kOfStep, stages_);
  StepMicrobatches step{.gradients = &gradients};
  step.pack.resize(1);
  const auto build = [&] {
    step.pack.front() = job_.packs.peek()->front()->copy_of_batch();
    AnyMicrobatch& microbatch = *step.pack.front();
    microbatch.build_inputs();
    microbatch.loss_scales = loss_scales(job_.context, {microbatch.loss_weights}).front();
    name_loss_means(loss_means, microbatch.loss_weights);
  };
  build();
  clock->microbatch = {.step = static_cast<std::uint64_t>(job_.schedule.current_step()), .number = 0};
  const std::vector<Leaves> arrived = arrivals(*step.pack.front());
  const StageJob of_stages{.schedule = job_.schedule, .clock = *clock, .metrics = metrics, .loss_means = loss_means};
  std::vector<TrainingStage> stages;
  std::vector<StageSample> samples;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const TrainingStagePlace place{.local = i, .is_last_of_rank = false};  // keeps inputs
    stages.emplace_back(of_stages, *model_stages_[i], place, step);
    samples.push_back({.arrived = arrived[i],
                       .is_last = model_stages_[i]->info.is_last(),
                       .device = job_.context.device(),
                       .before_forward = build});
  }
  work({.stages = stages, .samples = samples, .microbatch = *step.pack.front()});
  for (const auto& [name, metric] : metrics) metric->reset();
  gradients.abandon();
  wait_for_all(job_.context);  // until then other ranks may read this rank's parameters
  gradients.close();
}

void MeasuredSplit::measure(RankMeasurement& measurement) {
  run_first_microbatch([&](const Running& running) {
    if (measurement.stages.empty()) measurement.link = measure_link(running.microbatch);
    std::vector<StageCosts> costs;
    for (std::size_t i = 0; i < own_.size(); ++i) {
      wait_for_all(job_.context);  // so that the other ranks compute too while this one measures
      count_gradients(i, [&] { costs.push_back(measure_stage(running.stages[i], running.samples[i])); });
      costs[i].resident_bytes = resident_bytes(i);
      measurement.stages.push_back({.num_stages = placement_.num_stages(), .stage = own_[i].value, .costs = costs[i]});
    }
    if (own_.size() == 2) {
      measurement.composed_overlap = measure_overlap(job_, running.stages, running.samples, costs);
    }
    if (const auto bytes = usable_bytes()) {
      measurement.device_bytes = std::min(measurement.device_bytes.value_or(*bytes), *bytes);
    }
  });
}

void MeasuredSplit::count_gradients(std::size_t stage, const std::function<void()>& run) {
  const double before = free_bytes();
  run();
  held_[stage] += before - free_bytes();
}

double MeasuredSplit::resident_bytes(std::size_t stage) const {
  return std::max(0.0, held_[stage]) + bytes_of_step_end(*stages_[stage], job_.config);
}

double MeasuredSplit::held_bytes() const { return std::accumulate(held_.begin(), held_.end(), 0.0); }

std::optional<double> MeasuredSplit::usable_bytes() const {
  if (job_.context.device().is_cpu()) return std::nullopt;
  constexpr double kUsed = 0.9;
  return kUsed * (held_bytes() + free_bytes());
}

// Runs the forwards of all stages on one microbatch. Returns the inputs that each stage of this rank receives.
std::vector<MeasuredSplit::Leaves> MeasuredSplit::arrivals(const AnyMicrobatch& microbatch) {
  PipelineExecutor executor(job_.context, forwards_on(placement_), {.method = job_.config.pipelining.messages});
  std::vector<Relay> relays;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    relays.emplace_back(microbatch, *model_stages_[i], [this] { return free_bytes(); });
  }
  std::vector<PipelineStage*> borrowed;
  for (Relay& each : relays) borrowed.push_back(&each);
  executor.run(borrowed, /*num_microbatches=*/1);
  std::vector<Leaves> arrived;
  for (std::size_t i = 0; i < relays.size(); ++i) {
    held_[i] += relays[i].held;
    arrived.push_back(std::move(relays[i].arrived));
  }
  return arrived;
}

LinkCosts MeasuredSplit::measure_link(const AnyMicrobatch& microbatch) const {
  LinkSample sample;
  const std::int64_t rank = own_.front().value;
  const AnyModelStage& stage = *model_stages_.front();
  if (rank > 0) sample.from_before = microbatch.transfer(stage, StageBoundary::kIncoming);
  if (rank + 1 < placement_.num_ranks()) sample.to_next = microbatch.transfer(stage, StageBoundary::kOutgoing);
  return measure_links(job_.context, {.method = job_.config.pipelining.messages}, sample);
}

double MeasuredSplit::free_bytes() const {
  constexpr std::size_t kAll = 0;
  const c10::Device device = job_.context.device();
  if (device.is_cpu()) return -static_cast<double>(allocated_.now());
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
  const auto stats = allocator.getDeviceStats(device.index());
  const auto unused = stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
  return static_cast<double>(allocator.getMemoryInfo(device.index()).first) + static_cast<double>(unused);
}

}  // namespace d9d

#include "d9d/loop/component/measured_cut.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <nlohmann/json.hpp>

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

// Passes the first microbatch through a stage, without gradients, and keeps what arrives.
class Relay final : public PipelineStage {
 public:
  Relay(TaskBinding& binding, std::size_t local, StageIndex index, bool is_last)
      : binding_(binding), local_(local), index_(index), is_last_(is_last) {}

  [[nodiscard]] Leaves transfer(MicrobatchIndex, StageBoundary boundary) const override {
    return binding_.transfer(local_, 0, boundary);
  }
  [[nodiscard]] Leaves forward(MicrobatchIndex, const Leaves& leaves, bool) override {
    arrived.clear();
    for (const at::Tensor& leaf : leaves) arrived.push_back(leaf.clone());
    if (is_last_) return {};
    try {
      return binding_.forward(local_, 0, leaves);
    } catch (const std::exception&) {
      add_error_place(cat("stage ", index_.value));
      throw;
    }
  }

  Leaves arrived = {};

 private:
  TaskBinding& binding_;
  const std::size_t local_;
  const StageIndex index_;
  const bool is_last_;
};

}  // namespace

void wait_for_all(const DistContext& context) { (void)all_gather_object(nullptr, context.mesh(MeshDomain::kBatch)); }

MeasuredCut::MeasuredCut(const UnbuiltJob& job, std::int64_t num_stages_per_rank)
    : job_(job),
      num_stages_per_rank_(num_stages_per_rank),
      placement_(StagePlacement::loop(job.context.mesh(MeshDomain::kRegular).axis_size("pp"), num_stages_per_rank)),
      own_(placement_.stages_of(job.context.mesh(MeshDomain::kRegular).axis_coordinate("pp"))) {}

MeasuredCut::~MeasuredCut() { job_.binding.end_measuring(); }

std::optional<std::string> MeasuredCut::build() {
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

void MeasuredCut::measure(RankMeasurement& measurement) {
  // LibTorch warns where memory is released under observation that was not allocated so; measure_stage() observes.
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
  const std::vector<Leaves> arrived = arrivals();
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
    measurement.stages.push_back(
        {.num_stages = placement_.num_stages(), .stage = own_[i].value, .costs = measure_stage(stage, sample)});
  }
  if (!job_.context.device().is_cpu()) {
    const double free = free_bytes();
    measurement.free_bytes = std::min(measurement.free_bytes.value_or(free), free);
  }
  for (const auto& [name, metric] : metrics) metric->reset();
  gradients.abandon();
  wait_for_all(job_.context);  // others may read this rank's parameters until they have come here
  gradients.close();
}

// What arrives at each stage.
std::vector<MeasuredCut::Leaves> MeasuredCut::arrivals() {
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

LinkCosts MeasuredCut::measure_link() const {
  LinkSample sample;
  const std::int64_t rank = own_.front().value;
  if (rank > 0) sample.from_before = job_.binding.transfer(0, 0, StageBoundary::kIncoming);
  if (rank + 1 < placement_.num_ranks()) sample.to_next = job_.binding.transfer(0, 0, StageBoundary::kOutgoing);
  return measure_links(job_.context, {.method = job_.config.pipelining.messages}, sample);
}

// With parameters and gradients in place: what is free, without two fp32 moments a parameter, less a tenth.
double MeasuredCut::free_bytes() const {
  constexpr std::size_t kAll = 0;
  constexpr double kMomentBytes = 8, kUsed = 0.9;
  const c10::Device device = job_.context.device();
  double moments = 0;
  for (const auto& [name, parameter] : module_->named_parameters()) {
    if (parameter->requires_grad()) moments += kMomentBytes * static_cast<double>(parameter->stored().numel());
  }
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
  const auto stats = allocator.getDeviceStats(device.index());
  const auto unused = stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
  const double free =
      static_cast<double>(allocator.getMemoryInfo(device.index()).first) + static_cast<double>(unused) - moments;
  return std::max(0.0, kUsed * free);
}

}  // namespace d9d

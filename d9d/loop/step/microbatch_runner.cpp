#include "d9d/loop/step/microbatch_runner.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checks/custom_schedule.h"
#include "d9d/loop/step/loss_scales.h"
#include "d9d/loop/step/microbatch_numbers.h"
#include "d9d/loop/step/train_pack.h"
#include "d9d/metrics/metric.h"

namespace d9d {
namespace {

// Returns the schedule of the executor. It is GPipe if microbatches run one by one, since a custom schedule may not
// allow a program of a single microbatch.
PipelineSchedule run_schedule(const TrainingJob& job) {
  const bool is_by_one = runs_one_by_one(job.placement, job.config.cuda_graph.has_value());
  return is_by_one ? schedule_of(GPipeScheduleConfig{}) : job.pipeline_schedule;
}

}  // namespace

MicrobatchRunner::MicrobatchRunner(const TrainingJob& job, const AnyTask& task, PackReader& packs,
                                   ReferencePass* reference)
    : job_(job),
      task_(task),
      packs_(packs),
      reference_(reference),
      equal_microbatches_(job.context, *job.module),
      executor_(job.context, run_schedule(job), {.method = job.config.pipelining.messages}) {
  const auto& own = executor_.stages();
  for (std::size_t i = 0; i < own.size(); ++i) {
    stages_.emplace_back(stage_job_of(job_), *job_.model_stages[i],
                         TrainingStagePlace{.local = i, .is_last_of_rank = i + 1 == own.size()}, step_);
  }
  install_checkpoint_engine();  // so that errors name the operation of backward
  const c10::Device device = job.context.device();
  if (job.config.cuda_graph) graphs_.emplace(*job.config.cuda_graph, cuda_graphs(device), device, *job.module);
}

void MicrobatchRunner::free_memory() {
  if (graphs_) graphs_->clear();
  executor_.close();
}

GraphCounts MicrobatchRunner::graph_counts() const { return graphs_ ? graphs_->counts() : GraphCounts(); }

std::int64_t MicrobatchRunner::num_next() const { return static_cast<std::int64_t>(packs_.num_next().value_or(0)); }

nlohmann::json MicrobatchRunner::data_state() const { return packs_.stream().state(); }

nlohmann::json MicrobatchRunner::task_state() const { return task_.state(); }

bool MicrobatchRunner::fetch() {
  if (is_first_step_) first_step_.emplace(job_.context);  // before the fetch, in which it also detects random numbers
  auto pack = packs_.next();
  if (!pack) return false;
  step_.pack = std::move(*pack);
  const auto numbers = microbatch_numbers(job_.context, packs_.stream().microbatch_numbers(), step_.pack.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) step_.pack[i]->number = numbers[i];
  return true;
}

std::int64_t MicrobatchRunner::run(GradientManager& gradients) {
  struct Clear {
    MicrobatchPack& pack;
    ~Clear() { pack.clear(); }
  } const clear{step_.pack};
  equal_microbatches_.check(job_.schedule.current_step(), std::ssize(step_.pack));
  if (first_step_ && job_.config.refuse_equal_data) first_step_->check_packs(first_pack());
  if (job_.has_custom_schedule) check_order();
  const std::int64_t num_tokens = build_inputs();
  if (reference_ != nullptr) take_reference(gradients);
  step_.gradients = &gradients;
  step_.first_step = first_step_ ? &*first_step_ : nullptr;
  std::vector<PipelineStage*> stages;
  for (TrainingStage& stage : stages_) stages.push_back(&stage);
  train_pack(executor_, stages, step_, graphs_ ? &*graphs_ : nullptr);
  step_.pack.clear();  // before warn(), since task states may keep autograd graphs alive
  if (first_step_) first_step_->warn(job_.stages);
  first_step_.reset();
  is_first_step_ = false;
  return num_tokens;
}

// Compares the programs of a custom schedule between ranks, once for each number of microbatches. Ranks that share
// microbatches have equal numbers of them, so all of them do this in the same step; replicas are compared in the first
// step only.
void MicrobatchRunner::check_order() {
  const auto num_microbatches = std::ssize(step_.pack);
  if (!checked_orders_.insert(num_microbatches).second) return;
  const DeviceMesh all = job_.context.mesh(MeshDomain::kBatch);
  check_equal_order(is_first_step_ ? all : all.slice({"pp", "cp", "tp"}), job_.pipeline_schedule,
                    job_.placement.num_ranks(), num_microbatches);
}

// Builds the inputs of all microbatches and, for several losses, their scales. Returns the number of tokens of this
// rank.
std::int64_t MicrobatchRunner::build_inputs() {
  std::int64_t num_tokens = 0;
  std::vector<LossWeights> weights;
  for (std::size_t i = 0; i < step_.pack.size(); ++i) {
    AnyMicrobatch& microbatch = *step_.pack[i];
    in_microbatch(i, job_.schedule, "in build_forward_inputs", [&] { microbatch.build_inputs(); });
    D9D_CHECK(microbatch.num_tokens >= 0, StateError, "[loop::task] expected ForwardInputs::num_tokens >= 0, got ",
              microbatch.num_tokens, " of microbatch ", i, ". Set it to what throughput is counted in.");
    num_tokens += microbatch.num_tokens;
    weights.push_back(microbatch.loss_weights);
  }
  std::vector<LossScales> scales = loss_scales(job_.context, weights);
  for (std::size_t i = 0; i < step_.pack.size(); ++i) step_.pack[i]->loss_scales = std::move(scales[i]);
  for (const LossWeights& each : weights) name_loss_means(*job_.loss_means, each);
  return num_tokens;
}

void MicrobatchRunner::take_reference(GradientManager& gradients) {
  gradients.begin_evaluation();
  reference_->run(step_.pack, cat("step ", job_.schedule.current_step()));
  gradients.end_evaluation();
}

FirstPack MicrobatchRunner::first_pack() const {
  FirstPack first;
  if (!step_.pack.empty()) first.hash = step_.pack.front()->hash_of_batch();
  if (const auto numbers = packs_.stream().microbatch_numbers(); !numbers.empty()) first.number = numbers.front();
  return first;
}

}  // namespace d9d

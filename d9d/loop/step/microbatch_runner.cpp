#include "d9d/loop/step/microbatch_runner.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checks/custom_schedule.h"
#include "d9d/loop/step/loss_scales.h"
#include "d9d/loop/step/microbatch_numbers.h"
#include "d9d/metrics/metric.h"

namespace d9d {
namespace {

// While it lives, drawing random numbers from the clock throws: a replay would draw the same numbers again.
class Capturing {
 public:
  Capturing(RandomClock& clock, bool captures) : clock_(clock) { clock_.is_captured = captures; }
  ~Capturing() { clock_.is_captured = false; }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;

 private:
  RandomClock& clock_;
};

}  // namespace

MicrobatchRunner::MicrobatchRunner(const TrainingJob& job, const AnyTask& task, const AnyPackStream& stream,
                                   TaskBinding& binding)
    : job_(job),
      task_(task),
      stream_(stream),
      binding_(binding),
      equal_microbatches_(job.context, *job.module),
      executor_(job.context, job.pipeline_schedule, {.method = job.config.pipelining.messages}) {
  const auto& own = executor_.stages();
  for (std::size_t i = 0; i < own.size(); ++i) {
    stages_.emplace_back(stage_job_of(job_), *job_.model_stages[i],
                         TrainingStagePlace{.local = i, .is_last_of_rank = i + 1 == own.size()}, step_);
  }
  install_checkpoint_engine();  // so that errors name the operation of backward
  const c10::Device device = job.context.device();
  if (job.config.cuda_graph) {
    const auto emplace = [&](auto& graphs) {
      graphs.emplace(*job.config.cuda_graph, cuda_graphs(device), device, *job.module);
    };
    executor_.placement().num_stages() == 1 ? emplace(graphs_) : emplace(step_graphs_);
  }
}

GraphCounts MicrobatchRunner::graph_counts() const {
  if (step_graphs_) return step_graphs_->counts();
  return graphs_ ? graphs_->counts() : GraphCounts();
}

std::int64_t MicrobatchRunner::num_next() const { return static_cast<std::int64_t>(binding_.num_next().value_or(0)); }

nlohmann::json MicrobatchRunner::data_state() const { return stream_.state(); }

nlohmann::json MicrobatchRunner::task_state() const { return task_.state(); }

bool MicrobatchRunner::fetch() {
  if (is_first_step_) first_step_.emplace(job_.context);  // before the fetch: it also watches random numbers there
  auto pack = binding_.next_pack();
  if (!pack) return false;
  step_.pack = std::move(*pack);
  const auto numbers = microbatch_numbers(job_.context, stream_.microbatch_numbers(), step_.pack.size());
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
  step_.gradients = &gradients;
  step_.first_step = first_step_ ? &*first_step_ : nullptr;
  if (graphs_) {
    for (std::size_t i = 0; i < step_.pack.size(); ++i) train_by_graphs(*step_.pack[i], i);
  } else {
    train_by_executor();
  }
  step_.pack.clear();  // before warn(): task states may keep autograd graphs alive
  if (first_step_) first_step_->warn(job_.stages);
  first_step_.reset();
  is_first_step_ = false;
  return num_tokens;
}

// Ranks that share microbatches have the same number of them and therefore call this in the same step. Replicas are
// compared only in the first step.
void MicrobatchRunner::check_order() {
  const auto num_microbatches = std::ssize(step_.pack);
  if (!checked_orders_.insert(num_microbatches).second) return;
  const DeviceMesh all = job_.context.mesh(MeshDomain::kBatch);
  check_equal_order(is_first_step_ ? all : all.slice({"pp", "cp", "tp"}), job_.pipeline_schedule,
                    job_.placement.num_ranks(), num_microbatches);
}

void MicrobatchRunner::train_by_executor() {
  std::vector<PipelineStage*> stages;
  for (TrainingStage& stage : stages_) stages.push_back(&stage);
  step_.losses.assign(step_.pack.size(), {});
  step_.graph = step_graphs_ ? step_graphs_->begin(step_.pack) : nullptr;
  step_.keeps_inputs = step_.graph != nullptr || executor_.runs_at_once(std::ssize(step_.pack));
  const Capturing capturing(*job_.clock, step_.graph != nullptr && !step_.graph->is_captured());
  executor_.run(stages, std::ssize(step_.pack), step_.graph == nullptr ? nullptr : &*step_.graph->program);
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

FirstPack MicrobatchRunner::first_pack() const {
  FirstPack first;
  if (!step_.pack.empty()) first.hash = step_.pack.front()->hash_of_batch();
  if (const auto numbers = stream_.microbatch_numbers(); !numbers.empty()) first.number = numbers.front();
  return first;
}

void MicrobatchRunner::train_by_graphs(AnyMicrobatch& microbatch, std::size_t index) {
  job_.clock->microbatch = {.step = static_cast<std::uint64_t>(job_.schedule.current_step()),
                            .number = microbatch.number};
  const WeightedLoss loss = in_microbatch(index, job_.schedule, "in training", [&] {
    return graphs_->run(microbatch, index + 1 == step_.pack.size(), *step_.gradients,
                        [&](AnyMicrobatch& one, bool is_captured) {
                          return is_captured ? capture(one) : forward_backward(one, job_.schedule);
                        });
  });
  step_.gradients->add_loss_with_weight(loss.loss, loss.weight);
  update_loss_means(*job_.loss_means, loss, microbatch.loss_weights);
  microbatch.drop_inputs();
  in_microbatch(index, job_.schedule, "in update_metrics", [&] { microbatch.update_metrics(job_.metrics); });
}

WeightedLoss MicrobatchRunner::forward_backward(AnyMicrobatch& microbatch, const JobSchedule& schedule) {
  const LossResult result =
      without_backward([&] { return microbatch.forward_loss(*job_.model_stages.front(), {}, schedule); });
  WeightedLoss weighted =
      with_error_place("in compute_loss", [&] { return weighted_loss(result, microbatch.loss_scales); });
  if (first_step_ && !job_.clock->is_captured) first_step_->watch(weighted.loss);
  with_error_place("in backward", [&] { weighted.loss.mul(weighted.weight).backward(); });
  return {.loss = weighted.loss.detach(), .weight = weighted.weight.detach(), .losses = std::move(weighted.losses)};
}

// Runs the work of a capture. Asking for the current step or drawing random numbers throws: a replay would repeat the
// values of the capture.
WeightedLoss MicrobatchRunner::capture(AnyMicrobatch& microbatch) {
  const Capturing capturing(*job_.clock, true);
  return forward_backward(microbatch, job_.schedule.without_step());
}

}  // namespace d9d

#include "d9d/loop/step/microbatch_runner.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checks/own_schedule.h"
#include "d9d/loop/step/loss_shares.h"
#include "d9d/loop/step/microbatch_numbers.h"
#include "d9d/metrics/metric.h"

namespace d9d {
namespace {

// While it lives, random numbers that the clock gives are refused: a replay would draw the same again.
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
    stages_.emplace_back(stage_job_of(job_), binding_,
                         TrainingStagePlace{.local = i,
                                            .index = own[i],
                                            .num_stages = executor_.placement().num_stages(),
                                            .is_last_of_rank = i + 1 == own.size()},
                         step_);
  }
  install_checkpoint_engine();  // errors name the operation of backward
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
  if (is_first_step_) first_step_.emplace(job_.context);  // its data counts too
  const auto num_microbatches = binding_.fetch();
  if (!num_microbatches) return false;
  step_.numbers = microbatch_numbers(job_.context, stream_.microbatch_numbers(), *num_microbatches);
  return true;
}

std::int64_t MicrobatchRunner::run(GradientManager& gradients) {
  struct Reset {
    TaskBinding& binding;
    ~Reset() { binding.reset(); }
  } const reset{binding_};
  equal_microbatches_.check(job_.schedule.current_step(), std::ssize(step_.numbers));
  if (first_step_ && job_.config.refuse_equal_data) first_step_->check_packs(first_pack());
  if (job_.has_own_schedule) check_order();
  build_all();
  step_.gradients = &gradients;
  step_.first_step = first_step_ ? &*first_step_ : nullptr;
  if (graphs_) {
    for (std::size_t i = 0; i < step_.numbers.size(); ++i) train_by_graphs(i);
  } else {
    train_by_executor();
  }
  binding_.reset();  // states may refer to graphs
  if (first_step_) first_step_->warn(job_.stages);
  first_step_.reset();
  is_first_step_ = false;
  return num_tokens_;
}

// Ranks that share microbatches have the same number of them, and come here in the same step; replicas in the first.
void MicrobatchRunner::check_order() {
  const auto num_microbatches = std::ssize(step_.numbers);
  if (!checked_orders_.insert(num_microbatches).second) return;
  const DeviceMesh all = job_.context.mesh(MeshDomain::kBatch);
  check_equal_order(is_first_step_ ? all : all.slice({"pp", "cp", "tp"}), job_.pipeline_schedule,
                    job_.placement.num_ranks(), num_microbatches);
}

void MicrobatchRunner::train_by_executor() {
  std::vector<PipelineStage*> stages;
  for (TrainingStage& stage : stages_) stages.push_back(&stage);
  step_.losses.assign(step_.numbers.size(), {});
  step_.graph = step_graphs_ ? step_graphs_->begin(binding_, step_.shares) : nullptr;
  step_.keeps_inputs = step_.graph != nullptr || executor_.runs_at_once(std::ssize(step_.numbers));
  const Capturing capturing(*job_.clock, step_.graph != nullptr && !step_.graph->is_captured());
  executor_.run(stages, std::ssize(step_.numbers), step_.graph == nullptr ? nullptr : &*step_.graph->program);
}

// Inputs and states of all microbatches, and what each loss counts for.
void MicrobatchRunner::build_all() {
  num_tokens_ = 0;
  step_.weights.clear();
  for (std::size_t i = 0; i < step_.numbers.size(); ++i) {
    BuiltMicrobatch built =
        in_microbatch(i, job_.schedule, "in build_forward_inputs", [&] { return binding_.build(i); });
    D9D_CHECK(built.num_tokens >= 0, StateError, "[loop::task] expected ForwardInputs::num_tokens >= 0, got ",
              built.num_tokens, " of microbatch ", i, ". Set it to what throughput is counted in.");
    num_tokens_ += built.num_tokens;
    step_.weights.push_back(std::move(built.loss_weights));
  }
  step_.shares = loss_shares(job_.context, step_.weights);
  for (const LossWeights& weights : step_.weights) name_loss_means(*job_.loss_means, weights);
}

FirstPack MicrobatchRunner::first_pack() const {
  FirstPack first;
  first.hash = binding_.hash_of_first();
  if (const auto numbers = stream_.microbatch_numbers(); !numbers.empty()) first.number = numbers.front();
  return first;
}

void MicrobatchRunner::train_by_graphs(std::size_t index) {
  job_.clock->microbatch = {.step = static_cast<std::uint64_t>(job_.schedule.current_step()),
                            .number = step_.numbers[index]};
  binding_.with_microbatch(index, [&](AnyMicrobatch& microbatch) {
    microbatch.shares = step_.shares[index];
    const WeightedLoss loss = in_microbatch(index, job_.schedule, "in training", [&] {
      return graphs_->run(microbatch, index + 1 == step_.numbers.size(), *step_.gradients,
                          [&](AnyMicrobatch& one, bool is_captured) {
                            return is_captured ? capture(one) : forward_backward(one, job_.schedule);
                          });
    });
    step_.gradients->add_loss_with_weight(loss.loss, loss.weight);
    update_loss_means(*job_.loss_means, loss, step_.weights[index]);
  });
  binding_.drop_inputs(index);
  in_microbatch(index, job_.schedule, "in update_metrics", [&] { binding_.update_metrics(index, job_.metrics); });
}

WeightedLoss MicrobatchRunner::forward_backward(AnyMicrobatch& microbatch, const JobSchedule& schedule) {
  const LossResult result = without_backward([&] { return binding_.forward_with_loss(microbatch, schedule); });
  WeightedLoss weighted = with_error_place("in compute_loss", [&] { return weighted_loss(result, microbatch.shares); });
  if (first_step_ && !job_.clock->is_captured) first_step_->watch(weighted.loss);
  with_error_place("in backward", [&] { weighted.loss.mul(weighted.weight).backward(); });
  return {.loss = weighted.loss.detach(), .weight = weighted.weight.detach(), .losses = std::move(weighted.losses)};
}

// Throws for what a replay would not repeat: asking for the step's number, and drawing random numbers.
WeightedLoss MicrobatchRunner::capture(AnyMicrobatch& microbatch) {
  const Capturing capturing(*job_.clock, true);
  return forward_backward(microbatch, job_.schedule.without_step());
}

}  // namespace d9d

#include "d9d/loop/component/microbatch_runner.h"

#include <exception>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/component/loss_shares.h"
#include "d9d/loop/component/microbatch_numbers.h"
#include "d9d/metrics/metric.h"

namespace d9d {
namespace {

// Errors of `work` say which microbatch of which step it is, and `place` where nothing within says more.
template <class Work>
auto in_microbatch(std::size_t index, const JobSchedule& schedule, const char* place, const Work& work) {
  try {
    return with_error_place(place, work);
  } catch (const std::exception&) {
    add_error_place(cat("microbatch ", index, " of step ", schedule.current_step()));
    throw;
  }
}

}  // namespace

MicrobatchRunner::MicrobatchRunner(const TrainingJob& job, const AnyTask& task, const AnyPackStream& stream,
                                   TaskBinding& binding)
    : job_(job), task_(task), stream_(stream), binding_(binding) {
  install_checkpoint_engine();  // errors name the operation of backward
  const c10::Device device = job.context.device();
  if (job.config.cuda_graph) {
    graphs_.emplace(*job.config.cuda_graph, cuda_graphs(device), device, *job.module);
  }
}

nlohmann::json MicrobatchRunner::data_state() const { return stream_.state(); }

nlohmann::json MicrobatchRunner::task_state() const { return task_.state(); }

bool MicrobatchRunner::fetch() {
  if (is_first_step_) first_step_.emplace(job_.context);  // its data counts too
  const auto num_microbatches = binding_.fetch();
  if (!num_microbatches) return false;
  numbers_ = microbatch_numbers(job_.context, stream_.microbatch_numbers(), *num_microbatches);
  return true;
}

std::int64_t MicrobatchRunner::run(GradientManager& gradients) {
  struct Reset {
    TaskBinding& binding;
    ~Reset() { binding.reset(); }
  } const reset{binding_};
  if (first_step_ && job_.config.refuse_equal_data) first_step_->check_packs(first_pack());
  std::int64_t num_tokens = 0;
  std::vector<LossWeights> weights;
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    BuiltMicrobatch built =
        in_microbatch(i, job_.schedule, "in build_forward_inputs", [&] { return binding_.build(i); });
    D9D_CHECK(built.num_tokens >= 0, StateError, "[loop::task] expected ForwardInputs::num_tokens >= 0, got ",
              built.num_tokens, " of microbatch ", i, ". Set it to what throughput is counted in.");
    num_tokens += built.num_tokens;
    weights.push_back(std::move(built.loss_weights));
  }
  std::vector<LossShares> shares = loss_shares(job_.context, weights);
  for (std::size_t i = 0; i < numbers_.size(); ++i) train_one(i, std::move(shares[i]), weights[i], gradients);
  binding_.reset();  // states may refer to graphs
  if (first_step_) first_step_->warn(*job_.module);
  first_step_.reset();
  is_first_step_ = false;
  return num_tokens;
}

FirstPack MicrobatchRunner::first_pack() const {
  FirstPack first{.num_microbatches = std::ssize(numbers_)};
  first.hash = binding_.hash_of_first();
  if (const auto numbers = stream_.microbatch_numbers(); !numbers.empty()) first.number = numbers.front();
  return first;
}

void MicrobatchRunner::train_one(std::size_t index, LossShares shares, const LossWeights& weights,
                                 GradientManager& gradients) {
  job_.clock->microbatch = {.step = static_cast<std::uint64_t>(job_.schedule.current_step()),
                            .number = numbers_[index]};
  binding_.with_microbatch(index, [&](AnyMicrobatch& microbatch) {
    microbatch.shares = std::move(shares);
    const WeightedLoss loss = in_microbatch(index, job_.schedule, "in training", [&] {
      return run_microbatch(microbatch, index + 1 == numbers_.size(), gradients);
    });
    gradients.add_loss_with_weight(loss.loss, loss.weight);
    for (const auto& [name, own] : loss.losses) update_mean(name, own, weights.at(name));
  });
  in_microbatch(index, job_.schedule, "in update_metrics", [&] { binding_.update_metrics(index, job_.metrics); });
}

WeightedLoss MicrobatchRunner::run_microbatch(AnyMicrobatch& microbatch, bool is_last, GradientManager& gradients) {
  if (graphs_) {
    return graphs_->run(microbatch, is_last, gradients, [&](AnyMicrobatch& one, bool is_captured) {
      return is_captured ? capture(one) : forward_backward(one, job_.schedule);
    });
  }
  gradients.begin_microbatch(is_last);
  WeightedLoss loss = forward_backward(microbatch, job_.schedule);
  gradients.end_microbatch();
  return loss;
}

void MicrobatchRunner::update_mean(const std::string& name, const at::Tensor& loss, const at::Tensor& weight) {
  auto& mean = (*job_.loss_means)["loss/" + name];
  if (mean == nullptr) mean = std::make_shared<MeanMetric>();
  static_cast<MeanMetric&>(*mean).update(loss, weight);
}

WeightedLoss MicrobatchRunner::forward_backward(AnyMicrobatch& microbatch, const JobSchedule& schedule) {
  const std::int64_t num_before = num_backwards();
  const LossResult result = binding_.forward_with_loss(microbatch, schedule);
  WeightedLoss weighted = with_error_place("in compute_loss", [&] { return weighted_loss(result, microbatch.shares); });
  D9D_CHECK(
      num_backwards() == num_before, StateError,
      "[loop::task] expected forward and compute_loss to leave the backward to the loop, got one of their own, to ",
      "which the loop's would be added. Return the loss instead.");
  if (first_step_ && !job_.clock->is_captured) first_step_->watch(weighted.loss);
  with_error_place("in backward", [&] { weighted.loss.mul(weighted.weight).backward(); });
  return {.loss = weighted.loss.detach(), .weight = weighted.weight.detach(), .losses = std::move(weighted.losses)};
}

// Throws for what a replay would not repeat: asking for the step's number, and drawing random numbers.
WeightedLoss MicrobatchRunner::capture(AnyMicrobatch& microbatch) {
  struct EndCapture {
    bool& is_captured;
    ~EndCapture() { is_captured = false; }
  } const end_capture{job_.clock->is_captured = true};
  return forward_backward(microbatch, job_.schedule.without_step());
}

}  // namespace d9d

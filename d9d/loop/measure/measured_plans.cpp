#include "d9d/loop/measure/measured_plans.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/core/collectives/gather.h"
#include "d9d/core/dtype/scalar_type.h"

namespace d9d {
namespace {

// The ranks that have the same stages as this one.
DeviceMesh ranks_of_stages(const UnbuiltJob& job) {
  return job.context.mesh(MeshDomain::kBatch).slice({"dp", "cp", "tp"});
}

// Returns the largest of each number over the ranks.
std::vector<double> largest(const std::vector<double>& own, const DeviceMesh& ranks) {
  std::vector<double> all = own;
  for (const nlohmann::json& each : all_gather_object(own, ranks)) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], each.at(i).get<double>());
  }
  return all;
}

// Collective. Runs a pass and returns the largest costs of all ranks, since these wait for each other.
PassCosts measure_on(const DeviceMesh& ranks, PipelineStage& stage, const StageSample& sample, const PassKind& kind) {
  (void)all_gather_object(nullptr, ranks);  // so that the other ranks compute too while this one measures
  constexpr double PassCosts::*kCosts[] = {&PassCosts::seconds,        &PassCosts::activation_bytes,
                                           &PassCosts::deferred_bytes, &PassCosts::host_bytes,
                                           &PassCosts::peak_bytes,     &PassCosts::allocated_bytes};
  PassCosts costs = measure_pass(stage, sample, kind);
  std::vector<double> own;
  for (const auto cost : kCosts) own.push_back(costs.*cost);
  const std::vector<double> all = largest(own, ranks);
  for (std::size_t i = 0; i < all.size(); ++i) costs.*kCosts[i] = all[i];
  return costs;
}

// Returns the plan that keeps least on the device: of those that do not offload, unless the host has memory for it.
ActivationPlan most_frugal(const std::vector<ActivationPlan>& plans, bool may_offload) {
  const auto frugality = [](const ActivationPlan& plan) { return std::pair(plan.recompute, plan.offloads); };
  ActivationPlan best;
  for (const ActivationPlan& each : plans) {
    if (each.offloads && !may_offload) continue;
    if (frugality(each) > frugality(best)) best = each;
  }
  return best;
}

void set_plans(const std::vector<Module*>& units, const ActivationPlan& plan) {
  for (Module* const unit : units) unit->set_activation_plan(plan);
}

// Calls `with` for each parameter whose gradient is one of autograd, in a job on one rank: it has the parameter's own
// dtype. One in another dtype is in a bucket, whose memory is there when the first of its gradients comes, and with
// trainer.cuda_graph all are, in memory that stays.
void for_each_late(Module& module, const TrainerConfig& config, const std::function<void(Parameter&)>& with) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    const at::ScalarType dtype = parameter->local().scalar_type();
    if (!parameter->requires_grad()) continue;
    if (gradient_dtype_of(dtype, config.gradient_manager.grad_dtype) == dtype) with(*parameter);
  }
}

// Returns the bytes of gradients that backward makes when it reaches each unit.
double late_gradient_bytes(const std::vector<AlikeUnits>& kinds, const TrainerConfig& config) {
  std::size_t bytes = 0;
  for (const AlikeUnits& kind : kinds) {
    for (Module* const unit : kind.units) {
      for_each_late(*unit, config, [&](Parameter& parameter) { bytes += parameter.local().nbytes(); });
    }
  }
  return static_cast<double>(bytes);
}

// Measures the plans of one stage.
class StagePlans {
 public:
  // room: bytes that a pass may take. All are borrowed.
  StagePlans(const DeviceMesh& ranks, PipelineStage& stage, const StageSample& sample, const PassKind& pass,
             const PassCosts& base, double room)
      : ranks_(ranks), stage_(stage), sample_(sample), pass_(pass), base_(base), room_(room) {}

  // Measures the plans of the units of `kind`, which follow `frugal`, as all other units of the stage do. share: what
  // part of the stage's units one unit is.
  [[nodiscard]] std::vector<PlanCosts> measure(const AlikeUnits& kind, const ActivationPlan& frugal, double share,
                                               bool may_offload) const {
    const PlanCosts of_frugal{.plan = frugal,
                              .seconds = share * base_.seconds,
                              .device_bytes = share * base_.activation_bytes,
                              .host_bytes = share * base_.host_bytes,
                              .working_bytes = working_bytes(base_)};
    std::vector<PlanCosts> costs = {of_frugal};
    for (const ActivationPlan& plan : kind.plans) {
      if (plan == frugal || (plan.offloads && !may_offload)) continue;
      const std::int64_t count = num_that_fit(std::ssize(kind.units), plan);
      if (count == 0) continue;
      const std::vector<Module*> tried(kind.units.end() - count, kind.units.end());
      set_plans(tried, plan);
      const PassCosts pass = measure_on(ranks_, stage_, sample_, pass_);
      set_plans(tried, frugal);
      const auto difference = [&](double PassCosts::*cost) {
        return (pass.*cost - base_.*cost) / static_cast<double>(count);
      };
      costs.push_back({.plan = plan,
                       .seconds = of_frugal.seconds + difference(&PassCosts::seconds),
                       .device_bytes = of_frugal.device_bytes + difference(&PassCosts::activation_bytes),
                       .host_bytes = std::max(0.0, of_frugal.host_bytes + difference(&PassCosts::host_bytes)),
                       .working_bytes = working_bytes(pass)});
    }
    order_by_work(costs);
    return costs;
  }

 private:
  // What computes less takes less, whatever noise says: a plan is faster than each that recomputes or offloads more. A
  // unit that costs more than the average of its stage may be left with less than nothing.
  static void order_by_work(std::vector<PlanCosts>& costs) {
    constexpr double kFaster = 0.005;
    std::ranges::stable_sort(costs, [](const PlanCosts& a, const PlanCosts& b) {
      return std::pair(a.plan.recompute, a.plan.offloads) > std::pair(b.plan.recompute, b.plan.offloads);
    });
    for (std::size_t i = 0; i < costs.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (costs[j].plan.offloads < costs[i].plan.offloads) continue;
        costs[i].seconds = std::min(costs[i].seconds, costs[j].seconds - kFaster * std::abs(costs[j].seconds));
      }
    }
  }

  [[nodiscard]] static double working_bytes(const PassCosts& pass) { return pass.peak_bytes - pass.activation_bytes; }

  // Returns how many of `count` units may follow `plan` in a pass that certainly fits. Backward of a frugal unit makes
  // again what it does not keep, except for what it makes in parts (SwiGLU), which only a unit keeps that recomputes
  // nothing: all that the stage's forward allocates bounds what `count` of these keep, and what backward of one needs.
  [[nodiscard]] std::int64_t num_that_fit(std::int64_t count, const ActivationPlan& plan) const {
    const double working = working_bytes(base_);
    const double of_all = base_.allocated_bytes / static_cast<double>(count);
    const double of_unit = std::max(1.0, plan.recompute == Recompute::kNothing ? of_all : working);
    const double left = room_ - base_.peak_bytes - std::max(0.0, of_unit - working);
    return static_cast<std::int64_t>(std::clamp(std::floor(left / of_unit), 0.0, static_cast<double>(count)));
  }

  const DeviceMesh& ranks_;
  PipelineStage& stage_;
  const StageSample& sample_;
  const PassKind& pass_;
  const PassCosts& base_;
  const double room_;
};

// Collective. Returns the bytes that the budget gives a rank, the same on all of `ranks`.
double budget_bytes(const UnbuiltJob& job, const MeasuredSplit& split, const DeviceMesh& ranks) {
  const MemoryBudgetConfig& budget = job.config.memory_budget.value();
  if (budget.device.size) return static_cast<double>(budget.device.size->bytes);
  return -largest({-split.usable_bytes().value()}, ranks).front();
}

}  // namespace

KeptMoments greatest_moments(const PipelineProgram& program, std::int64_t rank) {
  const auto keeps_as_much = [](const std::vector<WaitingMicrobatches>& a, const std::vector<WaitingMicrobatches>& b) {
    return std::ranges::equal(a, b, [](const WaitingMicrobatches& x, const WaitingMicrobatches& y) {
      return x.for_backward >= y.for_backward && x.for_weights >= y.for_weights;
    });
  };
  KeptMoments greatest;
  for (const std::vector<WaitingMicrobatches>& moment : waiting_microbatches(program, rank)) {
    const auto is_less = [&](const auto& other) { return keeps_as_much(other, moment); };
    if (std::ranges::any_of(greatest, is_less)) continue;
    std::erase_if(greatest, [&](const auto& other) { return keeps_as_much(moment, other); });
    greatest.push_back(moment);
  }
  return greatest;
}

MeasuredPlans measure_plans(const UnbuiltJob& job, MeasuredSplit& split, const MeasuredSplit::Running& running,
                            const KeptMoments& moments, const PassKind& pass, std::int64_t num_microbatches) {
  const DeviceMesh ranks = ranks_of_stages(job);
  const bool may_offload = job.config.memory_budget.value().host.bytes > 0;
  MeasuredPlans measured;
  std::vector<std::vector<ActivationPlan>> frugal(running.stages.size());  // by stage and kind
  for (std::size_t i = 0; i < running.stages.size(); ++i) {
    measured.units.push_back(alike_units(*split.modules()[i]));
    for (const AlikeUnits& kind : measured.units[i]) {
      frugal[i].push_back(most_frugal(kind.plans, may_offload));
      set_plans(kind.units, frugal[i].back());
    }
  }
  std::vector<PassCosts> bases;
  std::vector<StageSample> samples = running.samples;
  std::vector<double> resident;
  for (std::size_t i = 0; i < running.stages.size(); ++i) {
    constexpr double kSeconds = 2, kMostRepeats = 5;  // of each measurement
    samples[i].num_repeats = 1;
    PassCosts first;
    split.count_gradients(i, [&] { first = measure_on(ranks, running.stages[i], samples[i], pass); });
    samples[i].num_repeats = static_cast<std::int64_t>(std::clamp(kSeconds / first.seconds, 1.0, kMostRepeats));
    bases.push_back(samples[i].num_repeats == 1 ? first : measure_on(ranks, running.stages[i], samples[i], pass));
    resident.push_back(split.resident_bytes(i));
  }
  measured.request.device_bytes = budget_bytes(job, split, ranks);
  measured.request.host_bytes = static_cast<double>(job.config.memory_budget->host.bytes);
  // On a GPU what is free, which the optimiser's state does not take yet, whatever the budget is.
  const double usable = split.usable_bytes().value_or(measured.request.device_bytes);
  measured.room_bytes = -largest({split.held_bytes() - usable}, ranks).front();
  resident = largest(resident, ranks);
  measured.makes_gradients = num_microbatches == 1 && moments.size() == 1 && !job.config.cuda_graph &&
                             job.context.mesh_parameters().world_size() == 1;
  measured.request.moment_bytes.assign(moments.size(), 0);
  for (std::size_t i = 0; i < running.stages.size(); ++i) {
    measured.request.resident_bytes += resident[i];
    std::vector<std::int64_t> num_live;
    for (std::size_t moment = 0; moment < moments.size(); ++moment) {
      const WaitingMicrobatches& waiting = moments[moment][i];
      num_live.push_back(waiting.for_backward);
      measured.request.moment_bytes[moment] += static_cast<double>(waiting.for_weights) * bases[i].deferred_bytes;
    }
    std::int64_t num_units = 0;
    for (const AlikeUnits& kind : measured.units[i]) num_units += std::ssize(kind.units);
    if (measured.makes_gradients) {
      measured.request.late_bytes += late_gradient_bytes(measured.units[i], job.config);
    }
    const StagePlans plans(ranks, running.stages[i], samples[i], pass, bases[i], measured.room_bytes);
    for (std::size_t j = 0; j < measured.units[i].size(); ++j) {
      const AlikeUnits& kind = measured.units[i][j];
      measured.request.kinds.push_back(
          {.num_units = std::ssize(kind.units),
           .num_live = num_live,
           .plans = plans.measure(kind, frugal[i][j], 1.0 / static_cast<double>(num_units), may_offload)});
    }
  }
  return measured;
}

double bytes_of_step(const UnbuiltJob& job, MeasuredSplit& split, const MeasuredSplit::Running& running,
                     const PassKind& pass, const MeasuredPlans& measured) {
  std::size_t dropped = 0;
  if (measured.makes_gradients) {
    for_each_late(*split.modules().front(), job.config, [&](Parameter& parameter) {
      at::Tensor& gradient = parameter.local().mutable_grad();
      if (!gradient.defined()) return;
      dropped += gradient.nbytes();
      gradient.reset();
    });
  }
  const double peak = peak_of_pass(running.stages.front(), running.samples.front(), pass);
  const DeviceMesh ranks = ranks_of_stages(job);
  const double beside = largest({peak - static_cast<double>(dropped)}, ranks).front();
  return measured.request.resident_bytes + std::max(0.0, beside);
}

}  // namespace d9d

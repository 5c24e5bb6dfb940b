#include "d9d/loop/measure/choose_activation_plans.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"
#include "d9d/loop/measure/choose_counts.h"

namespace d9d {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

using Bytes = std::vector<double>;

std::set<double> distinct_working_bytes(const std::vector<UnitKind>& kinds) {
  std::set<double> all;
  for (const UnitKind& kind : kinds) {
    for (const PlanCosts& each : kind.plans) all.insert(each.working_bytes);
  }
  return all;
}

// The device bytes at a moment beside those that depend on plans, of plans that need `working`.
double bytes_beside(const ActivationPlanRequest& request, std::size_t moment, double working) {
  return request.resident_bytes - request.late_bytes + request.moment_bytes[moment] + working;
}

// Returns the bytes of the device, and of the host, that the units take at each moment.
std::pair<Bytes, Bytes> bytes_of_units(const ActivationPlanRequest& request,
                                       const std::vector<std::vector<std::int64_t>>& num_units) {
  Bytes device(request.moment_bytes.size(), 0), host = device;
  for (std::size_t kind = 0; kind < num_units.size(); ++kind) {
    for (std::size_t i = 0; i < num_units[kind].size(); ++i) {
      const PlanCosts& plan = request.kinds[kind].plans[i];
      for (std::size_t moment = 0; moment < device.size(); ++moment) {
        const auto count = static_cast<double>(num_units[kind][i] * request.kinds[kind].num_live[moment]);
        device[moment] += count * plan.device_bytes;
        host[moment] += count * plan.host_bytes;
      }
    }
  }
  return {device, host};
}

ActivationPlanChoice choice_of(const ActivationPlanRequest& request, double working,
                               const std::vector<std::vector<std::int64_t>>& num_units) {
  ActivationPlanChoice choice{.num_units = num_units};
  double of_first = kNoLimit;  // what the unit keeps that backward reaches last
  std::int64_t all = 0;
  for (std::size_t kind = 0; kind < num_units.size(); ++kind) {
    all += request.kinds[kind].num_units;
    for (std::size_t i = 0; i < num_units[kind].size(); ++i) {
      const PlanCosts& plan = request.kinds[kind].plans[i];
      choice.seconds += static_cast<double>(num_units[kind][i]) * plan.seconds;
      const auto live = static_cast<double>(request.kinds[kind].num_live.front());
      if (num_units[kind][i] > 0) of_first = std::min(of_first, live * plan.device_bytes);
    }
  }
  const auto [device, host] = bytes_of_units(request, num_units);
  for (std::size_t i = 0; i < device.size(); ++i) {
    choice.device_bytes = std::max(choice.device_bytes, bytes_beside(request, i, working) + device[i]);
    choice.host_bytes = std::max(choice.host_bytes, host[i]);
  }
  if (request.late_bytes == 0) return choice;
  const double at_end = request.resident_bytes - request.late_bytes / static_cast<double>(all) + of_first + working;
  choice.device_bytes = std::max(choice.device_bytes, at_end);
  return choice;
}

// Returns the choice with the least seconds, or with the least device bytes, among plans that need at most `working`,
// which keeps the limits of these moments. by_bytes: there is one moment.
std::optional<ActivationPlanChoice> find_at(const ActivationPlanRequest& request,
                                            const std::vector<std::size_t>& moments, double working, bool by_bytes) {
  CountRequest counts;
  std::vector<std::vector<std::size_t>> plans;  // by kind, of the options
  for (const UnitKind& kind : request.kinds) {
    counts.num_units.push_back(kind.num_units);
    counts.options.emplace_back();
    plans.emplace_back();
    for (std::size_t i = 0; i < kind.plans.size(); ++i) {
      const PlanCosts& plan = kind.plans[i];
      if (plan.working_bytes > working) continue;
      plans.back().push_back(i);
      CountOption& option = counts.options.back().emplace_back(CountOption{.seconds = plan.seconds, .bytes = {}});
      for (const double bytes : {plan.device_bytes, plan.host_bytes}) {
        for (const std::size_t each : moments) option.bytes.push_back(static_cast<double>(kind.num_live[each]) * bytes);
      }
      if (by_bytes) option.seconds = option.bytes.front();
    }
    if (plans.back().empty()) return std::nullopt;
  }
  for (const std::size_t each : moments) {
    counts.limits.push_back(by_bytes ? kNoLimit : request.device_bytes - bytes_beside(request, each, working));
  }
  counts.limits.resize(2 * moments.size(), request.host_bytes);
  const auto chosen = choose_counts(counts);
  if (chosen.empty()) return std::nullopt;
  std::vector<std::vector<std::int64_t>> of_plans;
  for (std::size_t kind = 0; kind < chosen.size(); ++kind) {
    of_plans.emplace_back(request.kinds[kind].plans.size(), 0);
    for (std::size_t i = 0; i < chosen[kind].size(); ++i) of_plans.back()[plans[kind][i]] = chosen[kind][i];
  }
  return choice_of(request, working, of_plans);
}

// Returns the request with one moment, at which everything is as much as at any of its moments.
ActivationPlanRequest with_one_moment(ActivationPlanRequest request) {
  for (UnitKind& kind : request.kinds) kind.num_live = {*std::ranges::max_element(kind.num_live)};
  request.moment_bytes = {*std::ranges::max_element(request.moment_bytes)};
  return request;
}

// Returns the moment at which the device, or the host, has most beside its limit; none if all limits are kept.
std::optional<std::size_t> exceeded_moment(const ActivationPlanRequest& request, const ActivationPlanChoice& choice,
                                           double working) {
  const auto [device, host] = bytes_of_units(request, choice.num_units);
  std::optional<std::size_t> worst;
  double most = 0;
  for (std::size_t i = 0; i < device.size(); ++i) {
    const double above =
        std::max(bytes_beside(request, i, working) + device[i] - request.device_bytes, host[i] - request.host_bytes);
    if (above <= most) continue;
    most = above;
    worst = i;
  }
  return worst;
}

// Returns the moment with the most device bytes where all units follow the plan that `choose` picks of theirs.
template <class Choose>
std::size_t greatest_moment(const ActivationPlanRequest& request, const Choose& choose) {
  Bytes device = request.moment_bytes;
  for (const UnitKind& kind : request.kinds) {
    D9D_ASSERT(kind.num_live.size() == device.size(), "units with other moments than the request");
    const double bytes =
        static_cast<double>(kind.num_units) * choose(kind.plans, {}, &PlanCosts::device_bytes).device_bytes;
    for (std::size_t i = 0; i < device.size(); ++i) device[i] += static_cast<double>(kind.num_live[i]) * bytes;
  }
  return static_cast<std::size_t>(std::ranges::max_element(device) - device.begin());
}

// Returns the choice with the least seconds. Few moments limit it: those whose limits a choice without them exceeds.
std::optional<ActivationPlanChoice> find_fastest(const ActivationPlanRequest& request, double working) {
  std::vector<std::size_t> moments = {greatest_moment(request, std::ranges::max)};
  constexpr std::size_t kMostMoments = 4;
  while (moments.size() <= kMostMoments) {
    auto choice = find_at(request, moments, working, /*by_bytes=*/false);
    if (!choice) return choice;
    const auto exceeded = exceeded_moment(request, *choice, working);
    if (!exceeded && choice->device_bytes > request.device_bytes) return std::nullopt;  // late gradients do not fit
    if (!exceeded) return choice;
    if (std::ranges::find(moments, *exceeded) != moments.end()) break;  // by what rounding leaves
    moments.push_back(*exceeded);
  }
  return find_at(with_one_moment(request), {0}, working, /*by_bytes=*/false);
}

// Returns the choice with the least device bytes, or a little more where another moment needs more host memory.
std::optional<ActivationPlanChoice> find_smallest(const ActivationPlanRequest& request, double working) {
  auto choice = find_at(request, {greatest_moment(request, std::ranges::min)}, working, /*by_bytes=*/true);
  if (!choice || choice->host_bytes <= request.host_bytes) return choice;
  return find_at(with_one_moment(request), {0}, working, /*by_bytes=*/true);
}

std::optional<ActivationPlanChoice> best_of(const ActivationPlanRequest& request, bool by_bytes) {
  const auto cost = by_bytes ? &ActivationPlanChoice::device_bytes : &ActivationPlanChoice::seconds;
  std::optional<ActivationPlanChoice> best;
  for (const double working : distinct_working_bytes(request.kinds)) {
    auto found = by_bytes ? find_smallest(request, working) : find_fastest(request, working);
    if (found && (!best || *found.*cost < *best.*cost)) best = std::move(found);
  }
  return best;
}

}  // namespace

ActivationPlanChoice choose_activation_plans(const ActivationPlanRequest& request) {
  D9D_CHECK(!request.kinds.empty(), StateError, "[loop::memory_budget] expected units to choose plans for, got none.");
  if (auto best = best_of(request, /*by_bytes=*/false)) return *std::move(best);
  const auto least = best_of(request, /*by_bytes=*/true);
  D9D_CHECK(least.has_value(), ConfigError, "[loop::memory_budget] expected trainer.memory_budget.host to hold what ",
            "units keep in host memory, got ", byte_size_text(request.host_bytes), ". Raise it.");
  throw ConfigError(cat(
      "[loop::memory_budget] expected trainer.memory_budget.device of at least ", byte_size_text(least->device_bytes),
      ", of which the rank keeps ", byte_size_text(request.resident_bytes), " all the time, with ",
      byte_size_text(least->host_bytes), " of host memory, got ", byte_size_text(request.device_bytes),
      ". Raise it or trainer.memory_budget.host, lower data.microbatch_size, or divide the model "
      "among more ranks (docs/out_of_memory.md)."));
}

}  // namespace d9d

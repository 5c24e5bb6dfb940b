#include "d9d/loop/measure/choose_activation_plans.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"

namespace d9d {
namespace {

constexpr double kTolerance = 1e-3;  // by how much of its time a choice may be slower than the best
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// A plan as the search sees it: bytes of all live microbatches.
struct Option {
  std::size_t plan = 0;  // index in UnitKind::plans
  double seconds = 0;
  double device = 0;
  double host = 0;
  double reduced = 0;  // by how much the bound rises for each unit that follows the plan
};

struct Bytes {
  double device = 0;
  double host = 0;
};

// Finds the counts of plans with the least sum of seconds whose bytes are within limits.
//
// For any price of a byte of each memory, the sum over all units of the cheapest seconds + prices * bytes, less
// prices * limits, is a lower bound of the time. A choice exceeds it by what its plans are dearer than their kinds'
// cheapest (Option::reduced), and by the price of the bytes that it leaves free. The prices are those with the
// largest bound. The search tries only counts that exceed it by little, and more until some fit.
class Search {
 public:
  Search(std::vector<std::int64_t> num_units, std::vector<std::vector<Option>> options, Bytes limits)
      : num_units_(std::move(num_units)), options_(std::move(options)), limits_(limits) {
    price();
    least_.resize(options_.size() + 1);
    most_.resize(options_.size() + 1);
    for (std::size_t kind = options_.size(); kind-- > 0;) {
      const auto units = static_cast<double>(num_units_[kind]);
      least_[kind] = {least_[kind + 1].device + units * least_of(kind, &Option::device),
                      least_[kind + 1].host + units * least_of(kind, &Option::host)};
      most_[kind] = {most_[kind + 1].device + units * most_of(kind, &Option::device),
                     most_[kind + 1].host + units * most_of(kind, &Option::host)};
    }
    counts_.resize(options_.size());
  }

  // Returns, for each kind and option, how many units follow it; empty if nothing fits.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> run() {
    double all = price_of(limits_);  // no choice exceeds the bound by more
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      all += static_cast<double>(num_units_[kind]) * most_of(kind, &Option::reduced);
    }
    constexpr double kMore = 4;
    for (double excess = kTolerance * std::abs(bound_); best_counts_.empty(); excess *= kMore) {
      const bool is_last = excess >= all || excess == 0;
      limit_ = is_last ? kUnbounded : excess;
      visit_kind(0, {});
      if (is_last) break;
    }
    return best_counts_;
  }

  [[nodiscard]] const std::vector<std::vector<Option>>& options() const { return options_; }

 private:
  struct Sums {
    double seconds = 0;
    double device = 0;
    double host = 0;
    double reduced = 0;
  };

  [[nodiscard]] double least_of(std::size_t kind, double Option::*cost) const {
    return std::ranges::min(options_[kind], {}, cost).*cost;
  }
  [[nodiscard]] double most_of(std::size_t kind, double Option::*cost) const {
    return std::ranges::max(options_[kind], {}, cost).*cost;
  }

  [[nodiscard]] static double priced(const Option& option, const Bytes& prices) {
    return option.seconds + prices.device * option.device + prices.host * option.host;
  }
  [[nodiscard]] double cheapest(std::size_t kind, const Bytes& prices) const {
    double least = kUnbounded;
    for (const Option& each : options_[kind]) least = std::min(least, priced(each, prices));
    return least;
  }
  [[nodiscard]] double bound(const Bytes& prices) const {
    double sum = 0;
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      sum += static_cast<double>(num_units_[kind]) * cheapest(kind, prices);
    }
    if (prices.device > 0) sum -= prices.device * limits_.device;
    if (prices.host > 0) sum -= prices.host * limits_.host;
    return sum;
  }
  [[nodiscard]] double price_of(const Bytes& bytes) const {
    double sum = 0;
    if (prices_.device > 0) sum += prices_.device * std::max(0.0, bytes.device);
    if (prices_.host > 0) sum += prices_.host * std::max(0.0, bytes.host);
    return sum;
  }

  // Returns a price at which no unit would take more of these bytes than it must, whatever those of the host cost.
  [[nodiscard]] double highest_price(double Option::*bytes) const {
    double highest = 0;
    for (const auto& of_kind : options_) {
      for (const Option& from : of_kind) {
        for (const Option& to : of_kind) {
          if (from.*bytes <= to.*bytes) continue;
          highest = std::max(highest, (to.seconds - from.seconds) / (from.*bytes - to.*bytes));
        }
      }
    }
    return 2 * highest;
  }

  // Returns where a concave function on [0, end] is largest, nearly.
  template <class Function>
  [[nodiscard]] static double largest_at(double end, const Function& function) {
    constexpr int kNumSteps = 60;
    double begin = 0;
    for (int i = 0; i < kNumSteps; ++i) {
      const double left = begin + (end - begin) / 3, right = end - (end - begin) / 3;
      function(left) < function(right) ? begin = left : end = right;
    }
    return (begin + end) / 2;
  }

  void price() {
    const double highest_device = std::isinf(limits_.device) ? 0 : highest_price(&Option::device);
    const double highest_host = std::isinf(limits_.host) ? 0 : highest_price(&Option::host);
    const auto host_at = [&](double device) {
      return largest_at(highest_host, [&](double host) { return bound({device, host}); });
    };
    prices_.device = largest_at(highest_device, [&](double device) { return bound({device, host_at(device)}); });
    prices_.host = host_at(prices_.device);
    if (bound(prices_) < bound({})) prices_ = {};
    bound_ = bound(prices_);
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      const double least = cheapest(kind, prices_);
      for (Option& each : options_[kind]) each.reduced = priced(each, prices_) - least;
      std::ranges::stable_sort(options_[kind], {}, &Option::reduced);
    }
  }

  void visit_kind(std::size_t kind, const Sums& sums) {
    if (kind == options_.size()) {
      best_counts_ = counts_;
      limit_ = sums.seconds - bound_ - kTolerance * std::abs(sums.seconds);
      return;
    }
    counts_[kind].assign(options_[kind].size(), 0);
    visit_option(kind, 0, num_units_[kind], sums);
  }

  // Tries how many of the `num_left` units of the kind follow the option.
  void visit_option(std::size_t kind, std::size_t index, std::int64_t num_left, const Sums& sums) {
    const Option& option = options_[kind][index];
    const bool is_last = index + 1 == options_[kind].size();
    for (std::int64_t count = num_left; count >= 0; --count) {
      const auto units = static_cast<double>(count), rest = static_cast<double>(num_left - count);
      const Sums with{sums.seconds + units * option.seconds, sums.device + units * option.device,
                      sums.host + units * option.host, sums.reduced + units * option.reduced};
      const Bytes& least = least_[kind + 1];
      const Bytes& most = most_[kind + 1];
      const bool fits = with.device + rest * least_of(kind, &Option::device) + least.device <= limits_.device &&
                        with.host + rest * least_of(kind, &Option::host) + least.host <= limits_.host;
      const Bytes left{limits_.device - with.device - rest * most_of(kind, &Option::device) - most.device,
                       limits_.host - with.host - rest * most_of(kind, &Option::host) - most.host};
      if (fits && with.reduced + price_of(left) <= limit_) {
        counts_[kind][index] = count;
        is_last || rest == 0 ? visit_kind(kind + 1, with) : visit_option(kind, index + 1, num_left - count, with);
        counts_[kind][index] = 0;
      }
      if (is_last) return;  // all that are left
    }
  }

  const std::vector<std::int64_t> num_units_;
  std::vector<std::vector<Option>> options_;  // by kind, the cheapest first
  const Bytes limits_;
  Bytes prices_;
  double bound_ = 0;          // of the seconds of any choice that fits
  std::vector<Bytes> least_;  // that the kinds from this one on take
  std::vector<Bytes> most_;   // likewise
  std::vector<std::vector<std::int64_t>> counts_;
  double limit_ = kUnbounded;  // how much a choice may exceed the bound to be tried
  std::vector<std::vector<std::int64_t>> best_counts_;
};

std::set<double> distinct_working_bytes(const std::vector<UnitKind>& kinds) {
  std::set<double> all;
  for (const UnitKind& kind : kinds) {
    for (const PlanCosts& each : kind.plans) all.insert(each.working_bytes);
  }
  return all;
}

// Returns the choice with the least seconds, or with the least device bytes, among plans that need at most `working`.
std::optional<ActivationPlanChoice> find(const ActivationPlanRequest& request, double working, bool by_bytes) {
  std::vector<std::int64_t> num_units;
  std::vector<std::vector<Option>> options;
  for (const UnitKind& kind : request.kinds) {
    const auto live = static_cast<double>(kind.num_live);
    num_units.push_back(kind.num_units);
    options.emplace_back();
    for (std::size_t i = 0; i < kind.plans.size(); ++i) {
      const PlanCosts& plan = kind.plans[i];
      if (plan.working_bytes > working) continue;
      options.back().push_back({.plan = i,
                                .seconds = by_bytes ? live * plan.device_bytes : plan.seconds,
                                .device = live * plan.device_bytes,
                                .host = live * plan.host_bytes});
    }
    if (options.back().empty()) return std::nullopt;
  }
  const double early = request.resident_bytes - request.late_bytes;
  const double device = by_bytes ? kUnbounded : request.device_bytes - early - working;
  Search search(num_units, std::move(options), {.device = device, .host = request.host_bytes});
  const auto counts = search.run();
  if (counts.empty()) return std::nullopt;
  ActivationPlanChoice choice{.device_bytes = early + working};
  double of_first = kUnbounded;  // what the unit keeps that backward reaches last
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    choice.num_units.emplace_back(request.kinds[kind].plans.size(), 0);
    for (std::size_t i = 0; i < counts[kind].size(); ++i) {
      const Option& option = search.options()[kind][i];
      const auto units = static_cast<double>(counts[kind][i]);
      choice.num_units.back()[option.plan] = counts[kind][i];
      choice.seconds += units * request.kinds[kind].plans[option.plan].seconds;
      choice.device_bytes += units * option.device;
      if (units > 0) of_first = std::min(of_first, option.device);
      choice.host_bytes += units * option.host;
    }
  }
  const auto all = static_cast<double>(std::accumulate(num_units.begin(), num_units.end(), std::int64_t{0}));
  const double at_end = request.resident_bytes - request.late_bytes / all + of_first + working;
  choice.device_bytes = std::max(choice.device_bytes, at_end);
  if (!by_bytes && choice.device_bytes > request.device_bytes) return std::nullopt;
  return choice;
}

std::optional<ActivationPlanChoice> best_of(const ActivationPlanRequest& request, bool by_bytes) {
  const auto cost = by_bytes ? &ActivationPlanChoice::device_bytes : &ActivationPlanChoice::seconds;
  std::optional<ActivationPlanChoice> best;
  for (const double working : distinct_working_bytes(request.kinds)) {
    auto found = find(request, working, by_bytes);
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

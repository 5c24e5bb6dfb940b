#include "d9d/loop/measure/choose_activation_plans.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"

namespace d9d {
namespace {

constexpr double kTolerance = 1e-3;             // by how much of its time a choice may be slower than the best
constexpr std::int64_t kMostTried = 1'000'000;  // counts, before the best choice so far is taken
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// Bytes of the device at each moment, then those of the host.
using Bytes = std::vector<double>;

// A plan as the search sees it.
struct Option {
  std::size_t plan = 0;  // index in UnitKind::plans
  double seconds = 0;
  Bytes bytes;         // of all live microbatches
  double reduced = 0;  // by how much the bound rises for each unit that follows the plan
};

void add(Bytes& to, double count, const Bytes& bytes) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += count * bytes[i];
}

// Returns where a concave function on the box from 0 to 1 in each of `num_dims` >= 2 dims is largest, nearly, by the
// ellipsoid method (Shor 1977; Bland, Goldfarb, Todd 1981). slope: returns the value, and a supergradient.
std::vector<double> largest_in_box(
    std::size_t num_dims, const std::function<double(const std::vector<double>&, std::vector<double>&)>& slope) {
  const auto n = static_cast<double>(num_dims);
  std::vector<double> center(num_dims, 0.5), best(num_dims, 0), gradient(num_dims), step(num_dims);
  std::vector<double> ellipsoid(num_dims * num_dims, 0);  // around the box at first
  for (std::size_t i = 0; i < num_dims; ++i) ellipsoid[i * num_dims + i] = n / 4;
  double most = slope(best, gradient);
  constexpr double kHalvings = 20;  // of the error, in each dim
  for (double left = 2 * n * n * kHalvings; left > 0; --left) {
    const auto outside = std::ranges::find_if(center, [](double x) { return x < 0 || x > 1; });
    if (outside != center.end()) {
      std::ranges::fill(gradient, 0);
      gradient[static_cast<std::size_t>(outside - center.begin())] = *outside < 0 ? 1 : -1;
    } else if (const double value = slope(center, gradient); value > most) {
      most = value;
      best = center;
    }
    double length = 0;  // of the gradient, as the ellipsoid measures
    for (std::size_t i = 0; i < num_dims; ++i) {
      step[i] = 0;
      for (std::size_t j = 0; j < num_dims; ++j) step[i] += ellipsoid[i * num_dims + j] * gradient[j];
      length += step[i] * gradient[i];
    }
    if (!(length > 0)) break;
    for (double& each : step) each /= std::sqrt(length);
    for (std::size_t i = 0; i < num_dims; ++i) {
      center[i] += step[i] / (n + 1);
      for (std::size_t j = 0; j < num_dims; ++j) {
        double& each = ellipsoid[i * num_dims + j];
        each = n * n / (n * n - 1) * (each - 2 / (n + 1) * step[i] * step[j]);
      }
    }
  }
  return best;
}

// Finds the counts of plans with the least sum of seconds whose bytes are within limits.
//
// For any price of a byte of each memory and moment, the sum over all units of the cheapest seconds + prices * bytes,
// less prices * limits, is a lower bound of the time. A choice exceeds it by what its plans are dearer than their kinds'
// cheapest (Option::reduced), and by the price of the bytes that it leaves free. The prices are those with the
// largest bound. The search tries only counts that exceed it by little, and more until some fit. Where very many exceed
// it by as little, it improves the best of those that it has tried, by changes of one and of two units.
class Search {
 public:
  Search(std::vector<std::int64_t> num_units, std::vector<std::vector<Option>> options, Bytes limits)
      : num_units_(std::move(num_units)), options_(std::move(options)), limits_(std::move(limits)) {
    price();
    least_.assign(options_.size() + 1, Bytes(limits_.size(), 0));
    most_ = least_;
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      least_of_kind_.push_back(extreme_of(kind, [](double a, double b) { return std::min(a, b); }));
      most_of_kind_.push_back(extreme_of(kind, [](double a, double b) { return std::max(a, b); }));
    }
    for (std::size_t kind = options_.size(); kind-- > 0;) {
      const auto units = static_cast<double>(num_units_[kind]);
      least_[kind] = least_[kind + 1];
      most_[kind] = most_[kind + 1];
      add(least_[kind], units, least_of_kind_[kind]);
      add(most_[kind], units, most_of_kind_[kind]);
    }
    counts_.resize(options_.size());
  }

  // Returns, for each kind and option, how many units follow it; empty if nothing fits.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> run() {
    const Sums nothing{.bytes = Bytes(limits_.size(), 0)};
    double all = price_of(limits_);  // no choice exceeds the bound by more
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      const auto dearest = std::ranges::max(options_[kind], {}, &Option::reduced);
      all += static_cast<double>(num_units_[kind]) * dearest.reduced;
    }
    constexpr double kMore = 4;
    for (double excess = kTolerance * std::abs(bound_); best_counts_.empty(); excess *= kMore) {
      const bool is_last = excess >= all || excess == 0;
      limit_ = is_last ? kUnbounded : excess;
      num_tried_ = 0;
      visit_kind(0, nothing);
      if (is_last) break;
    }
    if (num_tried_ > kMostTried) improve();
    return best_counts_;
  }

  [[nodiscard]] const std::vector<std::vector<Option>>& options() const { return options_; }

 private:
  struct Sums {
    double seconds = 0;
    double reduced = 0;
    Bytes bytes;
  };

  [[nodiscard]] Bytes extreme_of(std::size_t kind, double (*extreme)(double, double)) const {
    Bytes bytes = options_[kind].front().bytes;
    for (const Option& each : options_[kind]) {
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = extreme(bytes[i], each.bytes[i]);
    }
    return bytes;
  }

  // Of what has a price.
  [[nodiscard]] static double priced(const Bytes& prices, const Bytes& bytes) {
    double sum = 0;
    for (std::size_t i = 0; i < prices.size(); ++i) {
      if (prices[i] > 0) sum += prices[i] * bytes[i];
    }
    return sum;
  }
  [[nodiscard]] const Option& cheapest(std::size_t kind, const Bytes& prices) const {
    const auto cost = [&](const Option& each) { return each.seconds + priced(prices, each.bytes); };
    return *std::ranges::min_element(options_[kind], {}, cost);
  }
  // excess: set to the bytes of the cheapest choice less the limits.
  [[nodiscard]] double bound(const Bytes& prices, Bytes& excess) const {
    double sum = -priced(prices, limits_);
    for (std::size_t i = 0; i < excess.size(); ++i) excess[i] = -limits_[i];
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      const auto units = static_cast<double>(num_units_[kind]);
      const Option& option = cheapest(kind, prices);
      sum += units * (option.seconds + priced(prices, option.bytes));
      add(excess, units, option.bytes);
    }
    return sum;
  }
  [[nodiscard]] double price_of(const Bytes& bytes) const {
    double sum = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (prices_[i] > 0) sum += prices_[i] * std::max(0.0, bytes[i]);
    }
    return sum;
  }

  // Returns a price at which no unit would take more of these bytes than it must, whatever others cost.
  [[nodiscard]] double highest_price(std::size_t bytes) const {
    if (std::isinf(limits_[bytes])) return 0;
    double highest = 0;
    for (const auto& of_kind : options_) {
      for (const Option& from : of_kind) {
        for (const Option& to : of_kind) {
          const double saved = from.bytes[bytes] - to.bytes[bytes];
          if (saved > 0) highest = std::max(highest, (to.seconds - from.seconds) / saved);
        }
      }
    }
    return 2 * highest;
  }

  void price() {
    Bytes highest;
    for (std::size_t i = 0; i < limits_.size(); ++i) highest.push_back(highest_price(i));
    const auto prices_at = [&](const std::vector<double>& parts) {
      Bytes prices = highest;
      for (std::size_t i = 0; i < prices.size(); ++i) prices[i] *= parts[i];
      return prices;
    };
    prices_ = prices_at(largest_in_box(limits_.size(), [&](const std::vector<double>& parts, Bytes& slope) {
      const double value = bound(prices_at(parts), slope);
      for (std::size_t i = 0; i < slope.size(); ++i) slope[i] = highest[i] > 0 ? highest[i] * slope[i] : 0;
      return value;
    }));
    Bytes excess(limits_.size());
    bound_ = bound(prices_, excess);
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      const Option& best = cheapest(kind, prices_);
      const double least = best.seconds + priced(prices_, best.bytes);
      for (Option& each : options_[kind]) each.reduced = each.seconds + priced(prices_, each.bytes) - least;
      std::ranges::stable_sort(options_[kind], {}, &Option::reduced);
    }
  }

  // One unit that follows another plan.
  struct Change {
    std::size_t kind = 0, from = 0, to = 0;
    double seconds = 0;
    Bytes bytes;
  };

  [[nodiscard]] std::vector<Change> possible_changes() const {
    std::vector<Change> changes;
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      for (std::size_t from = 0; from < options_[kind].size(); ++from) {
        for (std::size_t to = 0; to < options_[kind].size(); ++to) {
          if (from == to || best_counts_[kind][from] == 0) continue;
          const Option &old = options_[kind][from], &other = options_[kind][to];
          Change& change = changes.emplace_back(Change{
              .kind = kind, .from = from, .to = to, .seconds = other.seconds - old.seconds, .bytes = other.bytes});
          add(change.bytes, -1, old.bytes);
        }
      }
    }
    return changes;
  }

  // Makes the best change of one or two units of the choice for as long as that saves time.
  void improve() {
    Bytes left = limits_;
    double seconds = 0;
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      for (std::size_t i = 0; i < options_[kind].size(); ++i) {
        const auto units = static_cast<double>(best_counts_[kind][i]);
        add(left, -units, options_[kind][i].bytes);
        seconds += units * options_[kind][i].seconds;
      }
    }
    constexpr double kLeast = 1e-5;  // of the time
    while (true) {
      const std::vector<Change> changes = possible_changes();
      std::vector<const Change*> best;
      double saves = kLeast * std::abs(seconds);
      const auto consider = [&](const std::vector<const Change*>& together) {
        double saved = 0;
        for (const Change* each : together) saved -= each->seconds;
        if (saved <= saves) return;
        for (std::size_t i = 0; i < left.size(); ++i) {
          double bytes = 0;
          for (const Change* each : together) bytes += each->bytes[i];
          if (bytes > left[i]) return;
        }
        saves = saved;
        best = together;
      };
      for (std::size_t i = 0; i < changes.size(); ++i) {
        const Change& one = changes[i];
        consider({&one});
        for (std::size_t j = i; j < changes.size(); ++j) {
          const Change& other = changes[j];
          const bool is_of_same = one.kind == other.kind && one.from == other.from;
          if (!is_of_same || best_counts_[one.kind][one.from] > 1) consider({&one, &other});
        }
      }
      if (best.empty()) return;
      for (const Change* each : best) {
        --best_counts_[each->kind][each->from];
        ++best_counts_[each->kind][each->to];
        add(left, -1, each->bytes);
      }
      seconds -= saves;
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
      if (++num_tried_ > kMostTried && (limit_ < kUnbounded || !best_counts_.empty())) return;
      const auto units = static_cast<double>(count), rest = static_cast<double>(num_left - count);
      Sums with{sums.seconds + units * option.seconds, sums.reduced + units * option.reduced, sums.bytes};
      add(with.bytes, units, option.bytes);
      bool fits = true;
      double price_of_left = 0;
      for (std::size_t i = 0; i < limits_.size(); ++i) {
        fits = fits && with.bytes[i] + rest * least_of_kind_[kind][i] + least_[kind + 1][i] <= limits_[i];
        const double left = limits_[i] - with.bytes[i] - rest * most_of_kind_[kind][i] - most_[kind + 1][i];
        if (prices_[i] > 0) price_of_left += prices_[i] * std::max(0.0, left);
      }
      if (fits && with.reduced + price_of_left <= limit_) {
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
  double bound_ = 0;                  // of the seconds of any choice that fits
  std::vector<Bytes> least_of_kind_;  // that one unit takes
  std::vector<Bytes> most_of_kind_;
  std::vector<Bytes> least_;  // that the kinds from this one on take
  std::vector<Bytes> most_;   // likewise
  std::vector<std::vector<std::int64_t>> counts_;
  double limit_ = kUnbounded;   // how much a choice may exceed the bound to be tried
  std::int64_t num_tried_ = 0;  // counts, with this limit or one that was as large
  std::vector<std::vector<std::int64_t>> best_counts_;
};

std::set<double> distinct_working_bytes(const std::vector<UnitKind>& kinds) {
  std::set<double> all;
  for (const UnitKind& kind : kinds) {
    for (const PlanCosts& each : kind.plans) all.insert(each.working_bytes);
  }
  return all;
}

// Returns the choice with the least seconds, or with few device bytes, among plans that need at most `working`.
std::optional<ActivationPlanChoice> find(const ActivationPlanRequest& request, double working, bool by_bytes) {
  const std::size_t num_moments = request.moment_bytes.size();
  std::vector<std::int64_t> num_units;
  std::vector<std::vector<Option>> options;
  for (const UnitKind& kind : request.kinds) {
    D9D_ASSERT(kind.num_live.size() == num_moments, "units with other moments than the request");
    num_units.push_back(kind.num_units);
    options.emplace_back();
    for (std::size_t i = 0; i < kind.plans.size(); ++i) {
      const PlanCosts& plan = kind.plans[i];
      if (plan.working_bytes > working) continue;
      Option& option = options.back().emplace_back(Option{.plan = i, .seconds = plan.seconds});
      for (const double bytes : {plan.device_bytes, plan.host_bytes}) {
        for (const std::int64_t live : kind.num_live) option.bytes.push_back(static_cast<double>(live) * bytes);
      }
      const auto on_device = option.bytes.begin() + static_cast<std::ptrdiff_t>(num_moments);
      if (by_bytes) option.seconds = *std::max_element(option.bytes.begin(), on_device);
    }
    if (options.back().empty()) return std::nullopt;
  }
  const double early = request.resident_bytes - request.late_bytes;
  Bytes limits;
  for (const double beside : request.moment_bytes) {
    limits.push_back(by_bytes ? kUnbounded : request.device_bytes - early - beside - working);
  }
  limits.resize(2 * num_moments, request.host_bytes);
  Search search(num_units, std::move(options), limits);
  const auto counts = search.run();
  if (counts.empty()) return std::nullopt;
  ActivationPlanChoice choice;
  Bytes bytes(2 * num_moments, 0);
  double of_first = kUnbounded;  // what the unit keeps that backward reaches last
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    choice.num_units.emplace_back(request.kinds[kind].plans.size(), 0);
    for (std::size_t i = 0; i < counts[kind].size(); ++i) {
      const Option& option = search.options()[kind][i];
      const auto units = static_cast<double>(counts[kind][i]);
      choice.num_units.back()[option.plan] = counts[kind][i];
      choice.seconds += units * request.kinds[kind].plans[option.plan].seconds;
      add(bytes, units, option.bytes);
      if (units > 0) of_first = std::min(of_first, option.bytes.front());
    }
  }
  for (std::size_t i = 0; i < num_moments; ++i) {
    choice.device_bytes = std::max(choice.device_bytes, early + request.moment_bytes[i] + bytes[i] + working);
    choice.host_bytes = std::max(choice.host_bytes, bytes[num_moments + i]);
  }
  const auto all = static_cast<double>(std::accumulate(num_units.begin(), num_units.end(), std::int64_t{0}));
  const double at_end = request.resident_bytes - request.late_bytes / all + of_first + working;
  if (request.late_bytes > 0) choice.device_bytes = std::max(choice.device_bytes, at_end);
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

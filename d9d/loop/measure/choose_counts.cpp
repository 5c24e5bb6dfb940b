#include "d9d/loop/measure/choose_counts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace d9d {
namespace {

constexpr double kTolerance = 1e-3;             // by how much of its time a choice may be slower than the best
constexpr std::int64_t kMostTried = 1'000'000;  // counts, before changes of units take over
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

using Bytes = std::vector<double>;
using Counts = std::vector<std::vector<std::int64_t>>;  // by kind and option

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

// Prices of a byte of each limit. For any prices the sum over all units of the cheapest seconds + prices * bytes, less
// prices * limits, is a lower bound of the time. These have nearly the largest bound.
class Prices {
 public:
  explicit Prices(const CountRequest& request) : request_(request) {
    Bytes highest;
    for (std::size_t i = 0; i < request_.limits.size(); ++i) highest.push_back(highest_price(i));
    const auto prices_at = [&](const std::vector<double>& parts) {
      Bytes prices = highest;
      for (std::size_t i = 0; i < prices.size(); ++i) prices[i] *= parts[i];
      return prices;
    };
    prices_ = prices_at(largest_in_box(highest.size(), [&](const std::vector<double>& parts, Bytes& slope) {
      prices_ = prices_at(parts);
      const double value = bound(slope);
      for (std::size_t i = 0; i < slope.size(); ++i) slope[i] = highest[i] > 0 ? highest[i] * slope[i] : 0;
      return value;
    }));
    Bytes excess(highest.size());
    bound_ = bound(excess);
  }

  [[nodiscard]] double bound() const { return bound_; }
  [[nodiscard]] double of_limit(std::size_t limit) const { return prices_[limit]; }
  [[nodiscard]] double cost_of(const CountOption& option) const { return option.seconds + price_of(option.bytes); }
  // Counts only bytes that have a price, since limits of others may be infinite.
  [[nodiscard]] double price_of(const Bytes& bytes) const {
    double sum = 0;
    for (std::size_t i = 0; i < prices_.size(); ++i) {
      if (prices_[i] > 0) sum += prices_[i] * bytes[i];
    }
    return sum;
  }
  [[nodiscard]] const CountOption& cheapest(std::size_t kind) const {
    return *std::ranges::min_element(request_.options[kind], {},
                                     [&](const CountOption& each) { return cost_of(each); });
  }

 private:
  // excess: set to the bytes of the cheapest options less the limits.
  [[nodiscard]] double bound(Bytes& excess) const {
    double sum = -price_of(request_.limits);
    for (std::size_t i = 0; i < excess.size(); ++i) excess[i] = -request_.limits[i];
    for (std::size_t kind = 0; kind < request_.options.size(); ++kind) {
      const auto units = static_cast<double>(request_.num_units[kind]);
      const CountOption& option = cheapest(kind);
      sum += units * cost_of(option);
      add(excess, units, option.bytes);
    }
    return sum;
  }

  // Returns a price at which no unit would take more of these bytes than it must, whatever others cost.
  [[nodiscard]] double highest_price(std::size_t limit) const {
    if (std::isinf(request_.limits[limit])) return 0;
    double highest = 0;
    for (const auto& of_kind : request_.options) {
      for (const CountOption& from : of_kind) {
        for (const CountOption& to : of_kind) {
          const double saved = from.bytes[limit] - to.bytes[limit];
          if (saved > 0) highest = std::max(highest, (to.seconds - from.seconds) / saved);
        }
      }
    }
    return 2 * highest;
  }

  const CountRequest& request_;
  Bytes prices_;
  double bound_ = 0;
};

// Tries counts. A choice exceeds the bound of the prices by what its options are dearer than the cheapest of their
// kinds (`reduced`), and by the price of the bytes that it leaves free. The search tries only counts that exceed the
// bound by little, and more until some fit.
class Search {
 public:
  Search(const CountRequest& request, const Prices& prices) : request_(request), prices_(prices) {
    const std::size_t num_kinds = request_.options.size(), num_limits = request_.limits.size();
    for (std::size_t kind = 0; kind < num_kinds; ++kind) {
      const double least = prices_.cost_of(prices_.cheapest(kind));
      options_.emplace_back();
      for (std::size_t i = 0; i < request_.options[kind].size(); ++i) {
        const CountOption& option = request_.options[kind][i];
        options_[kind].push_back({&option, i, prices_.cost_of(option) - least});
      }
      std::ranges::stable_sort(options_[kind], {}, &Priced::reduced);
      least_of_kind_.push_back(extreme_of(kind, [](double a, double b) { return std::min(a, b); }));
      most_of_kind_.push_back(extreme_of(kind, [](double a, double b) { return std::max(a, b); }));
      counts_.emplace_back(options_[kind].size(), 0);
    }
    least_.assign(num_kinds + 1, Bytes(num_limits, 0));
    most_ = least_;
    for (std::size_t kind = num_kinds; kind-- > 0;) {
      const auto units = static_cast<double>(request_.num_units[kind]);
      least_[kind] = least_[kind + 1];
      most_[kind] = most_[kind + 1];
      add(least_[kind], units, least_of_kind_[kind]);
      add(most_[kind], units, most_of_kind_[kind]);
    }
  }

  // Returns the best counts found; empty if there are none.
  [[nodiscard]] Counts run() {
    const Sums nothing{.bytes = Bytes(request_.limits.size(), 0)};
    double all = 0;  // no choice exceeds the bound by more
    for (std::size_t i = 0; i < request_.limits.size(); ++i) {
      if (prices_.of_limit(i) > 0) all += prices_.of_limit(i) * std::max(0.0, request_.limits[i]);
    }
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      all += static_cast<double>(request_.num_units[kind]) * options_[kind].back().reduced;
    }
    constexpr double kMore = 4;
    for (double excess = kTolerance * std::abs(prices_.bound()); best_counts_.empty(); excess *= kMore) {
      const bool is_last = excess >= all || excess == 0;
      limit_ = is_last ? kUnbounded : excess;
      num_tried_ = 0;
      visit_kind(0, nothing);
      if (is_last) break;
    }
    return best_counts_;
  }
  [[nodiscard]] bool has_tried_all() const { return num_tried_ <= kMostTried; }

 private:
  struct Priced {
    const CountOption* option = nullptr;
    std::size_t index = 0;  // in the request
    double reduced = 0;     // by how much the bound rises for each unit that follows the option
  };
  struct Sums {
    double seconds = 0;
    double reduced = 0;
    Bytes bytes;
  };

  [[nodiscard]] Bytes extreme_of(std::size_t kind, double (*extreme)(double, double)) const {
    Bytes bytes = request_.options[kind].front().bytes;
    for (const CountOption& each : request_.options[kind]) {
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = extreme(bytes[i], each.bytes[i]);
    }
    return bytes;
  }

  void visit_kind(std::size_t kind, const Sums& sums) {
    if (kind == options_.size()) {
      best_counts_ = counts_;
      limit_ = sums.seconds - prices_.bound() - kTolerance * std::abs(sums.seconds);
      return;
    }
    counts_[kind].assign(options_[kind].size(), 0);
    visit_option(kind, 0, request_.num_units[kind], sums);
  }

  // Tries how many of the `num_left` units of the kind follow the option.
  void visit_option(std::size_t kind, std::size_t index, std::int64_t num_left, const Sums& sums) {
    const Priced& priced = options_[kind][index];
    const bool is_last = index + 1 == options_[kind].size();
    for (std::int64_t count = num_left; count >= 0; --count) {
      if (++num_tried_ > kMostTried) return;
      const auto units = static_cast<double>(count), rest = static_cast<double>(num_left - count);
      Sums with{sums.seconds + units * priced.option->seconds, sums.reduced + units * priced.reduced, sums.bytes};
      add(with.bytes, units, priced.option->bytes);
      bool fits = true;
      double price_of_left = 0;
      for (std::size_t i = 0; i < request_.limits.size(); ++i) {
        const double limit = request_.limits[i];
        fits = fits && with.bytes[i] + rest * least_of_kind_[kind][i] + least_[kind + 1][i] <= limit;
        const double left = limit - with.bytes[i] - rest * most_of_kind_[kind][i] - most_[kind + 1][i];
        if (prices_.of_limit(i) > 0) price_of_left += prices_.of_limit(i) * std::max(0.0, left);
      }
      if (fits && with.reduced + price_of_left <= limit_) {
        counts_[kind][priced.index] = count;
        is_last || rest == 0 ? visit_kind(kind + 1, with) : visit_option(kind, index + 1, num_left - count, with);
        counts_[kind][priced.index] = 0;
      }
      if (is_last) return;  // all that are left
    }
  }

  const CountRequest& request_;
  const Prices& prices_;
  std::vector<std::vector<Priced>> options_;  // by kind, the cheapest first
  std::vector<Bytes> least_of_kind_;          // that one unit takes
  std::vector<Bytes> most_of_kind_;
  std::vector<Bytes> least_;  // that the kinds from this one on take
  std::vector<Bytes> most_;   // likewise
  Counts counts_;
  double limit_ = kUnbounded;   // how much a choice may exceed the bound to be tried
  std::int64_t num_tried_ = 0;  // counts, since the limit was last raised
  Counts best_counts_;
};

// Changes of one and two units at a time.
class Changes {
 public:
  Changes(const CountRequest& request, Counts counts)
      : request_(request), counts_(std::move(counts)), taken_(request.limits.size(), 0) {
    for (std::size_t kind = 0; kind < counts_.size(); ++kind) {
      for (std::size_t i = 0; i < counts_[kind].size(); ++i) {
        const auto units = static_cast<double>(counts_[kind][i]);
        add(taken_, units, request_.options[kind][i].bytes);
        seconds_ += units * request_.options[kind][i].seconds;
      }
    }
    excess_ = excess_of(taken_);
  }

  // Makes the best change, for as long as one brings the bytes nearer to the limits or, within them, saves time.
  // Returns the counts; empty if they are not within the limits.
  [[nodiscard]] Counts run() {
    while (true) {
      const std::vector<Change> changes = possible();
      std::vector<const Change*> best;
      constexpr double kLeast = 1e-5;  // of the time
      double least_excess = excess_, most_saved = kLeast * std::abs(seconds_);
      const auto consider = [&](const std::vector<const Change*>& together) {
        double saved = 0;
        Bytes bytes = taken_;
        for (const Change* each : together) {
          saved -= each->seconds;
          add(bytes, 1, each->bytes);
        }
        const double excess = excess_of(bytes);
        if (excess > least_excess || (excess == least_excess && saved <= most_saved)) return;
        least_excess = excess;
        most_saved = saved;
        best = together;
      };
      for (std::size_t i = 0; i < changes.size(); ++i) {
        const Change& one = changes[i];
        consider({&one});
        for (std::size_t j = i; j < changes.size(); ++j) {
          const Change& other = changes[j];
          const bool is_of_same = one.kind == other.kind && one.from == other.from;
          if (!is_of_same || counts_[one.kind][one.from] > 1) consider({&one, &other});
        }
      }
      if (best.empty()) return excess_ > 0 ? Counts() : counts_;
      for (const Change* each : best) {
        --counts_[each->kind][each->from];
        ++counts_[each->kind][each->to];
        add(taken_, 1, each->bytes);
        seconds_ += each->seconds;
      }
      excess_ = least_excess;
    }
  }

 private:
  // One unit that follows another option.
  struct Change {
    std::size_t kind = 0, from = 0, to = 0;
    double seconds = 0;
    Bytes bytes;
  };

  [[nodiscard]] std::vector<Change> possible() const {
    std::vector<Change> changes;
    for (std::size_t kind = 0; kind < counts_.size(); ++kind) {
      const std::vector<CountOption>& options = request_.options[kind];
      for (std::size_t from = 0; from < options.size(); ++from) {
        for (std::size_t to = 0; to < options.size(); ++to) {
          if (from == to || counts_[kind][from] == 0) continue;
          Change& change = changes.emplace_back(Change{.kind = kind,
                                                       .from = from,
                                                       .to = to,
                                                       .seconds = options[to].seconds - options[from].seconds,
                                                       .bytes = options[to].bytes});
          add(change.bytes, -1, options[from].bytes);
        }
      }
    }
    return changes;
  }

  // Returns by how much bytes are above the limits, as shares of these.
  [[nodiscard]] double excess_of(const Bytes& bytes) const {
    double sum = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const double limit = request_.limits[i];
      if (bytes[i] > limit) sum += (bytes[i] - limit) / std::max(1.0, std::abs(limit));
    }
    return sum;
  }

  const CountRequest& request_;
  Counts counts_;
  Bytes taken_;
  double seconds_ = 0;
  double excess_ = 0;
};

}  // namespace

std::vector<std::vector<std::int64_t>> choose_counts(const CountRequest& request) {
  const Prices prices(request);
  Search search(request, prices);
  Counts counts = search.run();
  if (search.has_tried_all()) return counts;
  if (counts.empty()) {  // begins with the cheapest
    for (std::size_t kind = 0; kind < request.options.size(); ++kind) {
      const auto cheapest = static_cast<std::size_t>(&prices.cheapest(kind) - request.options[kind].data());
      counts.emplace_back(request.options[kind].size(), 0)[cheapest] = request.num_units[kind];
    }
  }
  return Changes(request, std::move(counts)).run();
}

}  // namespace d9d

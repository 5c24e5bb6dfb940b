// The choice of activation plans against all choices.
#include "d9d/loop/measure/choose_activation_plans.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::choose_activation_plans_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Totals {
  double seconds = 0, working = 0;
  std::vector<double> kept = {}, host = {};  // by moment

  void add(double count, const UnitKind& units, const PlanCosts& costs) {
    seconds += count * costs.seconds;
    kept.resize(units.num_live.size());
    host.resize(units.num_live.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      kept[i] += count * static_cast<double>(units.num_live[i]) * costs.device_bytes;
      host[i] += count * static_cast<double>(units.num_live[i]) * costs.host_bytes;
    }
    if (count > 0) working = std::max(working, costs.working_bytes);
  }
  // The most of any moment.
  [[nodiscard]] double device_bytes(const ActivationPlanRequest& request) const {
    double most = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      most = std::max(most, request.resident_bytes + request.moment_bytes[i] + kept[i] + working);
    }
    return most;
  }
};

// Calls visit() with the totals of every choice.
void visit_all(const ActivationPlanRequest& request, std::size_t kind, std::size_t plan, std::int64_t num_left,
               const Totals& totals, const std::function<void(const Totals&)>& visit) {
  if (kind == request.kinds.size()) return visit(totals);
  const UnitKind& units = request.kinds[kind];
  if (plan == units.plans.size()) {
    if (num_left > 0) return;
    const std::size_t next = kind + 1;
    return visit_all(request, next, 0, next < request.kinds.size() ? request.kinds[next].num_units : 0, totals, visit);
  }
  for (std::int64_t count = 0; count <= num_left; ++count) {
    Totals with = totals;
    with.add(static_cast<double>(count), units, units.plans[plan]);
    visit_all(request, kind, plan + 1, num_left - count, with, visit);
  }
}

std::optional<double> least_seconds(const ActivationPlanRequest& request) {
  std::optional<double> least;
  visit_all(request, 0, 0, request.kinds.front().num_units, {}, [&](const Totals& each) {
    if (each.device_bytes(request) > request.device_bytes) return;
    if (std::ranges::max(each.host) > request.host_bytes) return;
    least = std::min(least.value_or(each.seconds), each.seconds);
  });
  return least;
}

ActivationPlanRequest drawn(std::mt19937& random) {
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  ActivationPlanRequest request{.resident_bytes = static_cast<double>(draw(0, 50))};
  double most = request.resident_bytes;
  request.moment_bytes.resize(static_cast<std::size_t>(draw(1, 3)));
  for (double& bytes : request.moment_bytes) bytes = draw(0, 2) * 15.0;
  for (int kind = draw(1, 2); kind > 0; --kind) {
    UnitKind units{.num_units = draw(1, 5), .num_live = {}};
    while (units.num_live.size() < request.moment_bytes.size()) units.num_live.push_back(draw(0, 3));
    for (int plan = draw(1, 4); plan > 0; --plan) {
      units.plans.push_back({.seconds = draw(1, 40) * 0.25,
                             .device_bytes = static_cast<double>(draw(0, 30)),
                             .host_bytes = static_cast<double>(draw(0, 1) * draw(1, 20)),
                             .working_bytes = static_cast<double>(draw(0, 2) * 10)});
    }
    most += static_cast<double>(units.num_units * std::ranges::max(units.num_live)) * 20;
    request.kinds.push_back(units);
  }
  request.device_bytes = draw(0, 10) == 0 ? 1e9 : static_cast<double>(draw(0, static_cast<int>(most)));
  request.host_bytes = draw(0, 3) == 0 ? 0 : static_cast<double>(draw(0, 200));
  return request;
}

TEST(ChooseActivationPlans, Finds_the_least_time_of_all_choices_that_fit) {
  std::mt19937 random(7);
  int num_found = 0, num_refused = 0;
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    const ActivationPlanRequest request = drawn(random);
    const auto least = least_seconds(request);
    if (!least) {
      EXPECT_THROW((void)choose_activation_plans(request), ConfigError);
      ++num_refused;
      continue;
    }
    ++num_found;
    const ActivationPlanChoice choice = choose_activation_plans(request);
    EXPECT_LE(choice.seconds, 1.001 * *least + 1e-9);
    EXPECT_GE(choice.seconds, *least - 1e-9);
    // What it says of itself is what its counts cost.
    Totals totals;
    for (std::size_t kind = 0; kind < request.kinds.size(); ++kind) {
      const UnitKind& units = request.kinds[kind];
      std::int64_t count = 0;
      for (std::size_t plan = 0; plan < units.plans.size(); ++plan) {
        count += choice.num_units[kind][plan];
        totals.add(static_cast<double>(choice.num_units[kind][plan]), units, units.plans[plan]);
      }
      EXPECT_EQ(count, units.num_units);
    }
    EXPECT_NEAR(choice.seconds, totals.seconds, 1e-9);
    EXPECT_GE(choice.device_bytes, totals.device_bytes(request));
    EXPECT_LE(choice.device_bytes, request.device_bytes);
    EXPECT_EQ(choice.host_bytes, std::ranges::max(totals.host));
    EXPECT_LE(choice.host_bytes, request.host_bytes);
  }
  EXPECT_GT(num_found, 800);
  EXPECT_GT(num_refused, 100);
}

// 2 stages of 60 layers of two kinds each, with the six plans of a decoder layer, whose microbatches come and go.
ActivationPlanRequest hundreds_of_units(std::mt19937& random) {
  const auto draw = [&](double from, double to) { return std::uniform_real_distribution<double>(from, to)(random); };
  ActivationPlanRequest request{
      .resident_bytes = 10e9, .device_bytes = draw(60e9, 400e9), .host_bytes = draw(0, 200e9)};
  const std::vector<std::vector<std::int64_t>> live = {{1, 1, 2, 1}, {2, 1, 1, 2}};  // of each stage's layers
  request.moment_bytes = {0, 2e9, 1e9, 4e9};
  for (std::int64_t kind = 0; kind < 4; ++kind) {
    UnitKind units{.num_units = 30, .num_live = live[static_cast<std::size_t>(kind / 2)]};
    const double all = draw(1e9, 3e9), time = draw(5e-3, 2e-2);
    for (const auto& [seconds, device, host] : {std::tuple(1.0, 1.0, 0.0),
                                                {1.08, 0.5, 0.0},
                                                {1.21, 0.13, 0.0},
                                                {1.32, 0.07, 0.0},
                                                {1.23, 0.0, 0.13},
                                                {1.33, 0.0, 0.07}}) {
      units.plans.push_back({.seconds = time * seconds * draw(0.99, 1.01),
                             .device_bytes = all * device,
                             .host_bytes = all * host,
                             .working_bytes = 2e9});
    }
    request.kinds.push_back(units);
  }
  return request;
}

TEST(ChooseActivationPlans, Of_hundreds_of_units_takes_no_noticeable_time) {
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    const ActivationPlanRequest request = hundreds_of_units(random);
    const ActivationPlanChoice choice = choose_activation_plans(request);
    EXPECT_LE(choice.device_bytes, request.device_bytes);
    EXPECT_LE(choice.host_bytes, request.host_bytes);
  }
}

// As many bytes as the third plan needs everywhere, and a host that holds a part of what the fifth keeps.
TEST(ChooseActivationPlans, Of_hundreds_of_units_that_hardly_fit_is_found) {
  std::mt19937 random(5);
  for (int i = 0; i < 10; ++i) {
    ActivationPlanRequest request = hundreds_of_units(random);
    Totals totals;
    for (const UnitKind& units : request.kinds) totals.add(30, units, units.plans[2]);
    request.device_bytes = totals.device_bytes(request) * 1.0001;
    request.host_bytes = i * 1e9;
    const ActivationPlanChoice choice = choose_activation_plans(request);
    EXPECT_LE(choice.device_bytes, request.device_bytes);
    EXPECT_LE(choice.host_bytes, request.host_bytes);
    EXPECT_LE(choice.seconds, totals.seconds);
  }
}

// Each of the two limits could be kept alone.
TEST(ChooseActivationPlans, Of_hundreds_of_units_that_do_not_fit_together_are_refused) {
  std::mt19937 random(6);
  ActivationPlanRequest request = hundreds_of_units(random);
  request.device_bytes = 13e9 + 4e9;
  request.host_bytes = 5e9;
  EXPECT_THROW((void)choose_activation_plans(request), ConfigError);
}

ActivationPlanRequest layers() {
  const UnitKind kind{.num_units = 4,
                      .num_live = {2},
                      .plans = {{.plan = {Recompute::kNothing}, .seconds = 1, .device_bytes = 1 << 20},
                                {.plan = {Recompute::kAll}, .seconds = 1.5, .device_bytes = 1 << 18}}};
  return {.kinds = {kind}, .resident_bytes = 1 << 20};
}

TEST(ChooseActivationPlans, Recompute_more_where_there_is_less_memory) {
  std::vector<std::int64_t> num_recomputed;
  for (const double units : {8, 6, 4, 2}) {
    ActivationPlanRequest request = layers();
    request.device_bytes = (1 + units) * (1 << 20);
    num_recomputed.push_back(choose_activation_plans(request).num_units[0][1]);
  }
  EXPECT_EQ(num_recomputed, (std::vector<std::int64_t>{0, 2, 3, 4}));
}

// Two stages whose microbatches are most at different moments: the sum of what each keeps at most would not fit.
TEST(ChooseActivationPlans, Count_what_is_kept_at_the_same_time) {
  ActivationPlanRequest request = layers();
  request.kinds.push_back(request.kinds.front());
  request.kinds[0].num_live = {2, 1};
  request.kinds[1].num_live = {1, 2};
  request.moment_bytes = {0, 0};
  request.device_bytes = (1 + 4 * 3) * (1 << 20);
  EXPECT_EQ(choose_activation_plans(request).num_units, (std::vector<std::vector<std::int64_t>>{{4, 0}, {4, 0}}));
  request.moment_bytes = {0, 1 << 20};
  EXPECT_NE(choose_activation_plans(request).num_units, (std::vector<std::vector<std::int64_t>>{{4, 0}, {4, 0}}));
}

TEST(ChooseActivationPlans, That_nothing_fits_are_refused_with_what_the_least_needs) {
  ActivationPlanRequest request = layers();
  request.device_bytes = 2 << 20;
  try {
    (void)choose_activation_plans(request);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("memory_budget.device of at least 3.00 MiB"), HasSubstr("got 2.00 MiB"),
                                    HasSubstr("keeps 1.00 MiB all the time"), HasSubstr("data.microbatch_size")));
  }
}

}  // namespace
}  // namespace d9d::choose_activation_plans_test

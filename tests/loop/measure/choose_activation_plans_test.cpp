// The choice of activation plans against all choices.
#include "d9d/loop/measure/choose_activation_plans.h"

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
  double seconds = 0, kept = 0, host = 0, working = 0;
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
    const PlanCosts& costs = units.plans[plan];
    const auto n = static_cast<double>(count), live = static_cast<double>(units.num_live);
    Totals with = totals;
    with.seconds += n * costs.seconds;
    with.kept += n * live * costs.device_bytes;
    with.host += n * live * costs.host_bytes;
    if (count > 0) with.working = std::max(with.working, costs.working_bytes);
    visit_all(request, kind, plan + 1, num_left - count, with, visit);
  }
}

std::optional<double> least_seconds(const ActivationPlanRequest& request) {
  std::optional<double> least;
  visit_all(request, 0, 0, request.kinds.front().num_units, {}, [&](const Totals& each) {
    if (request.resident_bytes + each.kept + each.working > request.device_bytes) return;
    if (each.host > request.host_bytes) return;
    least = std::min(least.value_or(each.seconds), each.seconds);
  });
  return least;
}

ActivationPlanRequest drawn(std::mt19937& random) {
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  ActivationPlanRequest request{.resident_bytes = static_cast<double>(draw(0, 50))};
  double most = request.resident_bytes;
  for (int kind = draw(1, 2); kind > 0; --kind) {
    UnitKind units{.num_units = draw(1, 5), .num_live = draw(1, 3)};
    for (int plan = draw(1, 4); plan > 0; --plan) {
      units.plans.push_back({.seconds = draw(1, 40) * 0.25,
                             .device_bytes = static_cast<double>(draw(0, 30)),
                             .host_bytes = static_cast<double>(draw(0, 1) * draw(1, 20)),
                             .working_bytes = static_cast<double>(draw(0, 2) * 10)});
    }
    most += static_cast<double>(units.num_units * units.num_live) * 20;
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
        const auto n = static_cast<double>(choice.num_units[kind][plan]), live = static_cast<double>(units.num_live);
        count += choice.num_units[kind][plan];
        totals.seconds += n * units.plans[plan].seconds;
        totals.kept += n * live * units.plans[plan].device_bytes;
        totals.host += n * live * units.plans[plan].host_bytes;
        if (n > 0) totals.working = std::max(totals.working, units.plans[plan].working_bytes);
      }
      EXPECT_EQ(count, units.num_units);
    }
    EXPECT_NEAR(choice.seconds, totals.seconds, 1e-9);
    EXPECT_GE(choice.device_bytes, request.resident_bytes + totals.kept + totals.working);
    EXPECT_LE(choice.device_bytes, request.device_bytes);
    EXPECT_EQ(choice.host_bytes, totals.host);
    EXPECT_LE(choice.host_bytes, request.host_bytes);
  }
  EXPECT_GT(num_found, 1000);
  EXPECT_GT(num_refused, 100);
}

// 2 stages of 60 layers of two kinds each, with the six plans of a decoder layer.
TEST(ChooseActivationPlans, Of_hundreds_of_units_takes_no_noticeable_time) {
  std::mt19937 random(3);
  const auto draw = [&](double from, double to) { return std::uniform_real_distribution<double>(from, to)(random); };
  for (int i = 0; i < 20; ++i) {
    ActivationPlanRequest request{
        .resident_bytes = 10e9, .device_bytes = draw(60e9, 400e9), .host_bytes = draw(0, 200e9)};
    for (std::int64_t kind = 0; kind < 4; ++kind) {
      UnitKind units{.num_units = 30, .num_live = 1 + kind / 2};
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
    const ActivationPlanChoice choice = choose_activation_plans(request);
    EXPECT_LE(choice.device_bytes, request.device_bytes);
    EXPECT_LE(choice.host_bytes, request.host_bytes);
  }
}

ActivationPlanRequest layers() {
  const UnitKind kind{.num_units = 4,
                      .num_live = 2,
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

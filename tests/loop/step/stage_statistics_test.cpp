#include "d9d/loop/step/stage_statistics.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/loop/step/local_stages.h"

#include "tests/support/ranks.h"

namespace d9d::test::stage_statistics_test {
namespace {

using ::testing::HasSubstr;

TEST(StageStatistics, Are_those_of_all_stages_on_every_rank) {
  run_ranks(RankBackend::kThreads, 3, [](World& world) {
    StageStatistics statistics(DeviceMesh("regular", {{"pp", 3}}, borrowed(world)));
    for (const double step : {1.0, 2.0}) {
      std::map<std::string, at::Tensor> own;
      if (world.rank() == 0) own = {{"layers.0/counts", at::tensor({step, 2 * step})}};
      if (world.rank() == 2)
        own = {{"layers.2/imbalance", at::scalar_tensor(step)}, {"layers.3/counts", at::ones({3})}};
      const auto all = statistics.gather(own);
      ASSERT_EQ(all.size(), 3);
      EXPECT_TRUE(at::equal(all.at("layers.0/counts"), at::tensor({step, 2 * step}, at::kDouble)));
      EXPECT_TRUE(at::equal(all.at("layers.2/imbalance"), at::tensor({step}, at::kDouble)));
      EXPECT_TRUE(at::equal(all.at("layers.3/counts"), at::ones({3}, at::kDouble)));
    }
  });
}

TEST(StageStatistics, May_be_none) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    StageStatistics statistics(DeviceMesh("regular", {{"pp", 2}}, borrowed(world)));
    EXPECT_TRUE(statistics.gather({}).empty());
  });
}

TEST(StageStatistics, That_change_are_refused_by_name) {
  using Values = std::map<std::string, at::Tensor>;
  const Values first = {{"layers.1/load", at::ones({2})}};
  const auto said = [&](const Values& later) {
    try {
      run_ranks(RankBackend::kThreads, 2, [&](World& world) {
        StageStatistics statistics(DeviceMesh("regular", {{"pp", 2}}, borrowed(world)));
        for (const Values& own : {first, later}) (void)statistics.gather(world.rank() == 1 ? own : first);
      });
    } catch (const StateError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(said({{"layers.1/load", at::zeros({2})}}), "");
  EXPECT_THAT(said({{"layers.1/other", at::ones({2})}}),
              HasSubstr("got none called layers.1/load, which the first had"));
  EXPECT_THAT(said({{"layers.1/load", at::ones({3})}}),
              HasSubstr("got 3 numbers of layers.1/load, and 2 in the first"));
  EXPECT_THAT(said({{"layers.1/load", at::ones({2})}, {"layers.1/new", at::ones({1})}}),
              HasSubstr("got layers.1/new, which the first had not"));
}

struct Stage : Module {
  explicit Stage(const std::string& layer) {
    register_parameter(layer, {.shape = {2}, .init = init::zeros()});
    register_buffer("table", {.shape = {3}, .init = init::zeros(), .is_persistent = false});
  }
};

TEST(LocalStages, Have_the_names_of_their_stages) {
  const auto first = std::make_shared<Stage>("first"), second = std::make_shared<Stage>("second");
  EXPECT_EQ(local_stages({first}), first);
  const std::shared_ptr<Module> both = local_stages({first, second});
  ASSERT_EQ(both->named_parameters().size(), 2);
  EXPECT_EQ(both->named_parameters()[0].first, "first");
  EXPECT_EQ(both->named_parameters()[1].first, "second");
  EXPECT_EQ(both->named_buffers().size(), 2);
}

}  // namespace
}  // namespace d9d::test::stage_statistics_test

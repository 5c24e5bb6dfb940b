// Ranks of one job that were given different things.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/logged_job.h"

namespace d9d::differing_ranks_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using toy::Layout;
using toy::log_of_ranks;

TEST(RanksThatDiffer, Say_nothing_where_they_do_not) {
  for (const Layout layout : {Layout::kReplicas, Layout::kShards}) {
    EXPECT_THAT(log_of_ranks([](toy::Job&, std::int64_t) {}, layout), Not(HasSubstr("WARNING")));
  }
}

TEST(RanksThatDiffer, In_a_key_of_the_configuration_are_refused) {
  const std::string said =
      log_of_ranks([](toy::Job& job, std::int64_t rank) { job.config.determinism.base_seed = 7 + rank; });
  EXPECT_THAT(said, HasSubstr("got trainer.determinism.base_seed = 7 on rank 0 and 8 on rank 1"));
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) {
                if (rank == 1) job.config.gradient_clipping.max_norm = 2.0;
              }),
              HasSubstr("trainer.gradient_clipping.max_norm = "));
  EXPECT_THAT(
      log_of_ranks([](toy::Job& job, std::int64_t rank) { job.config.checkpointing.save_dir = cat("run/of", rank); }),
      HasSubstr("trainer.checkpointing.save_dir = \"run/of0\" on rank 0 and \"run/of1\" on rank 1"));
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) { job.config.run.name = cat("of", rank); }),
              Not(HasSubstr("one configuration")));
}

TEST(RanksThatDiffer, In_the_model_are_refused_by_parameter) {
  struct Wide : toy::Model {
    const ParameterPtr extra = register_parameter("extra", {.shape = {3}, .init = init::ones()});
  };
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) {
                if (rank == 1) job.provider.make_model = [] { return make_module<Wide>(); };
              }),
              HasSubstr("expected one model on all ranks, got extra = nothing on rank 0 and \"Float [3]\" on rank 1"));
}

TEST(RanksThatDiffer, In_the_learning_rate_are_refused) {
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) {
                job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1 * (1.0 + rank)});
              }),
              HasSubstr("got the optimiser's learning rate = 0.1 on rank 0 and 0.2 on rank 1"));
}

TEST(RanksThatDiffer, In_what_an_update_does_are_told_after_it) {
  const auto decays_by_rank = [](toy::Job& job, std::int64_t rank) {
    job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1, .weight_decay = 0.1 * rank});
  };
  EXPECT_THAT(log_of_ranks(decays_by_rank), HasSubstr("ranks that hold the same elements of "));
  // Slices of FSDP belong to one rank each.
  EXPECT_THAT(log_of_ranks(decays_by_rank, Layout::kShards), Not(HasSubstr("ranks that hold the same elements")));
}

}  // namespace
}  // namespace d9d::differing_ranks_test

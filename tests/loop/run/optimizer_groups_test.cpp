// Groups of parameters in jobs: over stages of a pipeline, in the log, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/logged_job.h"
#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::optimizer_groups_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// "embedding" is on the first stage alone, "head" on the last.
AdamWConfig grouped() {
  return {.lr = 1e-2,
          .weight_decay = 0.5,
          .groups = {{.group = {.name = "embedding", .parameters = ".*embed_tokens.*", .lr_factor = 0.5}},
                     {.group = {.name = "head", .parameters = ".*lm_head.*", .lr_factor = 2.0, .weight_decay = 0.1},
                      .betas = std::pair(0.5, 0.6)}},
          .decay_all = false};
}

// "<group> <number> of <elements> elements" for the parameters whose name contains the text.
std::string count_of(const std::string& group, const std::map<std::string, at::Tensor>& parameters,
                     const std::function<bool(const std::string&)>& is_in) {
  std::int64_t number = 0, elements = 0;
  for (const auto& [name, tensor] : parameters) {
    if (!is_in(name)) continue;
    ++number;
    elements += tensor.numel();
  }
  return cat(group, " ", number, " of ", elements, " elements");
}

TEST(OptimizerGroups, Of_a_pipeline_train_as_on_one_rank_and_are_counted_over_all_stages) {
  const pipeline::Trained expected = pipeline::train({.optimizer = grouped()});
  const pipeline::Trained trained =
      pipeline::train({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .optimizer = grouped()});
  pipeline::expect_same(trained, expected);
  const auto has = [](const char* part) {
    return [part](const std::string& name) { return name.find(part) != std::string::npos; };
  };
  const auto is_default = [&](const std::string& name) { return !has("embed_tokens")(name) && !has("lm_head")(name); };
  const auto is_spared = [&](const std::string& name) { return has("norm")(name) || has("embed_tokens")(name); };
  const std::string counts = cat(
      "parameters of the optimiser: ", count_of("embedding", expected.parameters, has("embed_tokens")), ", ",
      count_of("head", expected.parameters, has("lm_head")), ", ", count_of("default", expected.parameters, is_default),
      "; ", count_of("without weight decay", expected.parameters, is_spared));
  for (const pipeline::Trained* const each : {&expected, &trained}) {
    EXPECT_THAT(each->log, HasSubstr(counts));
    EXPECT_EQ(each->log.find(counts), each->log.rfind(counts)) << "more than one rank says so";
    for (const nlohmann::json& step : each->logged) {
      const double rate = step.at("lr");
      EXPECT_EQ(step.at("lr/embedding"), 0.5 * rate);
      EXPECT_EQ(step.at("lr/head"), 2.0 * rate);
      EXPECT_EQ(step.at("lr/default"), rate);
    }
  }
}

TEST(OptimizerGroups, Treat_a_tied_embedding_alike_on_both_stages_that_have_it) {
  AdamWConfig config = grouped();
  config.groups.pop_back();  // no parameter is named as a head
  pipeline::expect_same(
      pipeline::train({.mesh = {.pipeline_parallel = 2}, .ties_embeddings = true, .optimizer = config}),
      pipeline::train({.ties_embeddings = true, .optimizer = config}));
}

TEST(OptimizerGroups, Without_parameters_on_any_stage_are_refused_by_name) {
  AdamWConfig config = grouped();
  config.groups.push_back({.group = {.name = "experts", .parameters = ".*experts.*"}});
  for (const std::int64_t stages : {1, 2}) {
    EXPECT_THAT([&] { pipeline::train({.mesh = {.pipeline_parallel = stages}, .optimizer = config}); },
                ::testing::ThrowsMessage<ConfigError>(
                    AllOf(HasSubstr("none in group 'experts'"), HasSubstr("model.embed_tokens"))));
  }
}

std::string log_with(const std::vector<BetasGroupConfig>& groups, const std::function<void(toy::Job&)>& change) {
  return toy::log_of([&](toy::Job& job) {
    job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1, .groups = groups});
    change(job);
  });
}

TEST(OptimizerGroups, Do_not_count_what_is_frozen) {
  const std::vector<BetasGroupConfig> groups = {{.group = {.name = "first", .parameters = "first\\..*"}}};
  const auto freeze = [](toy::Job& job, bool whole) {
    job.provider.make_model = [whole] {
      auto model = make_module<toy::Model>();
      model->first->weight->set_requires_grad(false);
      model->first->bias->set_requires_grad(!whole);
      return model;
    };
  };
  EXPECT_THAT(log_with(groups, [](toy::Job&) {}), HasSubstr("first 2 of 9 elements, default 2 of 4 elements\n"));
  EXPECT_THAT(log_with(groups, [&](toy::Job& job) { freeze(job, false); }),
              HasSubstr("first 1 of 3 elements, default 2 of 4 elements\n"));
  EXPECT_THAT(log_with(groups, [&](toy::Job& job) { freeze(job, true); }), HasSubstr("none in group 'first'"));
}

TEST(OptimizerGroups, Are_not_spoken_of_where_there_are_none) {
  EXPECT_THAT(log_with({}, [](toy::Job&) {}), Not(HasSubstr("parameters of the optimiser")));
}

TEST(OptimizerGroups, Warn_of_narrow_parameters_with_every_optimiser_that_rounds_to_nearest) {
  const auto log = [](const OptimizerConfig& optimizer) {
    return toy::log_of([&](toy::Job& job) {
      job.provider.make_model = [] {
        auto model = make_module<toy::Model>();
        model->to(at::kBFloat16);
        return model;
      };
      for (auto& pack : job.provider.packs) {
        for (toy::Batch& batch : pack) batch.x = batch.x.to(at::kBFloat16);
      }
      job.optimizer = std::make_shared<AutoOptimizerProvider>(optimizer);
    });
  };
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(AdamConfig{.lr = 0.1}), OptimizerConfig(SgdConfig{.lr = 0.1}),
        OptimizerConfig(LionConfig{.lr = 0.1}), OptimizerConfig(MuonConfig{.lr = 0.1})}) {
    EXPECT_THAT(log(optimizer), AllOf(HasSubstr("WARNING - the optimiser updates first.weight in bfloat16"),
                                      HasSubstr("master_dtype"), HasSubstr("stochastic_adamw")));
  }
}

}  // namespace
}  // namespace d9d::test::optimizer_groups_test

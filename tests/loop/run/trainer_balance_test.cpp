// A model with experts: its load balancing, and the statistics that are logged.
#include <numeric>

#include <gmock/gmock.h>

#include "d9d/blocks/moe/moe_layer.h"

#include "tests/loop/run/toy_values.h"

namespace d9d::trainer_balance_test {
namespace {

using ::testing::HasSubstr;
using toy::all_equal;
using toy::Job;
using toy::poisoned;
using toy::samples;
using toy::values_of;

struct Routed : toy::Model {
  Routed() { to(at::kDouble); }
  at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
    return toy::Model::forward(x + experts(x).hidden_states, shared);
  }
  const ModulePtr<MoELayer> experts = register_module<MoELayer>(
      "experts",
      MoELayerConfig{
          .hidden_size = 2, .intermediate_size = 3, .num_experts = 4, .top_k = 2, .expert_bias_update_rate = 0.1});
};

struct RoutedJob : Job {
  explicit RoutedJob(std::vector<std::vector<toy::Batch>> packs) : Job(std::move(packs)) {
    provider.make_model = [] { return make_module<Routed>(); };
    config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
    optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1, .weight_decay = 0.5});
  }
};

TEST(Trainer, A_step_that_changes_nothing_leaves_the_balance_of_experts_and_its_counts_end) {
  toy::Batch weightless = samples(0, 2);
  weightless.weights.zero_();
  for (const toy::Batch& useless : {weightless, poisoned()}) {
    RoutedJob job({{useless}});
    auto trainer = job.make_trainer();
    const auto before = values_of(trainer.module());
    ::testing::internal::CaptureStderr();
    EXPECT_THROW((void)trainer.train(), StateError);  // no step changed anything
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("step 0 changed nothing"));
    EXPECT_TRUE(all_equal(before, values_of(trainer.module())));
    for (const auto& [name, buffer] : trainer.module().named_buffers()) {
      EXPECT_TRUE(!name.ends_with("tokens_per_expert") || buffer->local.eq(0).all().item<bool>());
    }
  }
}

TEST(Trainer, Logs_how_many_tokens_each_expert_got_in_the_step) {
  RoutedJob job({{samples(0, 3), samples(3, 2)}, {samples(5, 4)}});
  auto trainer = job.make_trainer();
  const auto routed = std::dynamic_pointer_cast<Routed>(job.provider.model.shared());
  const at::Tensor chosen = routed->experts->router(at::cat({samples(0, 3).x, samples(3, 2).x})).expert_ids;
  const at::Tensor expected = at::bincount(chosen.flatten(), {}, 4);
  (void)trainer.train();
  const auto lines = Job::logged();
  ASSERT_EQ(lines.size(), 2U);
  const auto tokens_of = [&](std::size_t step) {
    return lines[step].at("experts/tokens_per_expert").get<std::vector<double>>();
  };
  ASSERT_EQ(tokens_of(0).size(), 4U);
  for (std::size_t e = 0; e < 4; ++e) EXPECT_EQ(tokens_of(0)[e], expected[static_cast<int>(e)].item<double>()) << e;
  const std::vector<double> second = tokens_of(1);
  const double sum = std::accumulate(second.begin(), second.end(), 0.0);
  EXPECT_EQ(lines[0].at("experts/expert_load_max").get<double>(), expected.max().item<double>() / (5 * 2 / 4.0));
  EXPECT_EQ(sum, 4 * 2);  // counts were reset
}

}  // namespace
}  // namespace d9d::trainer_balance_test

#include "d9d/loop/measure/optimizer_sizes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/loop/task/trainable_parameters.h"
#include "d9d/models/qwen3_moe/model.h"
#include "d9d/optim/build_optimizer.h"

#include "tests/support/decoder_families.h"

namespace d9d::optimizer_sizes_test {
namespace {

TEST(OptimizerSizes, Are_those_of_the_state_of_each_kind_of_parameter) {
  const auto model = make_module<Qwen3MoEModel>(
      test::small_parameters<Qwen3MoEParameters>(test::SmallDecoder{.num_layers = 2}), DecoderStageOptions{});
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/1);
  const MuonGroupConfig group{.group = {.name = "queries", .parameters = ".*q_proj.*"}, .rule = MuonRule::kAdamW};
  for (const OptimizerConfig& config : {OptimizerConfig(AdamWConfig{}), OptimizerConfig(MuonConfig{}),
                                        OptimizerConfig(MuonConfig{.groups = {group}})}) {
    std::int64_t expected = 0;
    for (const auto& [name, entry] : build_optimizer(config, trainable_parameters(*model).parameters).state_dict()) {
      if (!name.ends_with(".step")) expected += static_cast<std::int64_t>(entry.local.nbytes());
    }
    EXPECT_EQ(OptimizerSizes(config).bytes_of(*model), expected);
  }
}

}  // namespace
}  // namespace d9d::optimizer_sizes_test

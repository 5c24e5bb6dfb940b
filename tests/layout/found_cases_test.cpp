// Cases that once did not train as one rank does, as the fuzzer printed them.
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"

namespace d9d::test::found_cases_test {
namespace {

struct Found {
  const char* name;
  LayoutCase drawn;
};

void PrintTo(const Found& found, std::ostream* out) { *out << "LayoutCase" << to_source(found.drawn); }

class FoundCases : public ::testing::TestWithParam<Found> {};

const std::vector<Found> kFound = {
    {"a_sharded_and_replicated_layer_that_is_called_twice",
     {.job = {.calls_layers_twice = true},
      .layout = {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2}}}},
    {"pairs_of_forwards_of_a_sharded_and_replicated_layer",
     {.job = {.has_pairs = true}, .layout = {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2}}}},
    {"pairs_of_forwards_of_norms_under_tensor_parallelism",
     {.job = {.has_pairs = true}, .layout = {.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2}}}},
    {"an_auxiliary_loss_where_context_parallel_ranks_count_other_labels",
     {.job = {.family = "qwen3_moe", .balances_by_loss = true, .labels = Labels::kSecondHalf},
      .layout = {.mesh = {.context_parallel_shard = 2}}}},
    {"dropout_of_context_parallel_ranks",
     {.job = {.family = kOwnLayers, .own = {.dropout = 0.25}}, .layout = {.mesh = {.context_parallel_shard = 2}}}},
    {"a_counter_replayed_in_a_checkpoint_in_a_checkpoint",
     {.job = {.family = kOwnLayers, .own = {.replays = true}}, .layout = {.checkpoints = Checkpoints::kOuterNested}}},
    {"a_head_left_out_of_a_replicated_step",
     {.job = {.heads = {Head::kCausalLM, Head::kClassification}, .leaves_out = LeftOut::kOddSteps},
      .layout = {.mesh = {.data_parallel_replicate = 2}}}},
    {"a_head_left_out_of_a_sharded_step",
     {.job = {.heads = {Head::kCausalLM, Head::kClassification}, .leaves_out = LeftOut::kOddSteps},
      .layout = {.mesh = {.data_parallel_shard = 2}}}},
    {"a_branch_left_out_of_a_sharded_step",
     {.job = {.family = kOwnLayers, .own = {.has_branch = true}}, .layout = {.mesh = {.data_parallel_shard = 2}}}},
    {"another_head_left_out_by_each_sharded_rank",
     {.job = {.heads = {Head::kCausalLM, Head::kClassification}, .leaves_out = LeftOut::kMicrobatches},
      .layout = {.mesh = {.data_parallel_shard = 2}, .composition = Composition::kGroupsByHand}}},
    {"another_head_left_out_by_each_rank_that_copies",
     {.job = {.heads = {Head::kCausalLM, Head::kClassification, Head::kEmbedding},
              .leaves_out = LeftOut::kMicrobatches},
      .layout = {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
                 .composition = Composition::kGroupsByHand,
                 .fsdp = {.reshard_after_forward = ReshardAfterForward::kAlways,
                          .reduce_on_last_microbatch = true,
                          .gather = ExchangeMethod::kCopyEngine,
                          .reduce = ExchangeMethod::kCopyEngine}}}},
    {"a_branch_of_one_replica_beside_experts_of_both",
     {.job = {.family = kOwnLayers,
              .own = {.has_experts = true, .has_branch = true},
              .num_layers = 1,
              .heads = {Head::kClassification},
              .labels = Labels::kAll,
              .num_microbatches = 2,
              .num_steps = 1},
      .layout = {.mesh = {.data_parallel_replicate = 2, .expert_parallel = 2}, .bucket_size_mb = 0}}},
    {"tensor_parallelism_of_two_stages_on_each_rank",
     {.job = {.num_layers = 2}, .layout = {.mesh = {.tensor_parallel = 2}, .schedule = Schedule::kInterleaved}}},
    {"frozen_adapters_of_a_tied_embedding_beside_those_of_its_head",
     {.job = {.num_layers = 2, .ties_embeddings = true, .freezes_attention = true, .adapts = true},
      .layout = {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}}}},
    {"a_stage_of_experts_before_that_of_a_head_on_a_mesh_that_neither_has",
     {.job = {.family = "qwen3_moe", .num_layers = 2, .heads = {Head::kClassification}, .labels = Labels::kAll},
      .layout = {.mesh = {.context_parallel_replicate = 2, .tensor_parallel = 2}, .schedule = Schedule::kInterleaved}}},
    {"a_stage_of_own_layers_before_that_of_a_head_on_a_mesh_that_neither_has",
     {.job = {.family = kOwnLayers, .num_layers = 2, .heads = {Head::kClassification}, .labels = Labels::kAll},
      .layout = {.mesh = {.context_parallel_replicate = 2, .tensor_parallel = 2}, .schedule = Schedule::kInterleaved}}},
    {"dropout_of_an_adapter_between_blocks",
     {.job = {.family = kOwnLayers,
              .own = {.has_experts = true, .has_branch = true},
              .num_layers = 1,
              .adapts = true,
              .adapter_dropout = 0.25,
              .heads = {Head::kClassification},
              .labels = Labels::kAll,
              .num_microbatches = 1,
              .num_steps = 1,
              .update_rule = UpdateRule::kNesterov},
      .layout = {.mesh = {.tensor_parallel = 2}}}},
    {"dropout_of_adapters_of_keys_that_ranks_share",
     {.job = {.num_layers = 1,
              .adapts = true,
              .adapter_dropout = 0.25,
              .labels = Labels::kAll,
              .num_microbatches = 1,
              .num_steps = 1},
      .layout = {.mesh = {.tensor_parallel = 4}}}},
    {"snapshots_of_three_context_parallel_ranks",
     {.job = {.heads = {Head::kCausalLM, Head::kClassification, Head::kEmbedding}, .has_snapshots = true},
      .layout = {.mesh = {.context_parallel_replicate = 3}}}},
};

INSTANTIATE_TEST_SUITE_P(Once, FoundCases, ::testing::ValuesIn(kFound),
                         [](const auto& found) { return found.param.name; });

TEST_P(FoundCases, Train_as_one_rank_does) {
  const std::string fault = fault_of(GetParam().drawn);
  EXPECT_TRUE(fault.empty()) << fault;
}

}  // namespace
}  // namespace d9d::test::found_cases_test

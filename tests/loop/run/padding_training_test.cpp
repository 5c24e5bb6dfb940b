// Padding has no influence: jobs with padding train as those without it, with experts that are balanced by a loss, on
// every layout, in float64.
#include <gtest/gtest.h>

#include "tests/loop/run/pipeline_job.h"
#include "tests/loop/run/thirteen_documents.h"

namespace d9d::test::padding_training_test {
namespace {

using pipeline::expect_same;
using pipeline::folder;
using pipeline::PipelineJob;
using pipeline::train;
using pipeline::Trained;

// How the documents of a microbatch are arranged.
enum class Arrangement : std::uint8_t {
  kOneRow,    // one after the other in one sequence, without padding
  kPadded,    // one row each
  kPackedTo,  // in one sequence, with padding at its end
};

// Three documents of 1 to 7 positions. The documents of the last microbatch of a step have no predicted positions.
TokenBatch documents(std::int64_t step, std::int64_t number, Arrangement arrangement) {
  std::vector<TokenSample> samples;
  TokenSample row;
  std::vector<at::Tensor> ids, labels, positions;
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::int64_t length = 1 + (3 * step + 5 * number + 2 * i) % 7;
    const at::Tensor tokens = (at::arange(length + 1).square() * 3 + 5 * step + 7 * number + 11 * i).remainder(20);
    samples.push_back(next_token_sample(tokens));
    if (number + 1 == pipeline::kNumMicrobatches) samples.back().labels = at::full({length}, kIgnoreIndex, at::kLong);
    ids.push_back(samples.back().input_ids);
    labels.push_back(samples.back().labels);
    positions.push_back(samples.back().position_ids);
    row.packed_lengths.push_back(length);
    row.num_padding -= length;
  }
  if (arrangement == Arrangement::kPadded) return collate_padded_to_multiple(samples, 8);
  row.num_padding = arrangement == Arrangement::kPackedTo ? row.num_padding + 24 : 0;
  if (row.num_padding > 0) {
    ids.push_back(at::zeros({row.num_padding}, at::kLong));
    labels.push_back(at::full({row.num_padding}, kIgnoreIndex, at::kLong));
    positions.push_back(at::zeros({row.num_padding}, at::kLong));
    row.packed_lengths.push_back(row.num_padding);
  }
  row.input_ids = at::cat(ids);
  row.labels = at::cat(labels);
  row.position_ids = at::cat(positions);
  return collate_fixed(std::vector{row});
}

PipelineJob job_of(Arrangement arrangement) {
  return {.has_experts = true, .microbatches = [arrangement](std::int64_t step) {
            std::vector<TokenBatch> all;
            for (std::int64_t i = 0; i < pipeline::kNumMicrobatches; ++i) {
              all.push_back(documents(step, i, arrangement));
            }
            return all;
          }};
}

TEST(PaddingTraining, Of_documents_a_row_each_is_that_of_documents_in_one_row) {
  const Trained expected = train(job_of(Arrangement::kOneRow));
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{}, DeviceMeshParameters{.context_parallel_shard = 4},
        DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_shard = 2, .expert_parallel = 4},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_replicate = 2, .expert_parallel = 2}}) {
    SCOPED_TRACE(mesh.world_size());
    PipelineJob job = job_of(Arrangement::kPadded);
    job.mesh = mesh;
    expect_same(train(job), expected);
  }
}

TEST(PaddingTraining, Of_packed_documents_with_a_rest_is_that_without) {
  const Trained expected = train(job_of(Arrangement::kOneRow));
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{}, DeviceMeshParameters{.data_parallel_shard = 4, .expert_parallel = 2},
        DeviceMeshParameters{.pipeline_parallel = 4}, DeviceMeshParameters{.context_parallel_shard = 4},
        DeviceMeshParameters{.data_parallel_shard = 2, .context_parallel_shard = 2, .expert_parallel = 4},
        DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_shard = 2, .tensor_parallel = 2}}) {
    SCOPED_TRACE(mesh.world_size());
    PipelineJob job = job_of(Arrangement::kPackedTo);
    job.mesh = mesh;
    expect_same(train(job), expected);
  }
}

void expect_rest_on_every_layout(const DataConfig& data) {
  const auto on = [&](const DeviceMeshParameters& mesh) {
    return train({.mesh = mesh, .has_experts = true, .data = data, .num_steps = 2});
  };
  const Trained expected = on({});
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.data_parallel_replicate = 2},
        DeviceMeshParameters{.data_parallel_shard = 4, .expert_parallel = 4},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_replicate = 2},
        DeviceMeshParameters{.data_parallel_replicate = 2, .context_parallel_shard = 2}}) {
    SCOPED_TRACE(mesh.world_size());
    expect_same(on(mesh), expected);
  }
}

TEST(PaddingTraining, Of_a_rest_that_is_kept_is_that_of_one_rank) {
  expect_rest_on_every_layout(pipeline::thirteen_documents(DocumentsViewConfig{}, ShardIndexingMode::kSequential, 1));
  expect_rest_on_every_layout(pipeline::thirteen_documents(DocumentsViewConfig{}, ShardIndexingMode::kChunked, 2));
}

// One document per microbatch, with lengths such as 1, 3, 5 and 7.
TEST(PaddingTraining, Of_documents_of_odd_lengths_on_ranks_that_cut_positions_is_that_of_one_rank) {
  const DataConfig data = pipeline::thirteen_documents(DocumentsViewConfig{}, ShardIndexingMode::kSequential, 1);
  const auto on = [&](const DeviceMeshParameters& mesh) { return train({.mesh = mesh, .data = data, .num_steps = 2}); };
  const Trained expected = on({});
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.tensor_parallel = 2},
                                           DeviceMeshParameters{.context_parallel_shard = 2, .tensor_parallel = 2}}) {
    SCOPED_TRACE(mesh.world_size());
    expect_same(on(mesh), expected);
  }
}

TEST(PaddingTraining, Of_packed_sequences_of_a_rest_is_that_of_one_rank) {
  const DataConfig data = pipeline::thirteen_documents(PackedViewConfig{}, ShardIndexingMode::kSequential, 1);
  const auto on = [&](const DeviceMeshParameters& mesh) {
    return train({.mesh = mesh, .has_experts = true, .data = data, .num_steps = 1});
  };
  const Trained expected = on({});
  expect_same(on({.data_parallel_replicate = 4, .expert_parallel = 2}), expected);
  expect_same(on({.data_parallel_replicate = 2, .context_parallel_shard = 2}), expected);
  expect_same(on({.context_parallel_shard = 2, .tensor_parallel = 3}), expected);
}

}  // namespace
}  // namespace d9d::test::padding_training_test

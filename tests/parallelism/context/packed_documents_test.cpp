// Attention of packed documents over ranks that each hold some positions of each row, compared with each document
// alone.
#include <algorithm>
#include <random>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/attention/sdpa.h"
#include "d9d/parallelism/context/packed_rows.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

#include "tests/parallelism/one_rank.h"
#include "tests/support/io_faults.h"

namespace d9d::test::packed_documents_test {
namespace {

using ::testing::HasSubstr;
using Lengths = std::vector<std::int64_t>;  // of the documents of two rows, in order

constexpr std::int64_t kSequence = 24;
constexpr std::int64_t kRows = 2;

PackedSequences packed_of(const Lengths& lengths) {
  std::vector<std::int32_t> ends = {0};
  for (const std::int64_t length : lengths) ends.push_back(ends.back() + static_cast<std::int32_t>(length));
  return {.cu_seqlens = at::tensor(ends, at::kInt), .max_length = std::ranges::max(lengths)};
}

// Boundaries at random positions of each row, several of them equal now and then.
Lengths random_lengths(int seed) {
  std::mt19937 generator(static_cast<std::mt19937::result_type>(seed));
  Lengths lengths;
  for (std::int64_t row = 0; row < kRows; ++row) {
    std::vector<std::int64_t> ends(generator() % 7);
    for (std::int64_t& end : ends) end = static_cast<std::int64_t>(generator() % (kSequence + 1));
    std::ranges::sort(ends);
    ends.push_back(kSequence);
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) lengths.push_back(end - std::exchange(begin, end));
  }
  return lengths;
}

std::vector<Lengths> all_lengths() {
  std::vector<Lengths> all = {{24, 24},                      // one document a row
                              {3, 3, 3, 3, 3, 3, 3, 3, 24},  // at the edges of the chunks of four ranks
                              {6, 12, 6, 1, 22, 1},          // at those of two ranks, and longer than a chunk
                              {0, 24, 0, 0, 5, 0, 19, 0},    // without positions
                              {2, 1, 1, 4, 16, 23, 1}};
  for (int seed = 0; seed < 6; ++seed) all.push_back(random_lengths(seed));
  return all;
}

TEST(PackedRows, Have_the_positions_of_each_document_that_are_in_its_ranges) {
  for (const Lengths& lengths : all_lengths()) {
    for (const auto& ranges : std::vector<std::vector<FlatRange>>{
             {{0, 24}}, {{0, 6}}, {{6, 18}}, {{3, 4}}, {{21, 24}}, {{0, 6}, {18, 24}}, {{3, 4}, {6, 7}, {20, 22}}}) {
      Lengths expected;
      std::int64_t position = 0;
      for (const std::int64_t length : lengths) {
        std::int64_t num_in_range = 0;
        for (const std::int64_t end = position + length; position < end; ++position) {
          const std::int64_t in_row = position % kSequence;
          const auto has = [&](const FlatRange& range) { return in_row >= range.begin && in_row < range.end; };
          num_in_range += std::ranges::any_of(ranges, has) ? 1 : 0;
        }
        expected.push_back(num_in_range);
      }
      const PackedSequences actual = PackedRows(packed_of(lengths), kSequence).in(ranges);
      EXPECT_TRUE(at::equal(actual.cu_seqlens, packed_of(expected).cu_seqlens)) << actual.cu_seqlens;
      EXPECT_GE(actual.max_length, packed_of(expected).max_length);
    }
  }
}

TEST(PackedRows, Are_made_once_for_the_layers_of_a_batch) {
  LastPackedRows last;
  const PackedSequences packed = packed_of({5, 19, 24}), other = packed_of({5, 19, 24});
  const std::shared_ptr<const PackedRows> rows = last.of(packed, kSequence);
  EXPECT_EQ(last.of(packed, kSequence), rows);
  const std::vector<FlatRange> half = {{0, kSequence / 2}};
  EXPECT_TRUE(rows->in(half).cu_seqlens.is_same(rows->in(half).cu_seqlens));
  EXPECT_NE(last.of(other, kSequence), rows);
  EXPECT_NE(last.of(packed, kSequence / 2), rows);
  const std::shared_ptr<const PackedRows> before = last.of(packed, kSequence);
  packed.cu_seqlens.copy_(packed_of({24, 5, 19}).cu_seqlens);  // as a loop of one's own may that keeps its buffers
  EXPECT_NE(last.of(packed, kSequence), before);
  EXPECT_EQ(last.of(packed, kSequence)->in(half).cu_seqlens[1].item<int>(), kSequence / 2);
}

TEST(PackedRows, That_inference_makes_do_not_come_into_training) {
  LastPackedRows last;
  const PackedSequences packed = packed_of({5, 19, 24});
  const std::vector<FlatRange> half = {{0, kSequence / 2}};
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(last.of(packed, kSequence)->in(half).cu_seqlens.is_inference());
  }
  EXPECT_FALSE(last.of(packed, kSequence)->in(half).cu_seqlens.is_inference());
}

struct Case {
  const char* name;
  SdpaParameters parameters;
  bool is_causal = true;
  friend std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.name; }
};

class PackedDocuments : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cores, PackedDocuments,
                         ::testing::Values(Case{"torch", {.backend = TorchSdpaConfig{}}},
                                           Case{"eager", {.backend = EagerSdpaConfig{}}},
                                           Case{"window_and_sinks", {.num_sinks = 4, .window_left = 4}},
                                           Case{"softcap", {.softcap = 2.0}},
                                           Case{"torch_not_causal", {.backend = TorchSdpaConfig{}}, false},
                                           Case{"sinks_not_causal", {.num_sinks = 4}, false}),
                         [](const auto& each) { return each.param.name; });

ModulePtr<Sdpa> make_core(const SdpaParameters& parameters) {
  auto core = initialized(make_module<Sdpa>(parameters));
  if (core->sinks) {
    const at::NoGradGuard no_grad;
    core->sinks->local().copy_(values({*parameters.num_sinks}, 7));
  }
  return core;
}

// Of each document without the others. heads: query, key, value [B, S, H, D].
at::Tensor one_by_one(const Sdpa& core, const std::vector<at::Tensor>& heads, const Lengths& lengths,
                      const kernels::SdpaOptions& options) {
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    std::vector<at::Tensor> own;
    for (const at::Tensor& each : heads) own.push_back(each.flatten(0, 1).narrow(0, first, length).unsqueeze(0));
    if (length > 0) outputs.push_back(core.forward({.query = own[0], .key = own[1], .value = own[2]}, options));
    first += length;
  }
  return at::cat(outputs, 1).view(heads[0].sizes());
}

void expect_each_alone(const Case& each, const Lengths& lengths, std::int64_t num_ranks, ContextAttention method) {
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const DeviceMesh ranks = mesh_of(world, "cp");
    const PositionCut positions = context_parallel_cut(ranks);
    const auto one = make_core(each.parameters), cut = make_core(each.parameters);
    parallelize_context_parallel(*cut, positions, {.attention = method});
    std::vector<at::Tensor> whole, own;
    for (const std::int64_t num_heads : {4, 2, 2}) {
      whole.push_back(values({kRows, kSequence, num_heads, 8}, std::ssize(whole)).requires_grad_());
      own.push_back(context_parallel_shard(whole.back().detach(), 1, positions).clone().requires_grad_());
    }
    const kernels::SdpaOptions options{.causal = each.is_causal};
    const at::Tensor expected = one_by_one(*one, whole, lengths, options);
    const at::Tensor output =
        cut->forward({.query = own[0], .key = own[1], .value = own[2], .packed = packed_of(lengths)}, options);
    const at::Tensor grad = values(expected.sizes(), 5);
    (expected * grad).sum().backward();
    (output * context_parallel_shard(grad, 1, positions)).sum().backward();
    expect_close("output", output, context_parallel_shard(expected, 1, positions), tolerance("fp64"));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      expect_close("gradient", own[i].grad(), context_parallel_shard(whole[i].grad(), 1, positions), tolerance("fp64"));
    }
    ranks.communicator()->barrier();  // who returns while others still wait is gone for them
    if (!one->sinks) return;
    const at::Tensor sum = cut->sinks->local().grad().clone();
    ranks.communicator()->all_reduce(sum, ReduceOp::kSum).wait();
    expect_close("sinks", sum, one->sinks->local().grad(), tolerance("fp64"));
  });
}

TEST_P(PackedDocuments, Are_each_document_alone) {
  for (const Lengths& lengths : all_lengths()) {
    SCOPED_TRACE(::testing::PrintToString(lengths));
    for (const std::int64_t num_ranks : {2, 3, 4}) {
      for (const ContextAttention method :
           {ContextAttention::kGathered, ContextAttention::kAuto, ContextAttention::kRing}) {
        if (method == ContextAttention::kRing && GetParam().parameters.window_left) continue;  // refused
        expect_each_alone(GetParam(), lengths, num_ranks, method);
      }
    }
  }
}

// Two ranks divide the heads, three do not.
TEST(PackedDocumentsErrors, Name_a_window_that_looks_ahead) {
  const SdpaParameters parameters{.window_left = 3, .window_right = 2};
  const auto refusal_of = [&](std::int64_t num_ranks, ContextAttention method) {
    return message_of<ConfigError>([&] { expect_each_alone({"", parameters, false}, {24, 24}, num_ranks, method); });
  };
  EXPECT_THAT(refusal_of(2, ContextAttention::kGathered), HasSubstr("to be auto or heads here, got gathered"));
  for (const ContextAttention method : {ContextAttention::kAuto, ContextAttention::kGathered}) {
    EXPECT_THAT(refusal_of(3, method), HasSubstr("got a window of attention that is not causal"));
  }
}

}  // namespace
}  // namespace d9d::test::packed_documents_test

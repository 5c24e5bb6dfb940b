// Embedding and head over ranks that each hold some rows of every split, compared with one rank.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/head/language_modelling_head.h"
#include "d9d/parallelism/tensor/parallelize_tensor_parallel.h"
#include "d9d/parallelism/tensor/vocabulary_parallel_context.h"

#include "tests/parallelism/one_rank.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/io_faults.h"

namespace d9d::test::vocabulary_parallel_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kHidden = 6;
// Over four ranks: 3, 3, 3, 2 rows; 1, 1, 1, 0 rows; 2, 2, 1, 0.
const VocabularySplits kVocabulary{.sizes = {{"base", 11}, {"added", 3}, {"prompt", 5}},
                                   .order = {"base", "prompt", "added"}};

// Every row of the vocabulary and some rows again; 24 = 2 x 12 positions.
at::Tensor all_ids() {
  return at::cat({at::arange(19, at::kLong), at::tensor({18, 0, 11, 7, 15}, at::kLong)}).view({2, 12});
}
at::Tensor some_labels() {
  at::Tensor labels = all_ids().clone();
  labels[0][3] = -100;
  labels[1].slice(0, 8).fill_(-100);
  return labels;
}

// The module with weights, and with an adapter whose factors are random if it adapts.
template <class M>
ModulePtr<M> ready(const ModulePtr<M>& module, bool adapts, const DeviceMesh* mesh = nullptr,
                   at::ScalarType dtype = at::kDouble) {
  if (adapts) module->add_adapter({.rank = 2, .scale = 1.5});
  for (const auto& [name, parameter] : module->named_parameters()) {
    if (is_adapter_parameter(name)) parameter->set_init(init::normal(0.5));
  }
  if (mesh != nullptr) parallelize_tensor_parallel(*module, *mesh);
  return initialized(module, dtype);
}

class VocabularyParallel : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, VocabularyParallel, ::testing::Values(2, 4), ::testing::PrintToStringParamName());

void expect_embedding_of_one_rank(std::int64_t num_ranks, bool adapts) {
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto one = ready(make_module<SplitTokenEmbeddings>(kVocabulary, kHidden), adapts);
    const auto cut = ready(make_module<SplitTokenEmbeddings>(kVocabulary, kHidden), adapts, &mesh);
    const at::Tensor grad = values({2, 12, kHidden}, 1);
    const at::Tensor expected = one(all_ids());
    const at::Tensor rows = cut(all_ids());
    (expected * grad).sum().backward();
    (rows * part(grad, 1, world)).sum().backward();
    expect_close("rows", rows, part(expected, 1, world), tolerance("fp64"));
    expect_gradients(*cut, *one, mesh, tolerance("fp64"));
  });
}

TEST_P(VocabularyParallel, Embedding_equals_that_of_one_rank) { expect_embedding_of_one_rank(GetParam(), false); }

TEST_P(VocabularyParallel, Embedding_with_an_adapter_equals_that_of_one_rank) {
  expect_embedding_of_one_rank(GetParam(), true);
}

void expect_loss_of_one_rank(std::int64_t num_ranks, at::ScalarType dtype, const Tolerance& tolerance,
                             bool adapts = false) {
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto one = ready(make_module<LanguageModellingHead>(kVocabulary, kHidden), adapts, nullptr, dtype);
    const auto cut = ready(make_module<LanguageModellingHead>(kVocabulary, kHidden), adapts, &mesh, dtype);

    // Widely spread logits: subtracting the maximum of the wrong rank would overflow.
    const at::Tensor whole = (values({2, 12, kHidden}, 2) * 400).to(dtype).requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world);
    const at::Tensor expected = one(whole, LanguageModellingShared{some_labels()}).cross_entropy;
    const at::Tensor loss = cut(shard, LanguageModellingShared{some_labels()}).cross_entropy;
    const at::Tensor grad = values({2, 12}, 3).to(expected.scalar_type());
    (expected * grad).sum().backward();
    (loss * grad).sum().backward();
    expect_close("loss", loss, expected, tolerance);
    EXPECT_TRUE(loss.masked_select(some_labels().eq(-100)).eq(0).all().item<bool>());
    expect_close("hidden", shard.grad(), part(whole.grad(), 1, world), tolerance);
    expect_gradients(*cut, *one, mesh, tolerance);
  });
}

TEST_P(VocabularyParallel, Loss_equals_that_of_one_rank) {
  expect_loss_of_one_rank(GetParam(), at::kDouble, tolerance("fp64"));
  expect_loss_of_one_rank(GetParam(), at::kFloat, tolerance("fp32"));
}

TEST_P(VocabularyParallel, Loss_with_an_adapter_equals_that_of_one_rank) {
  expect_loss_of_one_rank(GetParam(), at::kDouble, tolerance("fp64"), /*adapts=*/true);
}

// Every softmax is so small over the split "far", of which each rank has rows, that the preset's filter leaves it out.
TEST_P(VocabularyParallel, Gradients_leave_out_what_the_preset_says) {
  const VocabularySplits vocabulary{.sizes = {{"near", 64}, {"far", 64}}, .order = {"near", "far"}};
  run_ranks(RankBackend::kThreads, GetParam(), [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto set_far = [](const LanguageModellingHead& head) {
      const at::NoGradGuard no_grad;
      for (std::size_t split = 0; split < 2; ++split)
        head.weights[split]->local().select(1, 0).fill_(split == 0 ? 0 : -32);
    };
    const auto one = initialized(make_module<LanguageModellingHead>(vocabulary, kHidden), at::kFloat);
    const auto cut = make_module<LanguageModellingHead>(
        vocabulary, kHidden, CausalLMHeadConfig{.preset = kernels::LinearCrossEntropyPreset::kCce});
    parallelize_tensor_parallel(*cut, mesh);
    initialized(cut, at::kFloat);
    set_far(*one);
    set_far(*cut);
    at::Tensor whole = values({2, 12, kHidden}, 2).to(at::kFloat);
    whole.select(2, 0).fill_(1);
    whole.requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world);
    one(whole, LanguageModellingShared{some_labels()}).cross_entropy.sum().backward();
    cut(shard, LanguageModellingShared{some_labels()}).cross_entropy.sum().backward();
    EXPECT_TRUE(cut->weights[1]->local().grad().eq(0).all().item<bool>());
    EXPECT_FALSE(one->weights[1]->local().grad().eq(0).any().item<bool>());
    expect_close("hidden", shard.grad(), part(whole.grad(), 1, world), tolerance("fp32"));
    one->weights[1]->local().mutable_grad().zero_();
    expect_gradients(*cut, *one, mesh, tolerance("fp32"));
  });
}

TEST_P(VocabularyParallel, Loss_without_any_label_is_zero_and_has_zero_gradients) {
  run_ranks(RankBackend::kThreads, GetParam(), [](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto head = make_module<LanguageModellingHead>(kVocabulary, kHidden);
    parallelize_tensor_parallel(*head, mesh);
    initialized(head);
    const at::Tensor shard = leaf_part(values({2, 12, kHidden}, 2), 1, world);
    const at::Tensor loss = head(shard, LanguageModellingShared{at::full({2, 12}, -100, at::kLong)}).cross_entropy;
    loss.sum().backward();
    EXPECT_TRUE(loss.eq(0).all().item<bool>());
    EXPECT_TRUE(shard.grad().eq(0).all().item<bool>());
  });
}

class VocabularyParallelRanks : public ::testing::TestWithParam<RankBackend> {
 protected:
  void SetUp() override {
    if (GetParam() == RankBackend::kNccl && !has_gpus(2)) GTEST_SKIP() << "needs two GPUs";
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, VocabularyParallelRanks, ::testing::Values(RankBackend::kThreads));
INSTANTIATE_TEST_SUITE_P(Nccl, VocabularyParallelRanks, ::testing::Values(RankBackend::kNccl));

// In bfloat16, and with gradients in forward where there are kernels for that.
TEST_P(VocabularyParallelRanks, Have_the_loss_and_gradients_of_one_rank_in_bf16) {
  const Tolerance rounding{"bf16 head", 2e-2, "gradients of logits, hidden and weights round at 2^-9 each"};
  run_ranks(GetParam(), 2, [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const at::Device device = mesh.communicator()->device();
    const VocabularySplits vocabulary{.sizes = {{"base", 300}, {"added", 31}}, .order = {"base", "added"}};
    const auto head = [&] { return make_module<LanguageModellingHead>(vocabulary, 32); };
    const auto one = head(), cut = head();
    parallelize_tensor_parallel(*cut, mesh);
    for (const auto& module : {one, cut}) {
      module->to(at::kBFloat16);
      module->materialize(device);
      module->reset_parameters(/*base_seed=*/5);
    }
    const at::Tensor whole = (values({2, 12, 32}, 2) * 30).to(device, at::kBFloat16).requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world), labels = (some_labels() * 17).clamp(-100).to(device);
    const HeadLoss in_forward{.gradients = HeadGradients::kInForward};
    const at::Tensor expected = LocalVocabularyContext().cross_entropy(whole, {.rows = one->weights}, labels, {});
    const at::Tensor loss =
        VocabularyParallelContext(mesh).cross_entropy(shard, {.rows = cut->weights}, labels, in_forward);
    (expected.sum() * 0.37).backward();
    (loss.sum() * 0.37).backward();
    expect_close("loss", loss, expected, tolerance("fp32 on GPUs"));
    expect_close("hidden", shard.grad(), part(whole.grad(), 1, world), rounding);
    expect_gradients(*cut, *one, mesh, rounding);
  });
}

void expect_logits_of_one_rank(std::int64_t num_ranks, bool adapts) {
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto one = ready(make_module<LanguageModellingHead>(kVocabulary, kHidden), adapts);
    const auto cut = ready(make_module<LanguageModellingHead>(kVocabulary, kHidden), adapts, &mesh);
    const at::Tensor whole = values({2, 12, kHidden}, 2).requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world);
    const at::Tensor expected = one(whole);
    const at::Tensor logits = cut(shard);
    const at::Tensor grad = values({2, 12, 19}, 3);
    (expected * grad).sum().backward();
    (logits * grad).sum().backward();
    expect_close("logits", logits, expected, tolerance("fp64"));
    expect_close("hidden", shard.grad(), part(whole.grad(), 1, world), tolerance("fp64"));
    expect_gradients(*cut, *one, mesh, tolerance("fp64"));
  });
}

TEST_P(VocabularyParallel, Logits_and_their_gradients_equal_those_of_one_rank) {
  expect_logits_of_one_rank(GetParam(), false);
}

TEST_P(VocabularyParallel, Logits_with_an_adapter_equal_those_of_one_rank) {
  expect_logits_of_one_rank(GetParam(), true);
}

TEST(VocabularyParallelErrors, Name_a_label_outside_of_the_vocabulary) {
  const auto run = [] {
    run_ranks(RankBackend::kThreads, 2, [](World& world) {
      const DeviceMesh mesh = mesh_of(world, "tp");
      const auto head = make_module<LanguageModellingHead>(kVocabulary, kHidden);
      parallelize_tensor_parallel(*head, mesh);
      initialized(head);
      (void)head(values({1, 1, kHidden}, 0), LanguageModellingShared{at::tensor({3, 19}, at::kLong).view({1, 2})});
    });
  };
  EXPECT_THAT(message_of<ConfigError>(run), HasSubstr("vocabulary of 19 or -100, got 19"));
}

TEST(VocabularyParallelErrors, Name_a_vocabulary_that_leaves_a_rank_without_rows) {
  const auto run = [] {
    run_ranks(RankBackend::kThreads, 4, [](World& world) {
      const DeviceMesh mesh = mesh_of(world, "tp");
      const VocabularySplits vocabulary{.sizes = {{"a", 2}, {"b", 5}}, .order = {"a", "b"}};
      parallelize_tensor_parallel(*make_module<LanguageModellingHead>(vocabulary, kHidden), mesh);
    });
  };
  EXPECT_THAT(message_of<ConfigError>(run),
              AllOf(HasSubstr("each of 4 tensor-parallel ranks some rows"), HasSubstr("splits of [2, 5] rows"),
                    HasSubstr("Set mesh.tensor_parallel to 3")));
}

}  // namespace
}  // namespace d9d::test::vocabulary_parallel_test

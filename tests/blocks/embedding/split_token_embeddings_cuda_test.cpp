#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/blocks/embedding/split_token_embeddings.h"

#include "tests/support/device.h"
#include "tests/support/gpu_test.h"

namespace d9d::split_token_embeddings_cuda_test {
namespace {

constexpr std::int64_t kHidden = 64;
const VocabularySplits kOne{.sizes = {{"all", 13}}, .order = {"all"}};
const VocabularySplits kThree{.sizes = {{"base", 7}, {"prompt", 4}, {"added", 2}},
                              .order = {"base", "prompt", "added"}};

class EmbeddingCuda : public test::GpuTest {
 protected:
  static ModulePtr<SplitTokenEmbeddings> make(const VocabularySplits& vocabulary) {
    auto embeddings = make_module<SplitTokenEmbeddings>(vocabulary, kHidden);
    embeddings->to(at::kBFloat16);
    embeddings->materialize(at::Device(at::kCUDA, 0));
    embeddings->reset_parameters(/*base_seed=*/1);
    return embeddings;
  }
};

// The largest relative error of the gradient of 13 ids that occur repeatedly, for gradients of one sign.
double gradient_error(const ModulePtr<SplitTokenEmbeddings>& embeddings, std::int64_t num_tokens) {
  const at::Tensor ids = at::arange(num_tokens, at::TensorOptions(at::kLong).device(at::kCUDA, 0)).remainder(13);
  const at::Tensor grad = at::sin(at::arange(num_tokens * kHidden, at::TensorOptions(at::kDouble).device(at::kCUDA, 0)))
                              .abs()
                              .add(0.1)
                              .view({num_tokens, kHidden})
                              .to(at::kBFloat16);
  embeddings(ids).backward(grad);
  std::vector<at::Tensor> parts;
  for (const ParameterPtr& weight : embeddings->weights) parts.push_back(weight->local().grad().to(at::kDouble));
  const at::Tensor expected =
      at::zeros({13, kHidden}, grad.options().dtype(at::kDouble)).index_add(0, ids, grad.to(at::kDouble));
  return (at::cat(parts) / expected - 1).abs().max().item<double>();
}

TEST_F(EmbeddingCuda, Sums_the_gradient_of_a_frequent_token_in_float32) {
  for (const VocabularySplits& vocabulary : {kOne, kThree}) {
    for (const std::int64_t num_tokens : {1 << 14, 3000, 100}) {
      EXPECT_LT(gradient_error(make(vocabulary), num_tokens), 1.0 / 256) << num_tokens;
    }
  }
}

TEST_F(EmbeddingCuda, Gives_nan_for_an_id_outside_of_several_tables_and_waits_for_nothing) {
  const auto embeddings = make(kThree);
  const at::Tensor ids = at::tensor({0, 6, -1, 7, 12, 13}, at::kLong).cuda();
  const at::Tensor is_known = at::tensor({1, 1, 0, 1, 1, 0}, at::kLong).cuda().to(at::kBool).unsqueeze(1);
  at::Tensor rows;
  EXPECT_FALSE(test::waits_for_device([&] { rows = embeddings(ids); }));
  EXPECT_TRUE(at::equal(rows.isnan(), is_known.logical_not().expand({6, kHidden})));
}

}  // namespace
}  // namespace d9d::split_token_embeddings_cuda_test

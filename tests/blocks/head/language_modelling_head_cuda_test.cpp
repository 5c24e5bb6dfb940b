#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/blocks/head/language_modelling_head.h"

#include "tests/support/cuda_test.h"

namespace d9d::language_modelling_head_cuda_test {
namespace {

constexpr std::int64_t kVocabulary = 8192, kHidden = 256, kTokens = 64;
constexpr std::int64_t kGradientBytes = kVocabulary * kHidden * 2;

class LanguageModellingHeadCuda : public test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    head_->to(at::kBFloat16);
    head_->materialize(kDevice);
    head_->reset_parameters(/*base_seed=*/1);
  }

  // What a forward and its graph hold until backward.
  [[nodiscard]] std::int64_t kept_bytes(bool backward_follows) {
    const auto held = [] { return at::accelerator::getDeviceStats(0).allocated_bytes[0].current; };
    const at::Tensor positions = at::arange(kTokens, at::TensorOptions(kDevice).dtype(at::kLong)).view({1, kTokens});
    const at::Tensor hidden = at::ones({1, kTokens, kHidden}, at::TensorOptions(kDevice).dtype(at::kBFloat16));
    head_->set_backward_follows(backward_follows);
    const std::int64_t before = held();
    const at::Tensor loss = head_(hidden, LanguageModellingShared{.labels = positions}).cross_entropy.sum();
    const std::int64_t kept = held() - before;
    loss.backward();
    return kept;
  }

  const at::Device kDevice = at::Device(at::kCUDA, 0);

 private:
  const ModulePtr<LanguageModellingHead> head_ =
      make_module<LanguageModellingHead>(VocabularySplits{.sizes = {{"all", kVocabulary}}, .order = {"all"}}, kHidden);
};

TEST_F(LanguageModellingHeadCuda, Keeps_no_gradient_of_the_vocabulary_where_backward_does_not_follow) {
  for (const bool follows : {true, false}) (void)kept_bytes(follows);  // libraries allocate their workspaces
  EXPECT_GE(kept_bytes(/*backward_follows=*/true), kGradientBytes);
  EXPECT_LT(kept_bytes(/*backward_follows=*/false), kGradientBytes / 8);
}

}  // namespace
}  // namespace d9d::language_modelling_head_cuda_test

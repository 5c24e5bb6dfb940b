#include "d9d/models/huggingface/module_weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/qwen3_dense/huggingface.h"

#include "tests/support/io_faults.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::module_weights_test {
namespace {

ModulePtr<DecoderForCausalLM> make_model(std::uint64_t seed) {
  return test::initialized(make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense())), at::kFloat, seed);
}

std::vector<TensorSource> sources_of(const std::map<std::string, at::Tensor>& state) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : state) sources.push_back(tensor_source(name, tensor));
  return sources;
}

void expect_equal_weights(const Module& actual, const Module& expected) {
  const auto state = actual.state_dict();
  for (const auto& [name, tensor] : expected.state_dict()) EXPECT_TRUE(at::equal(state.at(name), tensor)) << name;
}

TEST(ModuleWeights, Load_from_the_names_of_transformers) {
  const std::filesystem::path folder = test::fresh_directory("d");
  const auto trained = make_model(1);
  write_safetensors(folder / "model.safetensors",
                    mapped_sources(qwen3_dense_to_huggingface(test::tiny_dense(), CausalLMHeadConfig{}),
                                   tensors_of(trained->state_dict())));
  const HuggingFaceDirectory directory(folder);
  const auto loaded = make_model(2);
  const StateMapper mapper = qwen3_dense_from_huggingface(test::tiny_dense(), CausalLMHeadConfig{}, directory.names());
  EXPECT_THAT(load_weights(*loaded, mapper, directory).unused, ::testing::IsEmpty());
  expect_equal_weights(*loaded, *trained);
}

TEST(ModuleWeights, Load_from_our_own_names_and_the_head_names_of_0_16) {
  const std::filesystem::path folder = test::fresh_directory("d");
  const auto trained = make_model(1);
  std::map<std::string, at::Tensor> state = trained->state_dict();
  for (const std::string split : {"regular", "added"}) {
    auto head = state.extract("head.lm_head." + split + ".weight");
    head.key() = "lm_head.lm_head." + split + ".weight";
    state.insert(std::move(head));
  }
  write_safetensors(folder / "model.safetensors", sources_of(state));
  const HuggingFaceDirectory directory(folder);
  const auto loaded = make_model(2);
  const StateMapper mapper = qwen3_dense_from_huggingface(test::tiny_dense(), CausalLMHeadConfig{}, directory.names());
  EXPECT_THAT(load_weights(*loaded, mapper, directory).unused, ::testing::IsEmpty());
  expect_equal_weights(*loaded, *trained);
}

TEST(ModuleWeights, Name_the_parameter_that_the_folder_lacks) {
  const std::filesystem::path folder = test::fresh_directory("d");
  auto state = make_model(1)->state_dict();
  state.erase("model.norm.weight");
  write_safetensors(folder / "model.safetensors", sources_of(state));
  const HuggingFaceDirectory directory(folder);
  const auto loaded = make_model(2);
  const StateMapper mapper = qwen3_dense_from_huggingface(test::tiny_dense(), CausalLMHeadConfig{}, directory.names());
  EXPECT_THROW((void)load_weights(*loaded, mapper, directory), StateError);
}

}  // namespace
}  // namespace d9d::module_weights_test

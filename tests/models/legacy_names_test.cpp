#include "d9d/models/legacy_names.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/qwen3_dense/huggingface.h"

#include "tests/support/io_faults.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::legacy_names_test {
namespace {
using State = std::map<std::string, at::Tensor>;

struct Heads : Module {
  explicit Heads(const std::vector<std::string>& names) {
    for (const std::string& name : names)
      register_module(name.substr(0, name.find('.')), make_module<Leaf>(name.substr(name.find('.') + 1)));
  }
  struct Leaf : Module {
    explicit Leaf(const std::string& name) {
      const auto dot = name.find('.');
      if (dot == std::string::npos) {
        register_parameter(name, {.shape = {1}, .init = init::zeros()});
      } else {
        register_module(name.substr(0, dot), make_module<Leaf>(name.substr(dot + 1)));
      }
    }
  };
};

// The values of a module with one parameter of each name, loaded from `state`.
State loaded(const std::string& name, const State& state, const std::string& head_prefix = "head.") {
  const auto model = make_module<Heads>(std::vector{name});
  model->materialize(at::kCPU);
  const NamedTensors tensors = tensors_of(state);
  (void)load_model_state(*model, own_names(*model, tensors.names, head_prefix), tensors);
  return model->state_dict();
}

TEST(FormerNames, Of_all_three_heads_load_under_the_present_names) {
  const State former = {{"lm_head.lm_head.regular.weight", at::full({1}, 1.0)},
                        {"cls_head.score.weight", at::full({1}, 2.0)},
                        {"embedding_head.projection.weight", at::full({1}, 3.0)},
                        {"model.norm.weight", at::full({1}, 4.0)}};
  int expected = 1;
  for (const std::string name :
       {"head.lm_head.regular.weight", "head.score.weight", "head.projection.weight", "model.norm.weight"}) {
    EXPECT_EQ(loaded(name, former).at(name).item<float>(), expected++);
  }
}

TEST(FormerNames, Give_way_to_present_ones) {
  const State both = {{"heads.a.score.weight", at::full({1}, 1.0)}, {"cls_head.score.weight", at::full({1}, 2.0)}};
  EXPECT_EQ(loaded("heads.a.score.weight", both, "heads.a.").at("heads.a.score.weight").item<float>(), 1);
}

TEST(FormerNames, Do_not_hide_that_a_tensor_is_missing) {
  EXPECT_THAT(test::message_of<StateError>([] { (void)loaded("head.score.weight", {}); }),
              ::testing::HasSubstr("'head.score.weight'"));
}

ModulePtr<DecoderForCausalLM> make_model(std::uint64_t seed) {
  return test::initialized(make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense())), at::kFloat, seed);
}

// A folder with the tensors, and a model that was loaded from it as the examples' providers do.
ModulePtr<DecoderForCausalLM> loaded_from(const State& state) {
  const std::filesystem::path folder = test::fresh_directory("d");
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : state) sources.push_back(tensor_source(name, tensor));
  write_safetensors(folder / "model.safetensors", sources);
  const HuggingFaceDirectory directory(folder);
  const std::vector<std::string> names = directory.names();
  auto model = make_model(2);
  const StateMapper mapper = has_own_names(*model, names)
                                 ? own_names(*model, names)
                                 : qwen3_dense_from_huggingface(test::tiny_dense(), CausalLMHeadConfig{}, names);
  EXPECT_THAT(load_model_state(*model, mapper, tensors_of(directory)).unused, ::testing::IsEmpty());
  return model;
}

void expect_equal_weights(const Module& actual, const Module& expected) {
  const auto state = actual.state_dict();
  for (const auto& [name, tensor] : expected.state_dict()) EXPECT_TRUE(at::equal(state.at(name), tensor)) << name;
}

TEST(OwnNames, Are_told_from_those_of_transformers) {
  const auto trained = make_model(1);
  State theirs;
  for (const TensorSource& tensor : mapped_sources(qwen3_dense_to_huggingface(test::tiny_dense(), CausalLMHeadConfig{}),
                                                   tensors_of(trained->state_dict()))) {
    theirs.emplace(tensor.name, tensor.read());
  }
  expect_equal_weights(*loaded_from(theirs), *trained);
}

TEST(OwnNames, Load_with_the_head_names_of_0_16) {
  const auto trained = make_model(1);
  State state = trained->state_dict();
  for (const std::string split : {"regular", "added"}) {
    auto head = state.extract("head.lm_head." + split + ".weight");
    head.key() = "lm_head.lm_head." + split + ".weight";
    state.insert(std::move(head));
  }
  expect_equal_weights(*loaded_from(state), *trained);
}

TEST(OwnNames, Are_all_there_or_none_are) {
  State state = make_model(1)->state_dict();
  state.erase("model.norm.weight");
  EXPECT_THROW((void)loaded_from(state), StateError);
}

}  // namespace
}  // namespace d9d::legacy_names_test

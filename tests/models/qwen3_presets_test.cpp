// The JSON files of published sizes: each must give the published number of parameters, by this library's shapes and by
// those of transformers.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/config/load_config.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/huggingface.h"
#include "d9d/models/qwen3_moe/model.h"

#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::qwen3_presets_test {
namespace {

struct Published {
  std::string name;
  std::int64_t num_parameters;  // tied matrices count once
};
const std::vector<Published> kDense = {{"0.6B", 596'049'920}, {"1.7B", 1'720'574'976}, {"4B", 4'022'468'096},
                                       {"8B", 8'190'735'360}, {"14B", 14'768'307'200}, {"32B", 32'762'123'264}};
const std::vector<Published> kMoE = {{"30B-A3B", 30'532'122'624}, {"235B-A22B", 235'093'634'560}};

template <class Parameters>
Parameters load_preset(const std::string& family, const std::string& name) {
  return load_record<Parameters>(D9D_SOURCE_DIR "/d9d/models/" + family + "/presets/" + name + ".json");
}

template <class Model, class Parameters>
ModulePtr<DecoderForCausalLM> make_on_meta(const Parameters& parameters) {
  return make_decoder_for_causal_lm(make_module<Model>(parameters, DecoderStageOptions{}));
}

// Of the tensors of an export.
std::int64_t num_elements(const StateMapper& mapper, const Module& model) {
  std::int64_t sum = 0;
  for (const TensorSource& tensor : mapped_sources(mapper, tensors_of(model.state_dict()))) {
    sum += c10::multiply_integers(tensor.shape);
  }
  return sum;
}

TEST(Qwen3Presets, Have_the_published_number_of_parameters) {
  for (const auto& [name, num_parameters] : kDense) {
    const auto parameters = load_preset<Qwen3DenseParameters>("qwen3_dense", name);
    const auto model = make_on_meta<Qwen3DenseModel>(parameters);
    EXPECT_EQ(num_elements(qwen3_dense_to_huggingface(parameters, CausalLMHeadConfig{}), *model), num_parameters)
        << name;
  }
  for (const auto& [name, num_parameters] : kMoE) {
    const auto parameters = load_preset<Qwen3MoEParameters>("qwen3_moe", name);
    const auto model = make_on_meta<Qwen3MoEModel>(parameters);
    EXPECT_EQ(num_elements(qwen3_moe_to_huggingface(parameters, CausalLMHeadConfig{}), *model), num_parameters) << name;
  }
}

template <class Model, class Parameters>
std::int64_t num_elements_on_meta(const Parameters& parameters) {
  const auto model = make_on_meta<Model>(parameters);
  std::int64_t sum = 0;
  for (const auto& [name, parameter] : model->named_parameters()) {
    EXPECT_TRUE(parameter->local().is_meta()) << name;
    sum += parameter->local().numel();
  }
  return sum;
}

TEST(Qwen3Presets, Construct_without_memory) {
  for (const auto& [name, num_parameters] : kDense) {
    const auto parameters = load_preset<Qwen3DenseParameters>("qwen3_dense", name);
    EXPECT_EQ(num_elements_on_meta<Qwen3DenseModel>(parameters), num_parameters) << name;
  }
  for (const auto& [name, num_parameters] : kMoE) {
    const auto parameters = load_preset<Qwen3MoEParameters>("qwen3_moe", name);
    EXPECT_EQ(num_elements_on_meta<Qwen3MoEModel>(parameters), num_parameters) << name;
  }
}

TEST(Qwen3Presets, Make_transformers_build_as_many) {
  const std::filesystem::path folder = test::fresh_directory("d");
  const auto write_config = [&](const std::string& name, const nlohmann::json& config) {
    write_file_atomically(folder / (name + ".json"), config.dump());
  };
  for (const auto& [name, num_parameters] : kDense) {
    const auto parameters = load_preset<Qwen3DenseParameters>("qwen3_dense", name);
    write_config(name, qwen3_dense_huggingface_config(parameters, CausalLMHeadConfig{}, Dtype::kBFloat16));
  }
  for (const auto& [name, num_parameters] : kMoE) {
    const auto parameters = load_preset<Qwen3MoEParameters>("qwen3_moe", name);
    write_config(name, qwen3_moe_huggingface_config(parameters, CausalLMHeadConfig{}, Dtype::kBFloat16));
  }
  const std::string counts = test::run_python("tests/models/preset_oracle.py", {folder});
  for (const std::vector<Published>* family : {&kDense, &kMoE}) {
    for (const auto& [name, num_parameters] : *family) {
      EXPECT_THAT(counts, ::testing::HasSubstr(name + " " + std::to_string(num_parameters) + "\n"));
    }
  }
}

}  // namespace
}  // namespace d9d::qwen3_presets_test

// Reads published config.json files of families (tests/data/published_configs), and their presets.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/config/load_config.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/base/io/input_file.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/families.h"

#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::published_configs_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Model {
  std::string file;  // empty: no config.json, the preset alone
  std::string family;
  std::string preset;
  std::int64_t num_parameters;  // as published; tied matrices count once
};
const std::vector<Model> kModels = {{"Llama-3.1-8B-Instruct", "llama3", "3.1-8B", 8'030'261'248},
                                    {"", "llama3", "3.1-70B", 70'553'706'496},
                                    {"Llama-3.2-1B-Instruct", "llama3", "3.2-1B", 1'235'814'400},
                                    {"", "llama3", "3.2-3B", 3'212'749'824},
                                    {"", "qwen2", "2.5-0.5B", 494'032'768},
                                    {"", "qwen2", "2.5-1.5B", 1'543'714'304},
                                    {"Qwen2.5-7B-Instruct", "qwen2", "2.5-7B", 7'615'616'512},
                                    {"", "qwen2", "2.5-32B", 32'763'876'352}};

json published(const std::string& file) {
  return json::parse(text_of_file(D9D_SOURCE_DIR "/tests/data/published_configs/" + file + ".json"));
}

// Calls visit(family, parameters of the preset).
template <class Visit>
void visit_preset(const Model& model, const Visit& visit) {
  for_each_family([&]<class Parameters>(const ModelFamily<Parameters>& family) {
    if (model.family != family.name) return;
    visit(family,
          load_record<Parameters>(D9D_SOURCE_DIR "/d9d/models/" + model.family + "/presets/" + model.preset + ".json"));
  });
}

// Calls visit(family, published config.json).
template <class Visit>
void visit_files(const Visit& visit) {
  for (const Model& model : kModels) {
    if (model.file.empty()) continue;
    SCOPED_TRACE(model.file);
    const json config = published(model.file);
    visit_family_of(config, [&](const auto& family) { visit(family, config); });
  }
}

TEST(PublishedConfigs, Are_read_as_the_presets) {
  for (const Model& model : kModels) {
    if (model.file.empty()) continue;
    SCOPED_TRACE(model.file);
    int num_visits = 0;
    visit_preset(model, [&](const auto& family, const auto& preset) {
      ++num_visits;
      EXPECT_EQ(write_record(family.parameters_from_huggingface(published(model.file))), write_record(preset));
    });
    EXPECT_EQ(num_visits, 1);
  }
}

TEST(PublishedConfigs, Mean_the_same_in_the_form_of_transformers_5) {
  visit_files([](const auto& family, json config) {
    const auto parameters = family.parameters_from_huggingface(config);
    json rope = config.value("rope_scaling", json{{"rope_type", "default"}});
    rope["rope_theta"] = config.at("rope_theta");
    config["rope_parameters"] = rope;
    config["dtype"] = config.at("torch_dtype");
    for (const char* const key : {"rope_scaling", "rope_theta", "torch_dtype"}) config.erase(key);
    EXPECT_EQ(write_record(family.parameters_from_huggingface(config)), write_record(parameters));
  });
}

TEST(PublishedConfigs, Are_written_with_the_published_values) {
  visit_files([](const auto& family, const json& config) {
    const json written =
        family.huggingface_config(family.parameters_from_huggingface(config), CausalLMHeadConfig{}, Dtype::kBFloat16);
    for (const auto& [key, value] : written.items()) EXPECT_EQ(value, config.value(key, value)) << key;
    for (const char* const key : {"architectures", "model_type", "rope_theta", "torch_dtype", "vocab_size"}) {
      EXPECT_TRUE(written.contains(key)) << key;
    }
    EXPECT_EQ(written.contains("rope_scaling"), config.contains("rope_scaling"));
  });
}

TEST(PublishedConfigs, Have_the_published_number_of_parameters) {
  for (const Model& model : kModels) {
    visit_preset(model, [&](const auto& family, const auto& preset) {
      const auto decoder = make_decoder_for_causal_lm(family.build(preset, {}));
      const StateMapper mapper = family.to_huggingface(preset, CausalLMHeadConfig{}, ExpertsFormat::kModuleList);
      std::int64_t sum = 0;
      for (const TensorSource& tensor : mapped_sources(mapper, tensors_of(decoder->state_dict()))) {
        sum += c10::multiply_integers(tensor.shape);
      }
      EXPECT_EQ(sum, model.num_parameters) << model.preset;
    });
  }
}

TEST(PublishedConfigs, Make_transformers_build_as_many) {
  const std::filesystem::path folder = test::fresh_directory("d");
  for (const Model& model : kModels) {
    visit_preset(model, [&](const auto& family, const auto& preset) {
      write_file_atomically(folder / (model.family + "_" + model.preset + ".json"),
                            family.huggingface_config(preset, CausalLMHeadConfig{}, Dtype::kBFloat16).dump());
    });
  }
  const std::string counts = test::run_python("tests/models/preset_oracle.py", {folder});
  for (const Model& model : kModels) {
    EXPECT_THAT(counts, HasSubstr(cat(model.family, "_", model.preset, " ", model.num_parameters, "\n")));
  }
}

TEST(PublishedConfigs, Of_an_unknown_family_are_refused_with_the_known_ones) {
  const std::string refusal = test::message_of<ConfigError>([] {
    visit_family_of(json{{"model_type", "gpt2"}}, [](const auto& /*family*/) { FAIL(); });
  });
  for_each_family([&](const auto& family) { EXPECT_THAT(refusal, HasSubstr(cat("'", family.model_type, "'"))); });
  EXPECT_THAT(refusal, HasSubstr("got \"gpt2\""));
}

}  // namespace
}  // namespace d9d::published_configs_test

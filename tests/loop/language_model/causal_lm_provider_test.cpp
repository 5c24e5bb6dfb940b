#include "d9d/loop/language_model/causal_lm_provider.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/models/families.h"
#include "d9d/testing/ranks.h"

#include "tests/support/decoder_families.h"
#include "tests/support/io_faults.h"

namespace d9d::causal_lm_provider_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <class Parameters>
CausalLMProvider<Parameters> provider_of(const ModelFamily<Parameters>& family,
                                         const std::optional<PeftConfig>& adapters = std::nullopt) {
  const auto sizes = test::small_parameters<Parameters>({});
  return {family, {.model = {.written = sizes}, .adapters = adapters}, sizes, {{"README.md", "A model."}}};
}

// The stage of a model in one piece, with values.
template <class Parameters>
std::shared_ptr<Module> build(CausalLMProvider<Parameters>& provider) {
  const DistContext context({.world = one_rank_world()});
  const auto stage = provider.initialize_model_stage(context, {}).module;
  stage->materialize(at::kCPU);
  stage->reset_parameters(/*base_seed=*/5);
  return stage;
}

TEST(CausalLMProvider, Loads_what_it_exports_in_the_names_of_Hugging_Face_and_in_its_own) {
  for_each_family([](const auto& family) {
    SCOPED_TRACE(family.name);
    auto provider = provider_of(family);
    const auto stage = build(provider);
    const ModelExport exported = provider.prepare_export(*stage);
    EXPECT_EQ(exported.files.at("README.md"), "A model.");
    const auto config = nlohmann::json::parse(exported.files.at("config.json"));
    EXPECT_EQ(config.at("model_type"), family.model_type);
    const NamedTensors state = tensors_of(stage->state_dict());
    for (const StateMapper& names : {exported.mapper, mapper::identities_of_module(*stage)}) {
      const std::filesystem::path folder = test::fresh_directory("d") / "model";
      write_huggingface_directory(folder, config, mapped_sources(names, state));
      const HuggingFaceDirectory directory(folder);
      const StateMapper loaded = provider.map_source_checkpoint(directory, *stage);
      EXPECT_THAT(unused_names(loaded, directory.names()), IsEmpty());
      for (const TensorSource& tensor : mapped_sources(loaded, tensors_of(directory))) {
        EXPECT_TRUE(at::equal(tensor.read(), stage->state_dict().at(tensor.name))) << tensor.name;
      }
    }
  });
}

// 6 N + 6 L Hq D S: N are the weights of the matrix products that a token passes through; 4 N if they are frozen.
TEST(CausalLMProvider, Knows_the_flops_of_a_token) {
  for_each_family([](const auto& family) {
    SCOPED_TRACE(family.name);
    auto provider = provider_of(family);
    const auto sizes = write_record(provider.sizes);
    const auto& layer = sizes.at("layer");
    const auto size = [&](const char* name) { return layer.at(name).template get<double>(); };
    const double hidden = size("hidden_size"), head_dim = size("head_dim"), heads = size("num_attention_heads");
    const double key_value_heads = size("num_key_value_heads"), intermediate = size("intermediate_size");
    const bool has_experts = layer.contains("num_experts");
    const double experts = has_experts ? size("experts_top_k") : 1;  // that a token passes through
    const double ffn = 3 * hidden * intermediate * experts + (has_experts ? hidden * size("num_experts") : 0);
    const double projections = 2 * hidden * head_dim * (heads + key_value_heads);
    double vocabulary = 0;
    for (const auto& [name, rows] : provider.sizes.split_vocab_size) vocabulary += static_cast<double>(rows);
    const auto layers = sizes.at("num_hidden_layers").template get<double>();
    const double weights = layers * (projections + ffn) + hidden * vocabulary;
    EXPECT_DOUBLE_EQ(provider.flops_per_token().value(), 6 * weights);
    provider.sequence_length = 64;
    EXPECT_DOUBLE_EQ(provider.flops_per_token().value(), 6 * weights + 6 * layers * heads * head_dim * 64);

    const LoraConfig lora{.module_name_pattern = ".*_proj", .params = {.r = 2, .alpha = 2.0, .dropout = 0.0}};
    const double sides_of_attention = 4 * hidden + 2 * head_dim * (heads + key_value_heads);
    const double sides_of_ffn = 3 * (hidden + intermediate) * experts;
    EXPECT_DOUBLE_EQ(provider_of(family, lora).flops_per_token().value(),
                     4 * weights + 6 * 2 * layers * (sides_of_attention + sides_of_ffn));
  });
}

TEST(CausalLMProvider, Notes_the_sizes_of_a_checkpoint_and_refuses_others) {
  for_each_family([]<class Parameters>(const ModelFamily<Parameters>& family) {
    SCOPED_TRACE(family.name);
    auto provider = provider_of(family);
    const auto stage = build(provider);
    const ModelExport exported = provider.prepare_export(*stage);
    const std::filesystem::path folder = test::fresh_directory("d") / "model";
    write_huggingface_directory(folder, nlohmann::json::parse(exported.files.at("config.json")),
                                mapped_sources(exported.mapper, tensors_of(stage->state_dict())));

    const Parameters sizes = causal_lm_sizes(family, {}, folder);
    EXPECT_EQ(sizes.layer.hidden_size, provider.sizes.layer.hidden_size);
    const CausalLMProvider from_checkpoint(family, {}, sizes);
    EXPECT_EQ(from_checkpoint.dump_hparams().at("model"), nlohmann::json(write_record(sizes)));

    CausalLMProviderConfig<Parameters> other{.model = {.written = sizes}};
    other.model.written->rope_base += 1;
    EXPECT_THAT(test::message_of<ConfigError>([&] { (void)causal_lm_sizes(family, other, folder); }),
                HasSubstr("model_provider.model.rope_base"));
  });
}

}  // namespace
}  // namespace d9d::causal_lm_provider_test

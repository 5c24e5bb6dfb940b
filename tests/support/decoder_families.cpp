#include "tests/support/decoder_families.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "d9d/models/families.h"

namespace d9d::test {
namespace {

using Json = nlohmann::json;

using Variants = std::vector<std::pair<std::string, Json>>;

template <class Parameters>
DecoderFamily entry_of(const ModelFamily<Parameters>& family, Variants variants) {
  const auto read = family.parameters_from_huggingface;
  return {.name = family.name,
          .has_experts = family.has_experts,
          .make_small =
              [&family](const SmallDecoder& sizes, const DecoderStageOptions& options) {
                return family.build(small_parameters<Parameters>(sizes), options);
              },
          .huggingface_variants = std::move(variants),
          .make_backbone = [&family, read](const Json& config, const DecoderStageOptions& options)
              -> ModulePtr<DecoderBackbone> { return family.build(read(config), options); },
          .from_huggingface =
              [&family, read](const Json& config, const HeadConfig& head, const std::vector<std::string>& names) {
                return family.from_huggingface(read(config), head, names);
              },
          .to_huggingface =
              [&family, read](const Json& config, const HeadConfig& head) {
                return family.to_huggingface(read(config), head, ExpertsFormat::kModuleList);
              },
          .huggingface_config = [&family, read](
                                    const Json& config, const HeadConfig& head,
                                    Dtype dtype) { return family.huggingface_config(read(config), head, dtype); }};
}

// Weights have a large variance, so that attention and routing are not uniform.
constexpr const char* kSizes = R"({
  "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 67, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "initializer_range": 0.2, "tie_word_embeddings": false
})";

Json config_of(const char* model_type, const char* more) {
  Json config = Json::parse(kSizes);
  config.update(Json::parse(more));
  config["model_type"] = model_type;
  if (config.at("head_dim").is_null()) config.erase("head_dim");
  return config;
}

constexpr const char* kYarn = R"({"rope_parameters": {
  "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}})";
// With frequencies in each of the three bands.
constexpr const char* kLlama3Rope = R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
  "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}})";
// All layers are below the first one with a window.
constexpr const char* kUnusedWindows = R"({"use_sliding_window": true, "sliding_window": 4, "max_window_layers": 3})";
constexpr const char* kExperts = R"({"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true})";
constexpr const char* kUnnormalizedExperts = R"({"moe_intermediate_size": 24, "num_experts": 6,
  "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": false})";

// The first and the second layer have no experts.
constexpr const char* kDenseAmongExperts = R"({"moe_intermediate_size": 24, "num_experts": 6,
  "num_experts_per_tok": 2, "decoder_sparse_step": 3, "mlp_only_layers": [0], "norm_topk_prob": true})";

// Tiny models of a family that transformers can make too, by the family's name.
Variants variants_of(const std::string& family) {
  static const std::map<std::string, Variants> variants = {
      {"qwen3_dense",
       {{"plain", config_of("qwen3", "{}")},
        {"tied", config_of("qwen3", R"({"tie_word_embeddings": true})")},
        {"yarn", config_of("qwen3", kYarn)}}},
      {"qwen3_moe",
       {{"normalized", config_of("qwen3_moe", kExperts)},
        {"unnormalized", config_of("qwen3_moe", kUnnormalizedExperts)},
        {"dense_layers", config_of("qwen3_moe", kDenseAmongExperts)}}},
      {"llama3",
       {{"plain", config_of("llama", R"({"head_dim": null})")},
        {"tied", config_of("llama", R"({"tie_word_embeddings": true})")},
        {"llama3", config_of("llama", kLlama3Rope)}}},
      {"qwen2",
       {{"plain", config_of("qwen2", R"({"head_dim": null})")},
        {"tied", config_of("qwen2", R"({"tie_word_embeddings": true})")},
        {"unused_windows", config_of("qwen2", kUnusedWindows)}}}};
  return variants.at(family);
}

}  // namespace

const std::vector<DecoderFamily>& decoder_families() {
  static const std::vector<DecoderFamily> families = [] {
    std::vector<DecoderFamily> entries;
    for_each_family([&](const auto& family) { entries.push_back(entry_of(family, variants_of(family.name))); });
    return entries;
  }();
  return families;
}

const DecoderFamily& decoder_family(const std::string& name) {
  const auto found = std::ranges::find(decoder_families(), name, &DecoderFamily::name);
  if (found == decoder_families().end()) throw std::out_of_range("no family of decoders is named " + name);
  return *found;
}

}  // namespace d9d::test

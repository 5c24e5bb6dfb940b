#include "tests/support/decoder_families.h"

#include <algorithm>
#include <stdexcept>

#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/huggingface.h"
#include "d9d/models/qwen3_moe/model.h"

namespace d9d::test {
namespace {

using Json = nlohmann::json;

// Makes a family from its parameter record, its model, and the four functions in its huggingface.h.
template <class Parameters, class Model, class Read, class From, class To, class Write>
DecoderFamily make_family(const char* name, std::vector<std::pair<std::string, Json>> variants, const Read& read,
                          const From& from, const To& to, const Write& write) {
  constexpr bool kHasExperts = requires(const Parameters& parameters) { parameters.layer.num_experts; };
  return {.name = name,
          .has_experts = kHasExperts,
          .make_small = [](const SmallDecoder& sizes, const DecoderStageOptions& options) -> ModulePtr<PreNormDecoder> {
            return make_module<Model>(small_parameters<Parameters>(sizes), options);
          },
          .huggingface_variants = std::move(variants),
          .make_backbone = [=](const Json& config, const DecoderStageOptions& options) -> ModulePtr<DecoderBackbone> {
            return make_module<Model>(read(config), options);
          },
          .from_huggingface = [=](const Json& config, const HeadConfig& head,
                                  const std::vector<std::string>& names) { return from(read(config), head, names); },
          .to_huggingface = [=](const Json& config, const HeadConfig& head) { return to(read(config), head); },
          .huggingface_config = [=](const Json& config, const HeadConfig& head,
                                    Dtype dtype) { return write(read(config), head, dtype); }};
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
  return config;
}

constexpr const char* kYarn = R"({"rope_parameters": {
  "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}})";
constexpr const char* kExperts = R"({"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true})";
constexpr const char* kUnnormalizedExperts = R"({"moe_intermediate_size": 24, "num_experts": 6,
  "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": false})";

DecoderFamily qwen3_dense() {
  return make_family<Qwen3DenseParameters, Qwen3DenseModel>(
      "qwen3_dense",
      {{"plain", config_of("qwen3", "{}")},
       {"tied", config_of("qwen3", R"({"tie_word_embeddings": true})")},
       {"yarn", config_of("qwen3", kYarn)}},
      qwen3_dense_parameters_from_huggingface,
      [](const auto&... args) { return qwen3_dense_from_huggingface(args...); },
      [](const auto&... args) { return qwen3_dense_to_huggingface(args...); }, qwen3_dense_huggingface_config);
}

DecoderFamily qwen3_moe() {
  return make_family<Qwen3MoEParameters, Qwen3MoEModel>(
      "qwen3_moe",
      {{"normalized", config_of("qwen3_moe", kExperts)},
       {"unnormalized", config_of("qwen3_moe", kUnnormalizedExperts)}},
      qwen3_moe_parameters_from_huggingface, [](const auto&... args) { return qwen3_moe_from_huggingface(args...); },
      [](const auto&... args) { return qwen3_moe_to_huggingface(args...); }, qwen3_moe_huggingface_config);
}

}  // namespace

const std::vector<DecoderFamily>& decoder_families() {
  static const std::vector<DecoderFamily> families = {qwen3_dense(), qwen3_moe()};
  return families;
}

const DecoderFamily& decoder_family(const std::string& name) {
  const auto found = std::ranges::find(decoder_families(), name, &DecoderFamily::name);
  if (found == decoder_families().end()) throw std::out_of_range("no family of decoders is named " + name);
  return *found;
}

}  // namespace d9d::test

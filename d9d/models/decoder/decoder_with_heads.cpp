#include "d9d/models/decoder/decoder_with_heads.h"

#include "d9d/base/check.h"

namespace d9d {
namespace {

struct BuildHead {
  DecoderBackbone& backbone;
  AnyHead operator()(const CausalLMHeadConfig& config) const { return make_language_modelling_head(backbone, config); }
  AnyHead operator()(const ClassificationHeadConfig& config) const {
    return make_module<ClassificationHead>(config, backbone.hidden_size());
  }
  AnyHead operator()(const EmbeddingHeadConfig& config) const {
    return make_module<EmbeddingHead>(config, backbone.hidden_size());
  }
};

class HeadMap : public Module {
 public:
  explicit HeadMap(const std::map<std::string, AnyHead>& heads) {
    for (const auto& [name, any_head] : heads) {
      std::visit([&, key = name](const auto& head) { register_module(key, head); }, any_head);
    }
  }
};

std::map<std::string, AnyHead> build_heads(const std::map<std::string, HeadConfig>& configs,
                                           DecoderBackbone& backbone) {
  D9D_CHECK(!configs.empty(), ConfigError, "[models::decoder] expected at least one head, got none.");
  std::map<std::string, AnyHead> heads;
  if (!backbone.stage().is_last()) return heads;
  for (const auto& [name, config] : configs) heads.emplace(name, build_decoder_head(config, backbone));
  return heads;
}

}  // namespace

AnyHead build_decoder_head(const HeadConfig& config, DecoderBackbone& backbone) {
  D9D_CHECK(backbone.stage().is_last(), ConfigError, "[models::decoder] expected the last stage for a head, got stage ",
            backbone.stage().current_stage, " of ", backbone.stage().num_stages, ".");
  return std::visit(BuildHead{backbone}, config);
}

DecoderWithHeads::DecoderWithHeads(const ModulePtr<DecoderBackbone>& backbone,
                                   const std::map<std::string, HeadConfig>& configs)
    : model(register_module("model", backbone)), heads(build_heads(configs, *backbone)) {
  if (!heads.empty()) register_module<HeadMap>("heads", heads);
}

DecoderWithHeads::Output DecoderWithHeads::forward(const SequenceStageInput& input,
                                                   const SequenceHeadsShared& shared) const {
  SequenceTransfer state = model(input, shared.sequence);
  if (heads.empty()) return state;
  DecoderHeadsOutput output{
      .heads = {}, .hidden_states_snapshot = state.hidden_states_snapshot, .auxiliary_loss = state.auxiliary_loss};
  for (const auto& [name, any_head] : heads) {
    const auto found = shared.heads.find(name);
    D9D_CHECK(found != shared.heads.end(), ConfigError, "[models::decoder] expected a shared input for head '", name,
              "', got none.");
    std::visit(
        [&, key = name](const auto& head) {
          using Shared = typename std::decay_t<decltype(*head)>::Shared;
          const auto* const head_shared = std::get_if<Shared>(&found->second);
          D9D_CHECK(head_shared != nullptr, ConfigError, "[models::decoder] expected the shared input of head '", key,
                    "' to be of its kind, got another.");
          output.heads.emplace(key, head(state.hidden_states, *head_shared));
        },
        any_head);
  }
  return output;
}

}  // namespace d9d

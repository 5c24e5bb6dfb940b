#include "tests/layout/layout_model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/blocks/moe/moe_layer.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/peft/inject.h"

#include "tests/layout/own_layer.h"
#include "tests/support/decoder_families.h"

namespace d9d::test {
namespace {

ModulePtr<PreNormDecoder> make_backbone(const LayoutJob& job, Checkpoints checkpoints, const PipelineStageInfo& stage) {
  const SmallDecoder sizes{.num_layers = job.num_layers,
                           .hidden_size = kLayoutHidden,
                           .intermediate_size = 13,  // not divisible by any number of ranks
                           .num_attention_heads = job.num_heads,
                           .num_key_value_heads = job.num_key_heads,
                           .head_dim = 8,
                           .max_position_ids = job.num_positions,
                           .vocabulary_size = kLayoutVocabulary,
                           .ties_embeddings = job.ties_embeddings,
                           .num_experts = kLayoutExperts,
                           .experts_top_k = 2,
                           .num_dense_layers = std::min(job.num_dense, job.num_layers - 1),
                           .auxiliary_loss_coefficient = job.balances_by_loss ? 0.1 : 0.0,
                           .bias_update_rate = job.balances_by_bias || job.starves_experts ? 1e-3 : 0.0};
  const DecoderStageOptions options{
      .stage = stage,
      .snapshot_mode = job.has_snapshots ? HiddenStatesAggregationMode::kMean : HiddenStatesAggregationMode::kNo,
      .checkpointing = checkpoints == Checkpoints::kLayers || checkpoints == Checkpoints::kNested ||
                       checkpoints == Checkpoints::kOuterNested};
  if (job.family == kOwnLayers) return make_own_decoder(job.own, sizes, options);
  return decoder_family(job.family).make_small(sizes, options);
}

std::map<std::string, HeadConfig> head_configs(const LayoutJob& job) {
  std::map<std::string, HeadConfig> configs;
  for (const Head head : job.heads) {
    HeadConfig& config = configs[name_of(head)];
    if (head == Head::kClassification) {
      config = ClassificationHeadConfig{.num_labels = kLayoutClasses, .dropout = job.head_dropout};
    }
    if (head == Head::kEmbedding) config = EmbeddingHeadConfig{.embedding_dim = kLayoutEmbedding, .normalize = true};
  }
  return configs;
}

void follow_plans(const PreNormDecoder& decoder, std::int64_t first_plan) {
  for (std::size_t i = 0; i < decoder.layers().size(); ++i) {
    const std::vector<ActivationPlan> plans = decoder.layers()[i]->activation_plans();
    const std::int64_t index = first_plan + decoder.layer_range.begin + static_cast<std::int64_t>(i);
    decoder.layers()[i]->set_activation_plan(plans[static_cast<std::size_t>(index) % plans.size()]);
  }
}

void checkpoint_blocks(Module& layer) {
  layer.for_each_module([](const std::string&, Module& each) {
    const bool is_block = dynamic_cast<GroupedQueryAttention*>(&each) != nullptr ||
                          dynamic_cast<SwiGLU*>(&each) != nullptr || dynamic_cast<MoELayer*>(&each) != nullptr;
    if (is_block) each.set_activation_checkpointing(true);
  });
}

void freeze_attention(const PreNormDecoder& decoder) {
  if (decoder.embed_tokens) decoder.embed_tokens->set_requires_grad(false);
  for (std::size_t i = 0; i < decoder.layers().size(); ++i) {
    if ((decoder.layer_range.begin + static_cast<std::int64_t>(i)) % 2 == 1) continue;
    for (const auto& [name, parameter] : decoder.layers()[i]->named_parameters()) {
      if (name.starts_with("self_attn")) parameter->set_requires_grad(false);
    }
  }
}

// Of all modules, and full tuning of norms.
StackConfig adapters_of(const LayoutJob& job) {
  const LoraParams params{.r = 3, .alpha = 5.0, .dropout = job.adapter_dropout};
  LoraParams of_experts = params;
  of_experts.dropout = 0.0;
  const std::string projections = ".*\\.self_attn\\.[a-z]*_proj", mixtures = ".*\\.(mlp|experts)\\..*";
  StackConfig method{.methods = {FullTuneConfig{.module_name_pattern = ".*norm"}}};
  std::string others;  // by a negative look ahead
  if (job.has_magnitudes) {
    method.methods.emplace_back(DoraConfig{.module_name_pattern = projections, .params = params});
    others += cat("(?!", projections, "$)");
    const std::string of_mlp = ".*\\.(mlp|shared_expert)\\.[a-z]*_proj";
    method.methods.emplace_back(
        DoraConfig{.module_name_pattern = of_mlp, .params = has_experts(job) ? of_experts : params});
    others += cat("(?!", of_mlp, "$)");
  }
  if (has_experts(job)) {
    method.methods.emplace_back(LoraConfig{.module_name_pattern = cat(others, mixtures), .params = of_experts});
    others += cat("(?!", mixtures, "$)");
  }
  method.methods.emplace_back(LoraConfig{.module_name_pattern = cat(others, ".*"), .params = params});
  return method;
}

}  // namespace

const char* name_of(Head head) {
  if (head == Head::kCausalLM) return "causal_lm";
  return head == Head::kClassification ? "classification" : "embedding";
}

LayoutModel::LayoutModel(const LayoutJob& job, Checkpoints checkpoints, const PipelineStageInfo& stage)
    : backbone(make_backbone(job, checkpoints, stage)),
      decoder(register_module("decoder", make_module<DecoderWithHeads>(backbone, head_configs(job)))),
      num_passes_(job.calls_layers_twice ? 2 : 1),
      is_one_checkpoint_(checkpoints == Checkpoints::kOuter || checkpoints == Checkpoints::kOuterNested) {
  if (checkpoints == Checkpoints::kPlans) follow_plans(*backbone, 0);
  if (checkpoints == Checkpoints::kLaterPlans) follow_plans(*backbone, 3);
  if (checkpoints != Checkpoints::kNested && checkpoints != Checkpoints::kOuterNested) return;
  for (const auto& layer : backbone->layers()) checkpoint_blocks(*layer);
}

DecoderLayerOutput LayoutModel::run_layers(const DecoderLayerOutput& input, const LayerContext& context) const {
  DecoderLayerOutput state = input;
  for (int pass = 0; pass < num_passes_; ++pass) {
    for (const ModulePtr<DecoderLayer>& layer : backbone->layers()) {
      const DecoderLayerOutput output = layer(state.hidden_states, context);
      state.hidden_states = output.hidden_states;
      if (output.auxiliary_loss) {
        state.auxiliary_loss =
            state.auxiliary_loss ? *state.auxiliary_loss + *output.auxiliary_loss : *output.auxiliary_loss;
      }
    }
  }
  return state;
}

DecoderWithHeads::Output LayoutModel::forward(const SequenceStageInput& input,
                                              const SequenceHeadsShared& shared) const {
  if (num_passes_ == 1 && !is_one_checkpoint_) return decoder(input, shared);
  const LayerContext context = backbone->layer_context(shared.sequence);
  DecoderLayerOutput begin;
  if (const auto* const ids = std::get_if<SequenceInput>(&input)) {
    begin.hidden_states = backbone->embed_tokens(ids->input_ids);
  } else {
    const auto& arrived = std::get<SequenceTransfer>(input);
    begin = {.hidden_states = arrived.hidden_states, .auxiliary_loss = arrived.auxiliary_loss};
  }
  const auto layers = [this](const DecoderLayerOutput& state, const LayerContext& to_all) {
    return run_layers(state, to_all);
  };
  const DecoderLayerOutput state = is_one_checkpoint_ ? checkpoint(layers, begin, context) : layers(begin, context);
  if (!backbone->stage().is_last()) {
    std::optional<at::Tensor> auxiliary_loss = state.auxiliary_loss;
    if (backbone->config.has_auxiliary_loss && !auxiliary_loss) {
      auxiliary_loss = at::zeros({}, state.hidden_states.options());
    }
    return SequenceTransfer{
        .hidden_states = state.hidden_states, .hidden_states_snapshot = std::nullopt, .auxiliary_loss = auxiliary_loss};
  }
  const at::Tensor hidden_states = backbone->norm(state.hidden_states);
  DecoderHeadsOutput output{.heads = {}, .hidden_states_snapshot = {}, .auxiliary_loss = state.auxiliary_loss};
  for (const auto& [name, any_head] : decoder->heads) {
    std::visit(
        [&, key = name](const auto& head) {
          using Shared = typename std::decay_t<decltype(*head)>::Shared;
          output.heads.emplace(key, head(hidden_states, std::get<Shared>(shared.heads.at(key))));
        },
        any_head);
  }
  return output;
}

void LayoutModel::begin_microbatch(std::int64_t step, std::int64_t number) {
  for (const auto& layer : backbone->layers()) {
    if (auto* const own = dynamic_cast<OwnLayer*>(layer.shared().get())) own->begin_microbatch(step, number);
  }
}

std::vector<std::shared_ptr<Module>> LayoutModel::heads() const {
  std::vector<std::shared_ptr<Module>> modules;
  for (const auto& [name, any_head] : decoder->heads) {
    std::visit([&](const auto& head) { modules.push_back(head.shared()); }, any_head);
  }
  return modules;
}

ModulePtr<LayoutModel> make_layout_model(const LayoutJob& job, Checkpoints checkpoints,
                                         const PipelineStageInfo& stage) {
  auto model = make_module<LayoutModel>(job, checkpoints, stage);
  model->to(job.dtype);
  if (job.is_mixed) {
    for (const auto& [name, parameter] : model->named_parameters()) {
      if (name.find("norm") != std::string::npos) parameter->to(at::kFloat);
    }
  }
  if (job.adapts) {
    (void)inject_peft_into_stage(adapters_of(job), *model);
  }
  if (job.freezes_attention) freeze_attention(*model->backbone);
  return model;
}

}  // namespace d9d::test

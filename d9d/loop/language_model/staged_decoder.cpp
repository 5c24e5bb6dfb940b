#include "d9d/loop/language_model/staged_decoder.h"

#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/tree/tree.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/models/decoder/sharded_sequence.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {
namespace {

std::string text_of(const std::vector<PipelineStageInfo>& stages) {
  std::string text = "the stages";
  for (const PipelineStageInfo& stage : stages) text += cat(" ", stage.current_stage, " of ", stage.num_stages);
  return stages.empty() ? "no stages" : text;
}

// The input and output of the forward that computes the next token.
struct NextToken {
  std::optional<ShardedSequence> sequence;  // the tokens before the next one
  at::Tensor logits;                        // output of the last stage; undefined on other ranks
};

class DecoderStage final : public PipelineStage {
 public:
  // next: borrowed.
  DecoderStage(ModulePtr<DecoderForCausalLM> decoder, NextToken& next) : model(std::move(decoder)), next_(next) {}

  std::vector<at::Tensor> transfer(MicrobatchIndex, StageBoundary boundary) const override {
    return tree_leaves(model->stage_transfer(next_.sequence->input(), boundary));
  }
  std::vector<at::Tensor> forward(MicrobatchIndex, const std::vector<at::Tensor>& arrived, bool) override {
    const SequenceTransfer state = model->model(input_of(arrived), next_.sequence->shared());
    if (!model->head) return tree_leaves(state);
    next_.logits = next_.sequence->last_logits(*model, state.hidden_states);
    return {};
  }

  const ModulePtr<DecoderForCausalLM> model;

 private:
  [[nodiscard]] SequenceStageInput input_of(const std::vector<at::Tensor>& arrived) const {
    if (model->model->stage().is_first()) return next_.sequence->input();
    const auto like = tree_flatten(model->stage_transfer(next_.sequence->input(), StageBoundary::kIncoming));
    return tree_unflatten(like.spec, arrived);
  }

  NextToken& next_;
};

class StagedDecoder final : public TokenModel {
 public:
  StagedDecoder(const DistContext& context, const StagePlacement& placement,
                const std::vector<std::shared_ptr<Module>>& stages, const StageLinksConfig& links)
      : pipeline_(context.mesh(MeshDomain::kRegular).slice({"pp"})),
        device_(context.device()),
        executor_(context, forwards_on(placement), links) {
    for (const auto& stage : stages) {
      const auto model = std::dynamic_pointer_cast<DecoderForCausalLM>(stage);
      D9D_CHECK(model != nullptr, ConfigError, "[loop::staged_decoder] expected stages that are a DecoderForCausalLM, ",
                "got another module. Give generate() a TokenModel of your own.");
      stages_.push_back(std::make_unique<DecoderStage>(ModulePtr<DecoderForCausalLM>(model), next_));
    }
    std::vector<PipelineStageInfo> given, expected;
    for (const auto& stage : stages_) given.push_back(stage->model->model->stage());
    for (const StageIndex index : executor_.stages()) {
      expected.push_back({.num_stages = placement.num_stages(), .current_stage = index.value});
    }
    D9D_CHECK(text_of(given) == text_of(expected), ConfigError, "[loop::staged_decoder] expected ", text_of(expected),
              ", got ", text_of(given), ". Give it trainer.placement() and trainer.stages() as they are.");
    copies_ = copies_of(stages);
  }

  std::vector<ModulePtr<DecoderForCausalLM>> parts() const override {
    std::vector<ModulePtr<DecoderForCausalLM>> parts;
    for (const auto& stage : stages_) parts.push_back(stage->model);
    return parts;
  }

  ModulePtr<DecoderForCausalLM> whole() const override {
    return stages_.size() == 1 && executor_.placement().num_stages() == 1 ? stages_.front()->model : nullptr;
  }

  at::Tensor last_logits(const at::Tensor& ids, const DeviceMesh& sequence_ranks) override {
    update_copies(copies_);  // the program may have changed parameters
    for (const auto& stage : stages_) round_parameters(*stage->model);
    next_ = {.sequence = ShardedSequence(ids.to(device_), sequence_ranks), .logits = at::Tensor()};
    std::vector<PipelineStage*> stages;
    for (const auto& stage : stages_) stages.push_back(stage.get());
    executor_.run(stages, /*num_microbatches=*/1);
    return of_last_stage(next_.logits);
  }

 private:
  [[nodiscard]] at::Tensor of_last_stage(const at::Tensor& logits) const {
    if (pipeline_.num_ranks() == 1) return logits;
    // Logits are sent as float64, since the other ranks do not know the dtype of the last stage's head.
    const at::TensorOptions wide = at::TensorOptions(device_).dtype(at::kDouble);
    const at::Tensor shared = logits.defined() ? logits.to(at::kDouble)
                                               : at::empty({stages_.front()->model->model->vocabulary().total()}, wide);
    pipeline_.communicator()->broadcast(shared, executor_.placement().rank_of_last_stage()).wait();
    return shared;
  }

  DeviceMesh pipeline_;
  c10::Device device_;
  PipelineExecutor executor_;
  std::vector<ParameterCopy> copies_;  // tied parameters that several stages of this rank have
  NextToken next_;
  std::vector<std::unique_ptr<DecoderStage>> stages_;
};

}  // namespace

std::unique_ptr<TokenModel> staged_decoder(const DistContext& context, const StagePlacement& placement,
                                           const std::vector<std::shared_ptr<Module>>& stages,
                                           const StageLinksConfig& links) {
  return std::make_unique<StagedDecoder>(context, placement, stages, links);
}

}  // namespace d9d

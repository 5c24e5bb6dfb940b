#include "d9d/models/decoder/token_model.h"

#include "d9d/base/check.h"
#include "d9d/models/decoder/sharded_sequence.h"
#include "d9d/modules/mixed_precision.h"

namespace d9d {
namespace {

class OnePieceDecoder final : public TokenModel {
 public:
  explicit OnePieceDecoder(const ModulePtr<DecoderForCausalLM>& model) : model_(model) {}

  std::vector<ModulePtr<DecoderForCausalLM>> parts() const override { return {model_}; }
  ModulePtr<DecoderForCausalLM> whole() const override { return model_; }
  at::Tensor last_logits(const at::Tensor& ids, const DeviceMesh& sequence_ranks) override {
    round_parameters(*model_);  // the program may have changed parameters
    const ShardedSequence sequence(ids.to(model_->head->weights.front()->stored().device()), sequence_ranks);
    return sequence.last_logits(*model_, model_->model(sequence.input(), sequence.shared()).hidden_states);
  }

 private:
  ModulePtr<DecoderForCausalLM> model_;
};

}  // namespace

TokenModel::~TokenModel() = default;

ModulePtr<DecoderForCausalLM> TokenModel::whole() const { return nullptr; }

std::unique_ptr<TokenModel> one_piece_decoder(const ModulePtr<DecoderForCausalLM>& model) {
  D9D_CHECK(model->head && model->model->stage().num_stages == 1, ConfigError,
            "[models::generate] expected a model in one piece, got one of ", model->model->stage().num_stages,
            " stages. Give generate() what staged_decoder() makes of all of them.");
  return std::make_unique<OnePieceDecoder>(model);
}

}  // namespace d9d

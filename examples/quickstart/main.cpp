// A tiny Qwen3 learns one sentence by heart: model, loss, backward, optimiser, and a loop written by hand.
//
//   quickstart
#include <iostream>
#include <string>

#include <ATen/ATen.h>

#include "d9d/core/launch/launch.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/models/decoder/generate.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/optim/adamw.h"
#include "d9d/optim/optimizer.h"

namespace {

const std::string kSentence = "The quick brown fox jumps over the lazy dog.";
constexpr int kNumSteps = 60;

d9d::Qwen3DenseParameters tiny_model() {
  return {.layer = {.hidden_size = 64,
                    .intermediate_size = 128,
                    .num_attention_heads = 4,
                    .num_key_value_heads = 2,
                    .head_dim = 16},
          .num_hidden_layers = 2,
          .max_position_ids = 64,
          .split_vocab_size = {{"bytes", 256}},
          .split_vocab_order = {"bytes"}};
}

// Token ids [1, S]: each byte is one token.
at::Tensor token_ids(const std::string& text) {
  const at::Tensor ids = at::empty({1, std::ssize(text)}, at::kLong);
  for (std::int64_t i = 0; i < std::ssize(text); ++i) ids[0][i] = static_cast<unsigned char>(text[i]);
  return ids;
}

void learn_sentence(const d9d::DistContext& context) {
  // Building a model allocates nothing. Storage and values are created afterwards.
  const auto model =
      d9d::make_decoder_for_causal_lm(d9d::make_module<d9d::Qwen3DenseModel>(tiny_model(), d9d::DecoderStageOptions{}));
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/1);

  std::vector<d9d::NamedParameter> parameters;
  for (const auto& [name, parameter] : model->named_parameters()) parameters.push_back({name, parameter->stored()});
  d9d::Optimizer optimizer(d9d::AdamW(parameters, {.lr = 3e-3}));
  d9d::GradientManager gradients(context, *model, {}, {.max_norm = 1.0});

  // Every byte predicts the next one.
  const at::Tensor ids = token_ids(kSentence);
  const std::int64_t length = ids.size(1) - 1;
  const d9d::SequenceInput input{ids.narrow(1, 0, length)};
  const d9d::DecoderForCausalLM::Shared shared{.sequence = {.position_ids = at::arange(length).unsqueeze(0)},
                                               .head = {.labels = ids.narrow(1, 1, length)}};
  double loss_value = 0;
  for (int step = 0; step < kNumSteps; ++step) {
    gradients.begin_microbatch(/*is_last=*/true);
    const auto output = std::get<d9d::DecoderOutput<d9d::LanguageModellingHead>>(model(input, shared));
    const at::Tensor loss = output.head.cross_entropy.mean();
    loss.backward();
    gradients.add_loss_with_weight(loss, at::ones({}));
    gradients.end_microbatch();
    loss_value = gradients.apply(optimizer, optimizer.learning_rate()).loss;  // clips gradients and steps the optimiser
    gradients.reset();
    if (step % 10 == 0) std::cout << "step " << step << ": loss " << loss_value << '\n';
  }
  std::cout << "final loss " << loss_value << '\n';

  const std::string prompt = kSentence.substr(0, 1);
  std::cout << "generated: " << prompt << d9d::generate_bytes(model, prompt, {.num_tokens = length}) << '\n';
}

}  // namespace

int main() {
  return d9d::launch(d9d::LaunchConfig{.device = d9d::DeviceChoice::kCpu}, d9d::DeviceMeshParameters{},
                     [](d9d::DistContext& context) { learn_sentence(context); });
}

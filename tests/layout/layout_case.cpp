#include "tests/layout/layout_case.h"

#include <cmath>
#include <mutex>

#include <gtest/gtest.h>

#include "d9d/loop/component/gradient_manager.h"
#include "d9d/modules/models/decoder/parallelize.h"
#include "d9d/modules/models/qwen3_dense/model.h"
#include "d9d/modules/models/qwen3_moe/model.h"
#include "d9d/optim/adamw.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

#include "tests/support/compare.h"

namespace d9d::test {
namespace {

constexpr std::int64_t kNumSteps = 3;
constexpr std::int64_t kMaxDataRanks = 8;
constexpr std::int64_t kSequence = 8;
constexpr std::int64_t kVocabulary = 23;

template <class Parameters>
Parameters small_decoder(const LayoutJob& job) {
  Parameters parameters;
  parameters.layer.hidden_size = 16;
  parameters.layer.intermediate_size = 13;  // divides by no number of ranks
  parameters.layer.num_attention_heads = 4;
  parameters.layer.num_key_value_heads = 2;
  parameters.layer.head_dim = 8;
  parameters.num_hidden_layers = 3;
  parameters.max_position_ids = kSequence;
  parameters.split_vocab_size = {{"regular", kVocabulary - 3}, {"added", 3}};
  parameters.split_vocab_order = {"regular", "added"};
  parameters.tie_word_embeddings = job.ties_embeddings;
  return parameters;
}

ModulePtr<PreNormDecoder> make_backbone(const LayoutJob& job) {
  const DecoderStageOptions options{.enable_checkpointing = job.checkpoints};
  if (job.family == ModelFamily::kDense) {
    return make_module<Qwen3DenseModel>(small_decoder<Qwen3DenseParameters>(job), options);
  }
  auto parameters = small_decoder<Qwen3MoEParameters>(job);
  parameters.layer.num_experts = 8;
  parameters.layer.experts_top_k = 2;
  if (job.balances_experts) parameters.layer.router_auxiliary_loss_coefficient = 0.1;
  if (job.starves_experts) parameters.layer.router_bias_update_rate = 1e-3;  // gives the router a bias
  return make_module<Qwen3MoEModel>(parameters, options);
}

void freeze(const PreNormDecoder& decoder) {
  decoder.embed_tokens->set_requires_grad(false);
  for (std::size_t i = 0; i < decoder.layers().size(); i += 2) {
    for (const auto& [name, parameter] : decoder.layers()[i]->named_parameters()) {
      if (name.starts_with("self_attn")) parameter->set_requires_grad(false);
    }
  }
}

struct Microbatch {
  at::Tensor ids;
  at::Tensor labels;
};

// Sequence n of the job: the same whoever trains on it. Some positions are not predicted, more in some sequences.
Microbatch sequence(std::int64_t number) {
  const at::Tensor position = at::arange(kSequence + 1, at::kLong) + number * (kSequence + 1);
  const at::Tensor tokens = (position * position * 31 + position * 7 + number) % kVocabulary;
  at::Tensor labels = tokens.narrow(0, 1, kSequence).clone();
  labels.narrow(0, 0, number % 4).fill_(-100);
  return {.ids = tokens.narrow(0, 0, kSequence).unsqueeze(0), .labels = labels.unsqueeze(0)};
}

// Puts the parts of all ranks together.
class Assembler {
 public:
  void add(const std::string& name, const DTensor& part) {
    const std::lock_guard lock(mutex_);
    at::Tensor& whole = whole_[name];
    if (!whole.defined()) whole = at::full(part.global_shape, std::nan(""), part.local.options());
    const LocalBox box = local_box(part.global_shape, part.mesh, part.placements);
    const FlatRange range = flat_range(box.numel(), part.mesh, part.placements);
    at::Tensor target = whole;
    for (std::size_t dim = 0; dim < box.start.size(); ++dim) {
      target = target.narrow(static_cast<std::int64_t>(dim), box.start[dim], box.sizes[dim]);
    }
    at::Tensor flat = target.reshape({-1}).clone();
    const at::Tensor place = flat.narrow(0, range.begin, range.numel());
    const at::Tensor values = part.local.reshape({-1});
    EXPECT_TRUE(((place == values) | place.isnan()).all().item<bool>()) << "replicas of " << name << " differ";
    place.copy_(values);
    target.copy_(flat.view(target.sizes()));
  }
  [[nodiscard]] std::map<std::string, at::Tensor> take() { return std::move(whole_); }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> whole_;
};

class RankJob {
 public:
  RankJob(const DistContext& context, const LayoutJob& job) : context_(context), job_(job) {
    const auto backbone = make_backbone(job);
    model_ = make_decoder_for_causal_lm(backbone);
    model_->to(job.dtype);
    if (job.is_mixed) {
      for (const auto& [name, parameter] : model_->named_parameters()) {
        if (name.find("norm") != std::string::npos) parameter->to(at::kFloat);
      }
    }
    if (job.freezes_attention) freeze(*backbone);
    parallelize_decoder(context, *backbone, {model_->head.shared()}, job.fsdp);
    model_->materialize(at::kCPU);
    model_->reset_parameters(/*base_seed=*/11);
    if (job.starves_experts) starve_experts();
  }

  void train(LayoutResult& result, Assembler& gradients, Assembler& parameters) {
    GradientManager manager(context_, *model_, {}, {});
    std::vector<NamedParameter> trained;
    for (const auto& [name, parameter] : model_->named_parameters()) {
      if (parameter->requires_grad()) trained.push_back({name, parameter->stored()});
    }
    AdamW optimizer(trained, {.lr = 1e-2});
    for (std::int64_t step = 0; step < kNumSteps; ++step) {
      const StepGradients report = run_step(manager, step);
      if (step == 0) {
        for (const auto& [name, parameter] : model_->named_parameters()) {
          const at::Tensor& grad = parameter->stored().grad();
          EXPECT_EQ(grad.defined(), parameter->requires_grad()) << name;
          DTensor part = parameter->dtensor();
          part.local = grad;
          if (grad.defined()) gradients.add(name, part);
        }
      }
      if (context_.is_main_process()) {
        result.losses.push_back(report.loss);
        result.norms.push_back(report.norm);
      }
      optimizer.step(1e-2, at::scalar_tensor(std::min(1.0, 0.5 / report.norm), at::kDouble));
      manager.reset();
    }
    for (const auto& [name, parameter] : model_->named_parameters()) parameters.add(name, parameter->dtensor());
    const auto state = model_->full_state_dict();
    if (context_.is_main_process()) result.state = state;
  }

 private:
  void starve_experts() const {
    for (const auto& [name, buffer] : model_->named_buffers()) {
      if (name.ends_with("expert_bias")) buffer->local.narrow(0, 0, 2).fill_(10.0);
    }
  }

  StepGradients run_step(GradientManager& manager, std::int64_t step) {
    const std::int64_t global_batch = kMaxDataRanks * job_.num_accumulations;
    const std::int64_t share = global_batch / context_.data_parallel_size();
    const std::int64_t first = step * global_batch + context_.data_parallel_rank() * share;
    const DeviceMesh ranks = context_.mesh(MeshDomain::kBatch).slice({"cp"});
    const auto here = [&](const at::Tensor& row) { return context_parallel_shard(row, /*dim=*/1, ranks); };
    const at::Tensor positions = here(at::arange(kSequence).unsqueeze(0));
    for (std::int64_t i = 0; i < share; ++i) {
      const Microbatch whole = sequence(first + i);
      const Microbatch batch{.ids = here(whole.ids), .labels = here(whole.labels)};
      manager.begin_microbatch(i + 1 == share);
      const auto output = std::get<DecoderOutput<LanguageModellingHead>>(
          model_(SequenceInput{batch.ids}, DecoderForCausalLM::Shared{{positions, std::nullopt}, {batch.labels}}));
      const at::Tensor weight = batch.labels.ne(-100).sum().to(at::kDouble);
      at::Tensor loss = output.head.cross_entropy.sum().to(at::kDouble) / weight.clamp_min(1);
      if (output.auxiliary_loss) loss = loss + *output.auxiliary_loss;
      manager.add_loss_with_weight(loss, weight);
      (loss * weight).backward();
      manager.end_microbatch();
    }
    return manager.finish_step({.num_tokens = share * positions.numel()});
  }

  const DistContext& context_;
  LayoutJob job_;
  ModulePtr<DecoderForCausalLM> model_;
};

}  // namespace

LayoutResult train(const DeviceMeshParameters& mesh, const LayoutJob& job, RankBackend backend) {
  LayoutResult result;
  Assembler gradients;
  Assembler parameters;
  run_ranks(backend, mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = mesh, .world = borrowed(world), .local_rank = world.rank()});
    RankJob(context, job).train(result, gradients, parameters);
  });
  result.gradients = gradients.take();
  result.parameters = parameters.take();
  for (const auto& [name, whole] : result.parameters) {
    EXPECT_TRUE(at::equal(result.state.at(name), whole)) << name << " is another when ranks gather it";
  }
  return result;
}

void expect_same(const LayoutResult& actual, const LayoutResult& expected, const Tolerance& tolerance) {
  const auto as_tensor = [](const std::vector<double>& values) { return at::tensor(values, at::kDouble); };
  expect_close("losses", as_tensor(actual.losses), as_tensor(expected.losses), tolerance);
  expect_close("norms", as_tensor(actual.norms), as_tensor(expected.norms), tolerance);
  expect_all_close(actual.gradients, expected.gradients, tolerance);
  expect_all_close(actual.parameters, expected.parameters, tolerance);
}

}  // namespace d9d::test

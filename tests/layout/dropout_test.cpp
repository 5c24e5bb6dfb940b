// Jobs of the trainer with dropout must train as one rank does if their layouts have the same microbatches.
#include "d9d/blocks/regularization/dropout.h"

#include <mutex>
#include <span>

#include <gtest/gtest.h>

#include "d9d/data/build/make_pack_stream.h"
#include "d9d/data/sequences/dataset.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include "tests/support/compare.h"
#include "tests/support/ranks.h"

namespace d9d::test::dropout_test {
namespace {

constexpr std::int64_t kSequence = 8;
constexpr std::int64_t kVocabulary = 23;
constexpr std::int64_t kNumLabels = 3;

// ---- A decoder whose layers have dropout, once or several times. ----

class DroppingLayer : public DecoderLayer {
 public:
  DroppingLayer(const Qwen3DenseLayerParameters& parameters, int num_repetitions)
      : num_rounds(num_repetitions),
        block(register_module<Qwen3DenseLayer>("block", parameters)),
        dropout(register_module<Dropout>("dropout", /*probability=*/0.3)) {}
  [[nodiscard]] DecoderLayerOutput forward(const at::Tensor& hidden_states,
                                           const LayerContext& context) const override {
    at::Tensor sum = hidden_states;
    for (int i = 0; i < num_rounds; ++i) sum = sum + dropout(block(sum, context).hidden_states);
    return {.hidden_states = sum, .auxiliary_loss = std::nullopt};
  }
  const int num_rounds;
  const ModulePtr<Qwen3DenseLayer> block;
  const ModulePtr<Dropout> dropout;
};

class DroppingDecoder : public PreNormDecoder {
 public:
  DroppingDecoder(const Qwen3DenseParameters& parameters, const PipelineStageInfo& stage, int num_rounds)
      : PreNormDecoder(pre_norm_decoder_config(parameters), {.stage = stage, .checkpointing = true},
                       [&](std::int64_t) { return make_module<DroppingLayer>(parameters.layer, num_rounds); }) {}
};

ModulePtr<PreNormDecoder> make_backbone(const PipelineStageInfo& stage, int num_rounds) {
  Qwen3DenseParameters parameters;
  parameters.layer = {
      .hidden_size = 16, .intermediate_size = 13, .num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 8};
  parameters.num_hidden_layers = 4;
  parameters.max_position_ids = kSequence;
  parameters.split_vocab_size = {{"regular", kVocabulary}};
  parameters.split_vocab_order = {"regular"};
  return make_module<DroppingDecoder>(parameters, stage, num_rounds);
}

// ---- Data: sample n is the same on every rank. ----

struct Batch {
  at::Tensor ids, labels;  // [B, S]
  static constexpr auto fields() { return record<Batch>(field("ids", &Batch::ids), field("labels", &Batch::labels)); }
};

class Sequences final : public Dataset<at::Tensor> {
 public:
  [[nodiscard]] std::int64_t size() const override { return 16; }
  [[nodiscard]] at::Tensor get(std::int64_t index) const override {
    const at::Tensor position = at::arange(kSequence + 1, at::kLong) + index * (kSequence + 1);
    return (position * position * 31 + position * 7 + index) % kVocabulary;
  }
};

Batch collate(std::span<const at::Tensor> samples) {
  const at::Tensor tokens = at::stack(at::TensorList(samples.data(), samples.size()));
  return {.ids = tokens.narrow(1, 0, kSequence), .labels = tokens.narrow(1, 1, kSequence)};
}

// ---- A job with either head. ----

template <class Head>
struct Types {
  using Batch = dropout_test::Batch;
  using Input = SequenceInput;
  using Transfer = SequenceTransfer;
  using Shared = typename DecoderWithHead<Head>::Shared;
  using Output = DecoderOutput<Head>;
  using State = at::Tensor;  // labels
};

struct Job {
  DeviceMeshParameters mesh = {};
  std::int64_t microbatch_size = 2;
  ShardIndexingMode mode = ShardIndexingMode::kChunked;
  int num_rounds = 1;  // how often a layer runs its block and its dropout
  PipelineScheduleConfig schedule = {};
};

template <class Head>
class Parts : public TrainTask<Types<Head>>, public ModelProvider<Types<Head>>, public DataProvider<Batch> {
 public:
  static constexpr bool kPools = std::is_same_v<Head, ClassificationHead>;
  Parts(const DistContext& context, Job job)
      : positions_(context_parallel_cut(context.mesh(MeshDomain::kBatch).slice({"cp"}))), job_(std::move(job)) {}

  ForwardInputs<Types<Head>> build_forward_inputs(const Batch& batch) override {
    const auto here = [&](const at::Tensor& x) { return context_parallel_shard(x, /*dim=*/1, positions_); };
    const at::Tensor ids = here(batch.ids), labels = here(batch.labels);
    const at::Tensor positions = here(at::arange(kSequence).unsqueeze(0)).expand(ids.sizes());
    ForwardInputs<Types<Head>> inputs{
        .input = {ids}, .shared = {{positions, std::nullopt}, {}}, .state = {}, .num_tokens = ids.numel()};
    if constexpr (kPools) {
      const auto is_last = at::arange(kSequence).eq(kSequence - 1).to(at::kLong);
      inputs.shared.head = {is_last.expand(batch.ids.sizes()), ids.size(0)};
      inputs.state = batch.ids.select(1, 0) % kNumLabels;
    } else {
      inputs.shared.head = {labels};
      inputs.state = labels;
    }
    return inputs;
  }
  LossResult compute_loss(const DecoderOutput<Head>& output, at::Tensor& labels, const JobSchedule&) override {
    const at::Tensor weight = at::full({}, static_cast<double>(labels.numel()), at::kDouble);
    if constexpr (kPools) {
      return {.loss = at::nll_loss(at::log_softmax(output.head.scores, 1), labels), .loss_weight = weight};
    } else {
      return {.loss = output.head.cross_entropy.mean(), .loss_weight = weight};
    }
  }

  ModelStage<Types<Head>> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    backbone_ = make_backbone(stage, job_.num_rounds);
    if constexpr (kPools) {
      model_ = make_decoder_for_classification(backbone_, {.num_labels = kNumLabels, .dropout = 0.4});
    } else {
      model_ = make_decoder_for_causal_lm(backbone_);
    }
    model_->to(at::kDouble);
    return as_model_stage<Types<Head>>(model_);
  }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    parallelize_decoder(context, *backbone_, {model_->head.shared()});
  }
  std::unique_ptr<PackStream<Batch>> build_pack_stream(const DistContext& context,
                                                       std::optional<std::int64_t>) override {
    return make_pack_stream<Batch>(
        std::make_shared<Sequences>(), collate,
        AutoDataConfig{
            .global_batch_size = 8, .microbatch_size = job_.microbatch_size, .shard_indexing_mode = job_.mode},
        {.rank = {context.data_parallel_rank(), context.data_parallel_size()}});
  }

 private:
  PositionCut positions_;
  Job job_;
  ModulePtr<PreNormDecoder> backbone_;
  ModulePtr<DecoderWithHead<Head>> model_;
};

// The parameters of all stages after two steps.
template <class Head>
std::map<std::string, at::Tensor> trained(const Job& job) {
  std::map<std::string, at::Tensor> state;
  std::mutex mutex;
  run_ranks(RankBackend::kThreads, job.mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = job.mesh, .world = borrowed(world), .local_rank = world.rank()});
    Parts<Head> parts(context, job);
    TrainerConfig config;
    config.run.name = "dropout";
    config.pipelining.schedule = job.schedule;
    config.logging.tracker = NullTrackerConfig{};
    config.gc.period_steps = {StepActionMode::kDisable};
    config.checkpointing.period_steps = {StepActionMode::kDisable};
    AutoOptimizerProvider optimizer(AdamWConfig{.lr = 1e-2});
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 1.0, .curve = LinearCurveConfig{}}}});
    Trainer<Types<Head>> trainer(
        context, config,
        {.task = parts, .model = parts, .data = parts, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    const auto whole = trainer.module().full_state_dict();
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : whole) state.try_emplace(name, tensor.detach().clone());
  });
  return state;
}

TEST(DropoutLayouts, Train_a_decoder_as_one_rank_does) {
  const auto expected = trained<LanguageModellingHead>({});
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.data_parallel_replicate = 2}, DeviceMeshParameters{.data_parallel_shard = 4},
        DeviceMeshParameters{.context_parallel_shard = 2}, DeviceMeshParameters{.context_parallel_replicate = 2},
        DeviceMeshParameters{.tensor_parallel = 2},
        DeviceMeshParameters{.context_parallel_shard = 2, .tensor_parallel = 2},
        DeviceMeshParameters{.data_parallel_replicate = 2, .context_parallel_shard = 2, .tensor_parallel = 2}}) {
    SCOPED_TRACE(cat("replicate ", mesh.data_parallel_replicate, " shard ", mesh.data_parallel_shard, " cp ",
                     mesh.context_parallel_shard, " ", mesh.context_parallel_replicate, " tp ", mesh.tensor_parallel));
    expect_all_close(trained<LanguageModellingHead>({.mesh = mesh}), expected, tolerance("fp64"));
  }
}

// Each layer is checkpointed: its masks are drawn again in B and I, where other microbatches have run in between.
TEST(DropoutLayouts, Train_a_decoder_in_pipeline_stages_as_one_rank_does) {
  for (const int num_rounds : {1, 2}) {
    const auto expected = trained<LanguageModellingHead>({.num_rounds = num_rounds});
    for (const PipelineScheduleConfig& schedule :
         {PipelineScheduleConfig(GPipeScheduleConfig{}),
          PipelineScheduleConfig(OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true}),
          PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}), PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, ", dropout ", num_rounds, " times a layer"));
      for (const DeviceMeshParameters& mesh :
           {DeviceMeshParameters{}, DeviceMeshParameters{.pipeline_parallel = 2},
            DeviceMeshParameters{.pipeline_parallel = 2, .tensor_parallel = 2},
            DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_shard = 2}}) {
        const auto in_stages =
            trained<LanguageModellingHead>({.mesh = mesh, .num_rounds = num_rounds, .schedule = schedule});
        expect_all_close(in_stages, expected, tolerance("fp64"));
      }
    }
  }
}

TEST(DropoutLayouts, Train_layers_that_call_their_block_twice_as_one_rank_does) {
  const auto expected = trained<LanguageModellingHead>({.num_rounds = 2});
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.data_parallel_replicate = 2, .data_parallel_shard = 2},
                                           DeviceMeshParameters{.context_parallel_shard = 2, .tensor_parallel = 2}}) {
    expect_all_close(trained<LanguageModellingHead>({.mesh = mesh, .num_rounds = 2}), expected, tolerance("fp64"));
  }
}

TEST(DropoutLayouts, Train_a_pooled_head_as_one_rank_does) {
  for (const Job& job :
       {Job{}, Job{.microbatch_size = 1}, Job{.microbatch_size = 1, .mode = ShardIndexingMode::kSequential}}) {
    const auto expected = trained<ClassificationHead>(job);
    for (const DeviceMeshParameters& mesh :
         {DeviceMeshParameters{.data_parallel_shard = 2}, DeviceMeshParameters{.data_parallel_replicate = 4},
          DeviceMeshParameters{.tensor_parallel = 2}, DeviceMeshParameters{.context_parallel_shard = 2},
          DeviceMeshParameters{.context_parallel_replicate = 2, .tensor_parallel = 2}}) {
      Job divided = job;
      divided.mesh = mesh;
      expect_all_close(trained<ClassificationHead>(divided), expected, tolerance("fp64"));
    }
  }
}

}  // namespace
}  // namespace d9d::test::dropout_test

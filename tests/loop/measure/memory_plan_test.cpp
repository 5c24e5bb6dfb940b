// Compares memory plans with the memory of real jobs of the same layouts, over ranks that are threads.
#include "d9d/loop/measure/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/model.h"

#include "tests/support/decoder_families.h"
#include "tests/support/memory_peak.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"
#include "tests/support/turns.h"

namespace d9d::memory_plan_test {
namespace {

constexpr std::int64_t kNumSequences = 2, kSequenceLength = 64, kNumMicrobatches = 4;
constexpr std::int64_t kNumLayers = 16, kFloatBytes = 4;

struct Case {
  std::string name = {};
  DeviceMeshParameters mesh = {};
  PipelineScheduleConfig schedule = {};
  bool has_experts = false;
  bool checkpoints = false;
  bool keeps_masters = false;
  FsdpConfig fsdp = {};
  ContextParallelConfig of_context = {};
  std::int64_t sequence_length = kSequenceLength;
};

struct Provider : ModelProvider<LanguageModelTypes> {
  explicit Provider(const Case& planned) : job(planned) {}

  ModelStage<LanguageModelTypes> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    const DecoderStageOptions options{.stage = stage, .checkpointing = job.checkpoints};
    const test::SmallDecoder sizes{
        .num_layers = kNumLayers, .num_key_value_heads = 2, .max_position_ids = kSequenceLength};
    if (job.has_experts) {
      backbone = make_module<Qwen3MoEModel>(test::small_parameters<Qwen3MoEParameters>(sizes), options);
    } else {
      backbone = make_module<Qwen3DenseModel>(test::small_parameters<Qwen3DenseParameters>(sizes), options);
    }
    model = make_decoder_for_causal_lm(backbone);
    if (job.keeps_masters) model->to(at::kBFloat16);
    return as_model_stage<LanguageModelTypes>(model);
  }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    parallelize_decoder(context, *backbone, {model->head.shared()}, job.fsdp, {}, job.of_context);
  }
  void register_events(const DistContext& context, EventBus& events) override { on_events(context, events); }

  const Case& job;
  std::function<void(const DistContext&, EventBus&)> on_events = [](const auto&, const auto&) {};
  ModulePtr<PreNormDecoder> backbone;
  ModulePtr<DecoderForCausalLM> model;
};

MemoryRequest request_of(const Case& job) {
  MemoryRequest request{.mesh = job.mesh,
                        .optimizer = AdamWConfig{},
                        .num_sequences = kNumSequences,
                        .sequence_length = job.sequence_length,
                        .num_microbatches = kNumMicrobatches};
  request.trainer.run.name = "plan";
  request.trainer.schedule.total_steps = 2;
  request.trainer.pipelining.schedule = job.schedule;
  request.trainer.logging.tracker = NullTrackerConfig{};
  request.trainer.gc.period_steps = {StepActionMode::kDisable};
  request.trainer.checkpointing.period_steps = {StepActionMode::kDisable};
  request.trainer.gradient_clipping.max_norm = 1.0;
  request.trainer.refuse_equal_data = false;
  if (job.keeps_masters) request.trainer.model_stage_factory.master_dtype = Dtype::kFloat32;
  return request;
}

std::vector<RankMemory> planned(const Case& job) {
  Provider model(job);
  return plan_memory(request_of(job), model);
}

struct Stream {
  std::optional<std::vector<TokenBatch>> next() {
    const at::Tensor ids = at::arange(kNumSequences * kSequenceLength).remainder(20).view({kNumSequences, -1});
    const at::Tensor positions = at::arange(kSequenceLength).expand_as(ids);
    return std::vector<TokenBatch>(kNumMicrobatches, {.input_ids = ids, .labels = ids, .position_ids = positions});
  }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  nlohmann::json state() const { return step; }
  void load_state(const nlohmann::json& state) { step = state; }
  std::int64_t step = 0;
};
struct Data : DataProvider<TokenBatch> {
  std::unique_ptr<PackStream<TokenBatch>> build_pack_stream(const DistContext&, std::optional<std::int64_t>) override {
    return as_pack_stream<TokenBatch>(Stream{});
  }
};

// The measured bytes of one rank of a real job.
struct Seen {
  std::int64_t num_parameters = 0;
  std::int64_t parameters = 0;
  std::int64_t optimizer = 0;
  std::int64_t gradients = 0;
  std::int64_t peak = 0;  // the peak in forward and backward of a step, minus the bytes before the step
};

// Measures the job of a rank through its events.
class Watch {
 public:
  void subscribe(EventBus& events) {
    events.subscribe(kTrainDataStreamReady<TokenBatch>, [this](const auto&) { before_ = memory_.live_bytes(); });
    events.subscribe(kTrainModelStagesReady, [this](const ModelStagesReady& ready) {
      seen.parameters = memory_.live_bytes() - before_;
      for (Module& stage : ready.modules) {
        stages_.push_back(&stage);
        for (const auto& [name, parameter] : stage.named_parameters())
          seen.num_parameters += parameter->stored().numel();
      }
    });
    events.subscribe(kTrainOptimizerReady, [this](const OptimizerReady& ready) {
      for (const auto& [name, state] : ready.optimizer.state_dict()) {
        if (!name.ends_with(".step")) seen.optimizer += static_cast<std::int64_t>(state.local.nbytes());
      }
    });
    events.subscribe(kTrainForwardBackwardPre, [this](const auto&) { step_.emplace(); });
    events.subscribe(kTrainForwardBackwardPost, [this](const auto&) {
      seen.peak = std::max(seen.peak, step_->peak_bytes());
      step_.reset();
    });
    events.subscribe(kTrainOptimizerStepPre, [this](const auto&) { seen.gradients = gradient_bytes(); });
  }

  Seen seen;

 private:
  // Counts each storage once: the gradients of several parameters may share one.
  [[nodiscard]] std::int64_t gradient_bytes() const {
    std::set<const void*> counted;
    std::int64_t bytes = 0;
    for (const Module* const stage : stages_) {
      for (const auto& [name, parameter] : stage->named_parameters()) {
        const at::Tensor& gradient = parameter->stored().grad();
        if (!gradient.defined() || !counted.insert(gradient.storage().data()).second) continue;
        bytes += static_cast<std::int64_t>(gradient.storage().nbytes());
      }
    }
    return bytes;
  }

  const test::MemoryPeak memory_;
  std::optional<test::MemoryPeak> step_;
  std::int64_t before_ = 0;
  std::vector<const Module*> stages_;
};

// Trains a real job. Returns one entry per pipeline rank, for its first rank.
std::vector<Seen> trained(const Case& job) {
  std::vector<Seen> seen(static_cast<std::size_t>(job.mesh.pipeline_parallel));
  test::run_ranks(test::RankBackend::kThreads, job.mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = job.mesh, .world = test::borrowed(world), .log_sink = [](std::string_view) {}});
    const MemoryRequest request = request_of(job);
    LanguageModelTask task(context);
    Data data;
    AutoOptimizerProvider optimizer(request.optimizer);
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 1.0, .curve = LinearCurveConfig{}}}});
    Watch watch;
    Provider model(job);
    model.on_events = [&](const DistContext&, EventBus& events) { watch.subscribe(events); };
    Trainer<LanguageModelTypes> trainer(
        context, request.trainer,
        {.task = task, .model = model, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
    ASSERT_EQ(trainer.train(), TrainingOutcome::kFinished);
    const std::int64_t ranks_a_stage = world.size() / job.mesh.pipeline_parallel;
    if (world.rank() % ranks_a_stage == 0) seen[static_cast<std::size_t>(world.rank() / ranks_a_stage)] = watch.seen;
  });
  return seen;
}

class MemoryPlan : public ::testing::TestWithParam<Case> {};

TEST_P(MemoryPlan, Has_the_parameters_gradients_and_optimizer_of_a_real_job) {
  const auto plan = planned(GetParam());
  const auto job = trained(GetParam());
  ASSERT_EQ(plan.size(), job.size());
  for (std::size_t i = 0; i < job.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(plan[i].sum_of(&StageMemory::num_parameters), job[i].num_parameters);
    EXPECT_EQ(plan[i].sum_of(&StageMemory::parameters), job[i].parameters);
    EXPECT_EQ(plan[i].sum_of(&StageMemory::optimizer), job[i].optimizer);
    // Sharded stages also keep one number each, for whether ranks disagree. Full gradients that wait for the last
    // microbatch have the size of all shards.
    const bool waits = *resolve_fsdp(GetParam().fsdp, GetParam().mesh.pipeline_parallel).reduce_on_last_microbatch;
    const std::int64_t gradients = job[i].gradients * (waits ? GetParam().mesh.data_parallel_shard : 1);
    const std::int64_t numbers = GetParam().mesh.world_size() > 1 ? 8 * std::ssize(plan[i].stages) : 0;
    EXPECT_GE(plan[i].sum_of(&StageMemory::gradients), gradients);
    EXPECT_LE(plan[i].sum_of(&StageMemory::gradients), gradients + numbers);
  }
}

// A CPU weights the outputs of experts and keeps them, where a GPU weights the inputs of their last product. Where
// context-parallel ranks gather keys it keeps a mask of the last chunk of positions of the first, and a GPU needs none.
std::int64_t kept_by_cpu_alone(const RankMemory& rank, const Case& job, std::int64_t num_stages) {
  const test::SmallDecoder sizes;
  const std::int64_t num_positions = kNumSequences * kSequenceLength / job.mesh.tensor_parallel;  // between blocks
  std::int64_t of_layer = 0;
  if (job.has_experts) of_layer += num_positions * sizes.experts_top_k * sizes.hidden_size * kFloatBytes;
  const std::int64_t num_chunks = 2 * job.mesh.context_parallel_shard;
  if (num_chunks > 2 && job.of_context.attention != ContextAttention::kRing)
    of_layer += kSequenceLength / num_chunks * kSequenceLength * kFloatBytes;
  std::int64_t num_live = 0;
  for (const StageMemory& stage : rank.stages) num_live += stage.num_live;
  return num_live * (kNumLayers / num_stages) * of_layer;
}

TEST_P(MemoryPlan, Has_the_peak_of_a_real_step) {
  const auto plan = planned(GetParam());
  const auto job = trained(GetParam());
  for (std::size_t i = 0; i < job.size(); ++i) {
    SCOPED_TRACE(i);
    const RankMemory& rank = plan[i];
    const std::int64_t num_stages = GetParam().mesh.pipeline_parallel * std::ssize(rank.stages);
    const std::int64_t in_step =
        rank.total - rank.messages - rank.sum_of(&StageMemory::parameters) - rank.sum_of(&StageMemory::optimizer);
    const auto seen = static_cast<double>(job[i].peak - kept_by_cpu_alone(rank, GetParam(), num_stages));
    EXPECT_LE(rank.activations(), in_step);  // memory that microbatches share is not counted for each of them
    EXPECT_NEAR(static_cast<double>(in_step), seen, test::tolerance("planned peak").value * seen);
    const double all = seen + static_cast<double>(job[i].parameters + job[i].optimizer);
    EXPECT_NEAR(static_cast<double>(rank.total - rank.messages), all, test::tolerance("simulated peak").value * all);
  }
}

// The same measurement with real values, on ranks that are threads: CPU operators of LibTorch save their real tensors.
std::vector<RankMemory> measured(const Case& job) {
  std::vector<RankMemory> ranks(static_cast<std::size_t>(job.mesh.pipeline_parallel));
  test::run_ranks(test::RankBackend::kThreads, job.mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = job.mesh, .world = test::borrowed(world), .log_sink = [](std::string_view) {}});
    Provider model(job);
    const test::MemoryPeak memory;
    const MemoryMeter meter{.live_bytes = [&] { return memory.live_bytes(); },
                            .peak_bytes = [&] { return memory.peak_bytes(); },
                            .reset_peak = [] {}};
    const RankMemory rank = measure_memory(context, request_of(job), model, meter);
    const std::int64_t ranks_a_stage = world.size() / job.mesh.pipeline_parallel;
    if (world.rank() % ranks_a_stage == 0) ranks[static_cast<std::size_t>(rank.pipeline_rank)] = rank;
  });
  return ranks;
}

TEST_P(MemoryPlan, Has_the_saved_tensors_of_a_real_microbatch) {
  if (GetParam().keeps_masters) GTEST_SKIP() << "a head in bfloat16 makes its gradients in forward on a GPU alone";
  if (GetParam().has_experts && GetParam().mesh.expert_parallel > 1) GTEST_SKIP() << "real tokens are not balanced";
  const auto plan = planned(GetParam()), real = measured(GetParam());
  constexpr std::int64_t kSmall = 512;  // masks of the vocabulary's splits, counts of experts
  for (std::size_t i = 0; i < real.size(); ++i) {
    for (std::size_t j = 0; j < real[i].stages.size(); ++j) {
      SCOPED_TRACE(real[i].stages[j].stage.value);
      RankMemory one = plan[i];
      one.stages = {plan[i].stages[j]};
      one.stages.front().num_live = 1;
      const std::int64_t num_stages = GetParam().mesh.pipeline_parallel * std::ssize(plan[i].stages);
      const std::int64_t by_cpu = kept_by_cpu_alone(one, GetParam(), num_stages);
      EXPECT_NEAR(plan[i].stages[j].activations, real[i].stages[j].activations - by_cpu, kSmall);
      EXPECT_NEAR(plan[i].stages[j].deferred, real[i].stages[j].deferred, kSmall);
    }
  }
}

std::vector<Case> cases() {
  const OneFOneBScheduleConfig interleaved{.num_stages_per_rank = 2, .zero_bubble = true};
  std::vector<Case> all = {
      {.name = "one_rank"},
      {.name = "replicas", .mesh = {.data_parallel_replicate = 2}},
      {.name = "fsdp", .mesh = {.data_parallel_shard = 2}},
      {.name = "hsdp_masters", .mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2}, .keeps_masters = true},
      {.name = "fsdp_once_a_step",
       .mesh = {.data_parallel_shard = 2},
       .fsdp = {.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true}},
      {.name = "pipeline", .mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}},
      {.name = "checkpointed_gpipe", .mesh = {.pipeline_parallel = 2}, .checkpoints = true},
      {.name = "v", .mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}},
      {.name = "pipeline_of_shards",
       .mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
       .schedule = interleaved},
      // On CPUs no ranks but threads read each other's memory, and only as configured.
      {.name = "context",
       .mesh = {.context_parallel_shard = 2},
       .of_context = {.attention = ContextAttention::kGathered}},
      {.name = "ring_of_four",
       .mesh = {.context_parallel_shard = 4},
       .of_context = {.attention = ContextAttention::kRing}},
      {.name = "tensor", .mesh = {.tensor_parallel = 2}},
      {.name = "tensor_of_shards", .mesh = {.data_parallel_shard = 2, .tensor_parallel = 2}},
      {.name = "experts", .has_experts = true},
      {.name = "experts_over_ranks", .mesh = {.data_parallel_replicate = 2, .expert_parallel = 2}, .has_experts = true},
      {.name = "experts_of_tensor_ranks", .mesh = {.tensor_parallel = 2}, .has_experts = true},
      {.name = "experts_over_tensor_ranks", .mesh = {.tensor_parallel = 2, .expert_parallel = 2}, .has_experts = true},
      {.name = "experts_of_shards", .mesh = {.data_parallel_shard = 4, .expert_parallel = 2}, .has_experts = true},
      {.name = "pipeline_of_experts_of_shards",
       .mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2},
       .schedule = interleaved,
       .has_experts = true,
       .fsdp = {.reshard_after_forward = ReshardAfterForward::kExceptLast, .reduce_on_last_microbatch = false}}};
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, MemoryPlan, ::testing::ValuesIn(test::in_turn(cases(), 2)),
                         [](const auto& each) { return each.param.name; });

TEST(MemoryPlans, Of_checkpointed_layers_keep_their_inputs) {
  const auto activations = [](bool checkpoints) {
    const Case job{.mesh = {.pipeline_parallel = 2}, .checkpoints = checkpoints};
    return planned(job).front().stages.front().activations;
  };
  const std::int64_t input = kNumSequences * kSequenceLength * test::SmallDecoder().hidden_size * kFloatBytes;
  EXPECT_GE(activations(true), kNumLayers / 2 * input);
  EXPECT_LE(activations(true), (kNumLayers / 2 + 3) * input);  // and token ids, positions and rotary tables
  EXPECT_GT(activations(false), 4 * activations(true));
}

TEST(MemoryPlans, Count_the_microbatches_of_the_schedule_and_its_inboxes) {
  Case job{.mesh = {.pipeline_parallel = 4}, .schedule = OneFOneBScheduleConfig{.depth = OneFOneBDepth::kClassic}};
  const std::int64_t message = kNumSequences * kSequenceLength * test::SmallDecoder().hidden_size * kFloatBytes;
  std::vector<std::int64_t> live, slots;
  for (const RankMemory& rank : planned(job)) {
    live.push_back(rank.stages.front().num_live);
    slots.push_back(rank.messages / message);
  }
  EXPECT_EQ(live, (std::vector<std::int64_t>{4, 3, 2, 1}));
  EXPECT_EQ(slots, (std::vector<std::int64_t>{2, 4, 4, 2}));
}

// What a layer keeps is of the positions that a rank has. Keys and values of all ranks, which attention may gather, and
// its outputs, of each chunk and joined, are computed again where layers are checkpointed.
TEST(MemoryPlans, Of_context_parallel_ranks_keep_their_positions) {
  const auto activations = [](const std::vector<RankMemory>& ranks) { return ranks.front().activations(); };
  const test::SmallDecoder sizes;
  const std::int64_t keys_and_values =
      kNumLayers * kNumSequences * kSequenceLength * 2 * 2 * sizes.head_dim * kFloatBytes;  // of two heads
  const std::int64_t outputs =
      kNumLayers * kNumSequences * kSequenceLength * sizes.num_attention_heads * sizes.head_dim * kFloatBytes;
  constexpr std::int64_t kSmall = 512;  // masks of the vocabulary's splits
  for (const bool checkpoints : {false, true}) {
    const Case alone{.checkpoints = checkpoints};
    for (const std::int64_t degree : {2, 4}) {
      SCOPED_TRACE(degree);
      const Case job{.mesh = {.context_parallel_shard = degree}, .checkpoints = checkpoints};
      const std::int64_t gathered = checkpoints ? 0 : (keys_and_values * (degree - 1) + outputs) / degree;
      const std::int64_t expected = activations(planned(alone)) / degree;
      EXPECT_GE(activations(planned(job)), expected);
      EXPECT_LE(activations(planned(job)), expected + gathered + kSmall);
      if (!checkpoints) continue;
      EXPECT_NEAR(activations(measured(job)), activations(measured(alone)) / degree, kSmall);
    }
  }
}

// A rank of a ring keeps what one rank with its positions keeps, and of two ranks the keys and values of the other.
TEST(MemoryPlans, Of_a_ring_keep_keys_and_values_of_the_other_of_two_ranks) {
  const test::SmallDecoder sizes;
  for (const std::int64_t degree : {2, 4}) {
    SCOPED_TRACE(degree);
    const std::int64_t here = kSequenceLength / degree;
    const auto by = [&](ContextAttention attention) {
      return planned({.mesh = {.context_parallel_replicate = degree}, .of_context = {.attention = attention}}).front();
    };
    const RankMemory alone = planned({.sequence_length = here}).front();
    const RankMemory ring = by(ContextAttention::kRing), gathered = by(ContextAttention::kGathered);
    const std::int64_t keys_and_values = kNumSequences * here * 2 * 2 * sizes.head_dim * kFloatBytes;  // of two heads
    const std::int64_t of_others = degree == 2 ? kNumLayers * keys_and_values : 0;
    constexpr std::int64_t kSmall = 512;  // masks of the vocabulary's splits
    EXPECT_NEAR(ring.stages.front().activations, alone.stages.front().activations + of_others, kSmall);
    EXPECT_EQ(ring.exchanges, 2 * degree * keys_and_values);  // two slots, and two places for sums of each other's
    EXPECT_EQ(gathered.exchanges, 0);
    EXPECT_EQ(ring.stages.front().gathered, gathered.stages.front().gathered);
    EXPECT_EQ(ring.stages.front().gradients, gathered.stages.front().gradients);
    EXPECT_EQ(ring.total - ring.exchanges - ring.activations() - ring.working,
              gathered.total - gathered.activations() - gathered.working);
  }
}

TEST(MemoryPlans, Of_stages_have_messages_of_the_positions_of_a_rank) {
  const auto messages = [](const DeviceMeshParameters& mesh) {
    return planned({.mesh = mesh, .schedule = ZeroBubbleVScheduleConfig{}}).front().messages;
  };
  const std::int64_t whole = messages({.pipeline_parallel = 2});
  EXPECT_GT(whole, 0);
  EXPECT_EQ(messages({.pipeline_parallel = 2, .context_parallel_shard = 4}), whole / 4);
  EXPECT_EQ(messages({.pipeline_parallel = 2, .tensor_parallel = 2}), whole / 2);
  EXPECT_EQ(messages({.pipeline_parallel = 2, .context_parallel_shard = 2, .tensor_parallel = 2}), whole / 4);
}

std::string error_of(const Case& job) {
  try {
    (void)planned(job);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MemoryPlans, Are_refused_as_the_job_is) {
  EXPECT_NE(error_of({.mesh = {.tensor_parallel = 32}}).find("a vocabulary that gives each of 32"), std::string::npos);
  EXPECT_NE(error_of({.mesh = {.data_parallel_shard = 2, .expert_parallel = 3}}).find("expert_parallel"),
            std::string::npos);
  EXPECT_NE(error_of({.mesh = {.pipeline_parallel = 4}, .schedule = DualPipeVScheduleConfig{}}).find("microbatches"),
            std::string::npos);
  EXPECT_NE(error_of({.mesh = {.pipeline_parallel = 32}, .schedule = GPipeScheduleConfig{}}).find("layers"),
            std::string::npos);
}

}  // namespace
}  // namespace d9d::memory_plan_test

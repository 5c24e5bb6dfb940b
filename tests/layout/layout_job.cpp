#include "tests/layout/layout_job.h"

#include <algorithm>

#include "d9d/base/check.h"

#include "tests/layout/layout_model.h"
#include "tests/support/decoder_families.h"

namespace d9d::test {

PipelineScheduleConfig config_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::kOneFOneB:
      return OneFOneBScheduleConfig{};
    case Schedule::kGPipe:
      return GPipeScheduleConfig{};
    case Schedule::kInterleaved:
      return OneFOneBScheduleConfig{.num_stages_per_rank = 2};
    case Schedule::kZeroBubble:
      return OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true};
    case Schedule::kLoopedBfs:
      return LoopedBfsScheduleConfig{.num_stages_per_rank = 2};
    case Schedule::kZeroBubbleV:
      return ZeroBubbleVScheduleConfig{};
    case Schedule::kDualPipeV:
      break;
  }
  return DualPipeVScheduleConfig{};
}

std::int64_t num_stages(const Layout& layout) {
  const bool has_one_a_rank = layout.schedule == Schedule::kOneFOneB || layout.schedule == Schedule::kGPipe;
  return layout.mesh.pipeline_parallel * (has_one_a_rank ? 1 : 2);
}

bool has_experts(const LayoutJob& job) {
  return job.family == kOwnLayers ? job.own.has_experts : decoder_family(job.family).has_experts;
}

bool has_dropout(const LayoutJob& job) {
  const bool is_classified = std::ranges::find(job.heads, Head::kClassification) != job.heads.end();
  return (is_classified && job.head_dropout > 0) || (job.family == kOwnLayers && job.own.dropout > 0) ||
         (job.adapts && job.adapter_dropout > 0);
}

bool has_buffer(const LayoutJob& job) { return job.family == kOwnLayers && job.own.has_buffer; }

std::int64_t num_microbatches(const LayoutJob& job, const Layout& layout, std::int64_t data_rank) {
  const std::int64_t num_shards = layout.mesh.data_parallel_shard;
  const std::int64_t num_ranks = layout.mesh.data_parallel_replicate * num_shards;
  const std::int64_t equal = job.num_microbatches / num_ranks;
  const std::int64_t size = layout.deal == Deal::kByReplica ? num_shards : 1;  // of what gets more or less
  if (layout.deal == Deal::kEqual || size == num_ranks) return equal;
  return equal + (data_rank / size == 0 ? 1 : 0) - (data_rank / size == num_ranks / size - 1 ? 1 : 0);
}

bool is_unequal(const LayoutJob& job, const Layout& layout) {
  const std::int64_t num_ranks = layout.mesh.data_parallel_replicate * layout.mesh.data_parallel_shard;
  return num_microbatches(job, layout, 0) != num_microbatches(job, layout, num_ranks - 1);
}

namespace {

template <class Config>
Config with_groups_of(Config config) {
  config.decay_all = false;
  config.groups = {{.group = {.name = "attention",
                              .parameters = ".*\\.self_attn\\..*_proj\\.(?:lora_[AB]\\.)?weight",
                              .lr_factor = 0.5,
                              .weight_decay = 0.3}},
                   {.group = {.name = "norms", .parameters = ".*norm.*", .lr_factor = 2.0}}};
  if constexpr (requires { config.betas; }) config.groups[0].betas = std::pair(0.6, 0.8);
  if constexpr (requires { config.momentum; }) {
    if (config.momentum > 0) config.groups[0].momentum = 0.3;
  }
  return config;
}

OptimizerConfig without_groups(UpdateRule rule) {
  constexpr double kRate = 1e-2, kDecay = 0.1;
  switch (rule) {
    case UpdateRule::kAdamW:
      return AdamWConfig{.lr = kRate};
    case UpdateRule::kSgd:
      return SgdConfig{.lr = kRate};
    case UpdateRule::kAdam:
      return AdamConfig{.lr = kRate, .weight_decay = kDecay, .amsgrad = true};
    case UpdateRule::kMomentum:
      return SgdConfig{.lr = kRate, .momentum = 0.9, .dampening = 0.5, .weight_decay = kDecay};
    case UpdateRule::kNesterov:
      return SgdConfig{.lr = kRate, .momentum = 0.9, .weight_decay = kDecay, .nesterov = true};
    case UpdateRule::kLion:
      return LionConfig{.lr = kRate, .weight_decay = kDecay};
    case UpdateRule::kMuon:
      return MuonConfig{.lr = kRate, .weight_decay = kDecay};
  }
  return {};
}

}  // namespace

OptimizerConfig optimizer_of(const LayoutJob& job, bool with_groups) {
  return std::visit(
      [&](auto config) -> OptimizerConfig {
        if (job.has_groups && with_groups) config = with_groups_of(config);
        return config;
      },
      without_groups(job.update_rule));
}

bool is_rounded_to_float(const LayoutCase& drawn) {
  const auto is_rounded = [](const Layout& layout) {
    return layout.grad_dtype == Dtype::kFloat32 || layout.fsdp.gradient_dtype == Dtype::kFloat32;
  };
  return drawn.job.dtype != at::kDouble || drawn.job.is_mixed || is_rounded(drawn.layout) || is_rounded(drawn.rest);
}

namespace {

// Whether two ranks of a pipeline stage hold parts of one parameter.
bool share_a_parameter(const LayoutJob& job, const Layout& layout, std::int64_t one, std::int64_t other) {
  const DeviceMeshParameters& mesh = layout.mesh;
  const std::int64_t num_shards = mesh.data_parallel_shard * mesh.context_parallel_shard;
  const std::int64_t of_shard = mesh.context_parallel_replicate * mesh.tensor_parallel;  // ranks
  const bool has_shards = num_shards > 1;
  const bool share_shards = has_shards && one / (num_shards * of_shard) == other / (num_shards * of_shard) &&
                            one % of_shard == other % of_shard;
  const std::int64_t experts = mesh.expert_parallel;
  if (!has_experts(job) || experts == 1) return share_shards;
  return share_shards || one / experts == other / experts || (has_shards && one % experts == other % experts);
}

// Whether ranks that need each other in every microbatch have other numbers of them.
bool waits_for_ever(const LayoutJob& job, const Layout& layout) {
  const DeviceMeshParameters& mesh = layout.mesh;
  const std::int64_t of_microbatch =
      mesh.context_parallel_shard * mesh.context_parallel_replicate * mesh.tensor_parallel;  // ranks
  const std::int64_t num_ranks = mesh.world_size() / mesh.pipeline_parallel;
  for (std::int64_t one = 0; one < num_ranks; ++one) {
    for (std::int64_t other = 0; other < one; ++other) {
      const bool are_equal =
          num_microbatches(job, layout, one / of_microbatch) == num_microbatches(job, layout, other / of_microbatch);
      if (!are_equal && share_a_parameter(job, layout, one, other)) return true;
    }
  }
  return false;
}

}  // namespace

std::optional<std::string> refusal(const LayoutCase& drawn) {
  const auto& [job, layout, resumes_at, rest] = drawn;
  if (waits_for_ever(job, layout) || (resumes_at > 0 && waits_for_ever(job, rest))) return kNeedsEqualMicrobatches;
  return job.freezes_late ? std::optional<std::string>("expected requires_grad") : std::nullopt;
}

namespace {

std::string source(bool value) { return value ? "true" : "false"; }
std::string source(std::int64_t value) { return std::to_string(value); }
std::string source(double value) { return cat(value); }
std::string source(const std::string& value) {
  return value == kOwnLayers ? std::string("kOwnLayers") : cat('"', value, '"');
}
std::string source(at::ScalarType value) { return value == at::kFloat ? "at::kFloat" : "at::kDouble"; }
std::string source(Dtype value) { return value == Dtype::kFloat32 ? "Dtype::kFloat32" : "Dtype::kFloat64"; }

template <class Enum, std::size_t kSize>
std::string source_of(const char* type, const char* const (&names)[kSize], Enum value) {
  return cat(type, "::", names[static_cast<std::size_t>(value)]);
}
std::string source(Attention value) { return source_of("Attention", {"kPlain", "kGated", "kWindow"}, value); }
std::string source(Head value) { return source_of("Head", {"kCausalLM", "kClassification", "kEmbedding"}, value); }
std::string source(Pooling value) { return source_of("Pooling", {"kAll", "kSome", "kLast"}, value); }
std::string source(Labels value) {
  return source_of("Labels", {"kAll", "kUnequal", "kSecondHalf", "kSomeSequences"}, value);
}
std::string source(Weights value) { return source_of("Weights", {"kCounted", "kScaled", "kSomeZero"}, value); }
std::string source(UpdateRule value) {
  return source_of("UpdateRule", {"kAdamW", "kSgd", "kAdam", "kMomentum", "kNesterov", "kLion", "kMuon"}, value);
}
std::string source(LeftOut value) {
  return source_of("LeftOut", {"kNothing", "kOddSteps", "kEvenSteps", "kMicrobatches"}, value);
}
std::string source(Checkpoints value) {
  return source_of("Checkpoints", {"kNone", "kLayers", "kNested", "kPlans", "kLaterPlans", "kOuter", "kOuterNested"},
                   value);
}
std::string source(Schedule value) {
  return source_of("Schedule",
                   {"kOneFOneB", "kGPipe", "kInterleaved", "kZeroBubble", "kLoopedBfs", "kZeroBubbleV", "kDualPipeV"},
                   value);
}
std::string source(Composition value) {
  return source_of("Composition", {"kDefault", "kLayersByHand", "kGroupsByHand"}, value);
}
std::string source(Deal value) { return source_of("Deal", {"kEqual", "kByReplica", "kByRank"}, value); }
std::string source(ReshardAfterForward value) {
  return source_of("ReshardAfterForward", {"kExceptLast", "kAlways", "kNever"}, value);
}
std::string source(ExchangeMethod value) {
  return source_of("ExchangeMethod", {"kAuto", "kCommunicator", "kCopyEngine"}, value);
}
std::string source(ContextAttention value) {
  return source_of("ContextAttention", {"kAuto", "kGathered", "kHeads", "kRing"}, value);
}
template <class Value>
std::string source(const std::optional<Value>& value) {
  return value ? source(*value) : "std::nullopt";
}
std::string source(const SleepTags& tags) {
  std::string text;
  for (const SleepTag tag : tags) {
    text += cat(text.empty() ? "" : ", ", source_of("SleepTag", {"kTensorStates", "kComms"}, tag));
  }
  return cat("{", text, "}");
}
std::string source(const std::vector<Head>& heads) {
  std::string text;
  for (const Head head : heads) text += cat(text.empty() ? "" : ", ", source(head));
  return cat("{", text, "}");
}

// Prints members in the order of declaration and omits those that have their default value.
template <class T>
class Aggregate {
 public:
  explicit Aggregate(const T& object) : object_(object) {}
  template <class Value>
  Aggregate& member(const char* name, Value T::*pointer) {
    const std::string text = source(object_.*pointer);
    if (text != source(T().*pointer)) add(name, text);
    return *this;
  }
  Aggregate& part(const char* name, const std::string& text) {
    if (text != "{}") add(name, text);
    return *this;
  }
  [[nodiscard]] std::string text() const { return cat("{", text_, "}"); }

 private:
  void add(const char* name, const std::string& text) {
    text_ += cat(text_.empty() ? "" : ", ", ".", name, " = ", text);
  }

  const T& object_;
  std::string text_;
};

std::string source(const OwnLayers& own) {
  return Aggregate(own)
      .member("attention", &OwnLayers::attention)
      .member("has_experts", &OwnLayers::has_experts)
      .member("has_shared_expert", &OwnLayers::has_shared_expert)
      .member("dropout", &OwnLayers::dropout)
      .member("has_branch", &OwnLayers::has_branch)
      .member("replays", &OwnLayers::replays)
      .member("has_buffer", &OwnLayers::has_buffer)
      .text();
}

std::string source(const LayoutJob& job) {
  return Aggregate(job)
      .member("family", &LayoutJob::family)
      .part("own", source(job.own))
      .member("dtype", &LayoutJob::dtype)
      .member("num_layers", &LayoutJob::num_layers)
      .member("num_heads", &LayoutJob::num_heads)
      .member("num_key_heads", &LayoutJob::num_key_heads)
      .member("ties_embeddings", &LayoutJob::ties_embeddings)
      .member("freezes_attention", &LayoutJob::freezes_attention)
      .member("adapts", &LayoutJob::adapts)
      .member("has_magnitudes", &LayoutJob::has_magnitudes)
      .member("adapter_dropout", &LayoutJob::adapter_dropout)
      .member("is_mixed", &LayoutJob::is_mixed)
      .member("calls_layers_twice", &LayoutJob::calls_layers_twice)
      .member("freezes_late", &LayoutJob::freezes_late)
      .member("num_dense", &LayoutJob::num_dense)
      .member("balances_by_loss", &LayoutJob::balances_by_loss)
      .member("balances_by_bias", &LayoutJob::balances_by_bias)
      .member("starves_experts", &LayoutJob::starves_experts)
      .member("heads", &LayoutJob::heads)
      .member("head_dropout", &LayoutJob::head_dropout)
      .member("has_snapshots", &LayoutJob::has_snapshots)
      .member("leaves_out", &LayoutJob::leaves_out)
      .member("pooling", &LayoutJob::pooling)
      .member("labels", &LayoutJob::labels)
      .member("packs", &LayoutJob::packs)
      .member("has_short_sequences", &LayoutJob::has_short_sequences)
      .member("weights", &LayoutJob::weights)
      .member("has_pairs", &LayoutJob::has_pairs)
      .member("prefers", &LayoutJob::prefers)
      .member("num_microbatches", &LayoutJob::num_microbatches)
      .member("num_sequences", &LayoutJob::num_sequences)
      .member("num_positions", &LayoutJob::num_positions)
      .member("num_steps", &LayoutJob::num_steps)
      .member("update_rule", &LayoutJob::update_rule)
      .member("has_groups", &LayoutJob::has_groups)
      .member("has_averages", &LayoutJob::has_averages)
      .text();
}

std::string source(const DeviceMeshParameters& mesh) {
  using Mesh = DeviceMeshParameters;
  return Aggregate(mesh)
      .member("pipeline_parallel", &Mesh::pipeline_parallel)
      .member("data_parallel_replicate", &Mesh::data_parallel_replicate)
      .member("data_parallel_shard", &Mesh::data_parallel_shard)
      .member("context_parallel_replicate", &Mesh::context_parallel_replicate)
      .member("context_parallel_shard", &Mesh::context_parallel_shard)
      .member("tensor_parallel", &Mesh::tensor_parallel)
      .member("expert_parallel", &Mesh::expert_parallel)
      .text();
}

std::string source(const FsdpConfig& fsdp) {
  return Aggregate(fsdp)
      .member("reshard_after_forward", &FsdpConfig::reshard_after_forward)
      .member("gradient_dtype", &FsdpConfig::gradient_dtype)
      .member("reduce_on_last_microbatch", &FsdpConfig::reduce_on_last_microbatch)
      .member("gather", &FsdpConfig::gather)
      .member("reduce", &FsdpConfig::reduce)
      .text();
}

std::string source(const Layout& layout) {
  return Aggregate(layout)
      .part("mesh", source(layout.mesh))
      .member("schedule", &Layout::schedule)
      .member("composition", &Layout::composition)
      .member("checkpoints", &Layout::checkpoints)
      .member("keeps_master_weights", &Layout::keeps_master_weights)
      .member("deal", &Layout::deal)
      .member("pads", &Layout::pads)
      .member("deals_in_turn", &Layout::deals_in_turn)
      .part("fsdp", source(layout.fsdp))
      .part("tensor", Aggregate(layout.tensor).member("exchange", &TensorParallelConfig::exchange).text())
      .part("context", Aggregate(layout.context).member("attention", &ContextParallelConfig::attention).text())
      .member("grad_dtype", &Layout::grad_dtype)
      .member("bucket_size_mb", &Layout::bucket_size_mb)
      .member("renews_manager", &Layout::renews_manager)
      .member("abandons", &Layout::abandons)
      .member("sleeps", &Layout::sleeps)
      .text();
}

}  // namespace

std::string to_source(const LayoutCase& drawn) {
  return Aggregate(drawn)
      .part("job", source(drawn.job))
      .part("layout", source(drawn.layout))
      .member("resumes_at", &LayoutCase::resumes_at)
      .part("rest", source(drawn.rest))
      .text();
}

}  // namespace d9d::test

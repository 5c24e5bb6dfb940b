#include "tests/layout/draw.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include <rapidcheck.h>

#include "d9d/parallelism/context/heads_attention.h"

#include "tests/layout/layout_model.h"
#include "tests/support/decoder_families.h"

namespace d9d::test {
namespace {

constexpr std::int64_t kUsualRanks = 8;  // at most
constexpr std::int64_t kMostRanks = 16;

// Equally likely from the first case on: RapidCheck itself would begin with small numbers.
std::int64_t number(std::int64_t begin, std::int64_t end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end));
}

// True once in `times` draws.
bool one_in(std::int64_t times) { return number(0, times) == times - 1; }

// One of the values; shrinks to the first.
template <class T>
T any_of(const std::vector<T>& values) {
  return values[static_cast<std::size_t>(number(0, std::ssize(values)))];
}

std::vector<Head> draw_heads() {
  using enum Head;
  return any_of<std::vector<Head>>({{kCausalLM},
                                    {kCausalLM},
                                    {kClassification},
                                    {kEmbedding},
                                    {kCausalLM, kClassification},
                                    {kCausalLM, kEmbedding},
                                    {kCausalLM, kClassification, kEmbedding}});
}

OwnLayers draw_own_layers() {
  OwnLayers own{
      .attention = any_of<Attention>({Attention::kPlain, Attention::kPlain, Attention::kGated, Attention::kWindow}),
      .has_experts = one_in(2),
      .dropout = one_in(3) ? 0.25 : 0.0,
      .has_branch = one_in(3),
      .replays = one_in(3),
      .has_buffer = one_in(2)};
  own.has_shared_expert = own.has_experts && one_in(2);
  return own;
}

LayoutJob draw_job() {
  std::vector<std::string> dense;
  std::vector<std::string> others = {std::string(kOwnLayers)};
  for (const DecoderFamily& family : decoder_families()) {
    (family.has_experts ? others : dense).push_back(family.name);
  }
  others.insert(others.begin(), any_of(dense));  // dense families differ less from each other than from the others
  LayoutJob job{.family = any_of(others)};
  if (job.family == kOwnLayers) job.own = draw_own_layers();
  job.dtype = one_in(8) ? at::kFloat : at::kDouble;
  job.is_mixed = job.dtype == at::kDouble && one_in(8);
  job.num_layers = any_of<std::int64_t>({1, 2, 3, 4, 4});
  job.num_key_heads = any_of<std::int64_t>({2, 2, 2, 4, 8});
  job.num_heads = 2 * job.num_key_heads;
  job.ties_embeddings = one_in(2);
  job.freezes_attention = one_in(5);
  job.calls_layers_twice = one_in(5);
  if (has_experts(job)) {
    job.num_dense = any_of<std::int64_t>({0, 0, 1, 2, 3});
    job.balances_by_loss = one_in(2);
    job.balances_by_bias = one_in(3);
    job.starves_experts = one_in(8);
  }
  job.heads = draw_heads();
  job.head_dropout = one_in(4) ? 0.25 : 0.0;
  using enum LeftOut;
  job.leaves_out = any_of<LeftOut>({kNothing, kNothing, kOddSteps, kEvenSteps, kMicrobatches, kMicrobatches});
  job.pooling = any_of<Pooling>({Pooling::kAll, Pooling::kSome, Pooling::kLast});
  job.labels = any_of<Labels>({Labels::kAll, Labels::kUnequal, Labels::kSecondHalf, Labels::kSomeSequences});
  job.packs = one_in(4);
  job.weights = any_of<Weights>({Weights::kCounted, Weights::kScaled, Weights::kSomeZero});
  job.has_short_sequences = one_in(3);
  if (job.has_short_sequences) job.own.dropout = job.head_dropout = 0.0;  // a mask numbers positions with their padding
  job.has_pairs = one_in(5);
  job.has_snapshots = !job.has_short_sequences && !job.has_pairs && !job.calls_layers_twice && one_in(4);
  job.num_sequences = number(1, 3);
  job.num_positions = any_of<std::int64_t>({8, 16});
  job.num_steps = number(1, 4);
  using enum UpdateRule;
  // Not Lion: a gradient that is zero but for rounding has a sign too (optimizers_test.cpp).
  job.update_rule = any_of<UpdateRule>({kAdamW, kAdamW, kSgd, kAdam, kMomentum, kNesterov, kMuon});
  // Of a matrix that is zero but for rounding in float32, too.
  if (job.update_rule == kMuon && (job.dtype == at::kFloat || job.is_mixed)) job.update_rule = kNesterov;
  job.has_groups = one_in(3);
  job.has_averages = one_in(3);
  return job;
}

// Schedule and ranks of a pipeline with a layer or more in each stage; more than one stage in up to two thirds of the
// layouts whose job can have them.
Layout draw_pipeline(const LayoutJob& job) {
  if (job.has_pairs || job.calls_layers_twice || one_in(3)) return {};
  using enum Schedule;
  Layout layout{.mesh = {.pipeline_parallel = any_of<std::int64_t>({1, 2, 2, 3, 4})},
                .schedule = any_of<Schedule>(
                    {kOneFOneB, kGPipe, kInterleaved, kZeroBubble, kLoopedBfs, kZeroBubbleV, kDualPipeV})};
  while (num_stages(layout) > job.num_layers && layout.mesh.pipeline_parallel > 1) --layout.mesh.pipeline_parallel;
  return num_stages(layout) <= job.num_layers ? layout : Layout();
}

// Masks number positions with their padding: layouts that pad otherwise have others.
bool pads_sequences(const LayoutJob& job, const DeviceMeshParameters& mesh) {
  return job.num_positions % mesh.position_divisor() != 0;
}

DeviceMeshParameters draw_mesh(const LayoutJob& job, const Layout& pipeline) {
  using Mesh = DeviceMeshParameters;
  struct Axis {
    std::int64_t Mesh::*degree;
    std::vector<std::int64_t> sizes;
  };
  const std::vector<Axis> axes = {{&Mesh::data_parallel_shard, {1, 2, 3, 4, 8}},
                                  {&Mesh::tensor_parallel, {1, 2, 3, 4, 8}},
                                  {&Mesh::data_parallel_replicate, {1, 2, 3}},
                                  {&Mesh::context_parallel_shard, {1, 2, 3, 4, 8}},
                                  {&Mesh::context_parallel_replicate, {1, 2}}};
  const std::int64_t first = number(0, std::ssize(axes));  // so that each axis comes first sometimes
  const std::int64_t most_ranks = one_in(8) ? kMostRanks : kUsualRanks;
  Mesh mesh = pipeline.mesh;
  // What other axes leave room for only now and then.
  if (one_in(6)) {
    mesh.context_parallel_shard = mesh.tensor_parallel = 2;
  }
  for (std::int64_t i = 0; i < std::ssize(axes); ++i) {
    const Axis& axis = axes[static_cast<std::size_t>((first + i) % std::ssize(axes))];
    if (mesh.*axis.degree > 1) continue;
    Mesh larger = mesh;
    larger.*axis.degree = any_of(axis.sizes);
    const bool fits =
        has_dropout(job) ? !pads_sequences(job, larger) : larger.position_divisor() <= 2 * job.num_positions;
    if (larger.world_size() <= most_ranks && fits) mesh = larger;
  }
  if (has_experts(job)) {
    const auto degree = any_of<std::int64_t>({1, 2, 4, 8});
    if (mesh.world_size() / mesh.pipeline_parallel % degree == 0) mesh.expert_parallel = degree;
  }
  return mesh;
}

FsdpConfig draw_fsdp() {
  using enum ReshardAfterForward;
  using enum ExchangeMethod;
  using Reshard = std::optional<ReshardAfterForward>;
  return {.reshard_after_forward = any_of<Reshard>({std::nullopt, kExceptLast, kAlways, kNever}),
          .gradient_dtype = one_in(12) ? std::optional(Dtype::kFloat32) : std::nullopt,
          .reduce_on_last_microbatch = any_of<std::optional<bool>>({std::nullopt, false, true}),
          .gather = any_of<ExchangeMethod>({kAuto, kCommunicator, kCopyEngine}),
          .reduce = any_of<ExchangeMethod>({kAuto, kCommunicator, kCopyEngine})};
}

Layout draw_layout(const LayoutJob& job) {
  Layout layout = draw_pipeline(job);
  layout.mesh = draw_mesh(job, layout);
  if (layout.mesh.tensor_parallel == 1) {
    layout.composition = any_of<Composition>(
        {Composition::kDefault, Composition::kDefault, Composition::kLayersByHand, Composition::kGroupsByHand});
  }
  using enum Checkpoints;
  layout.checkpoints = any_of<Checkpoints>({kNone, kNone, kLayers, kNested, kPlans, kLaterPlans, kOuter, kOuterNested});
  if (job.has_snapshots && layout.checkpoints >= kOuter)
    layout.checkpoints = kLayers;  // between layers nothing is kept
  layout.keeps_master_weights = one_in(4);
  if (one_in(4)) layout.deal = any_of<Deal>({Deal::kByReplica, Deal::kByReplica, Deal::kByRank});
  layout.pads = job.has_short_sequences && !one_in(4);
  layout.deals_in_turn = one_in(2);
  layout.fsdp = draw_fsdp();
  layout.tensor.exchange = any_of<ExchangeMethod>({ExchangeMethod::kCommunicator, ExchangeMethod::kCopyEngine});
  layout.grad_dtype = one_in(8) ? std::optional(any_of<Dtype>({Dtype::kFloat64, Dtype::kFloat32})) : std::nullopt;
  layout.bucket_size_mb = one_in(2) ? 0 : 32;
  layout.renews_manager = one_in(6);
  if (one_in(5)) {
    using enum SleepTag;
    layout.sleeps = any_of<SleepTags>({{kTensorStates}, {kComms}, {kTensorStates, kComms}});
  }
  const bool counts = job.balances_by_bias || job.starves_experts || has_buffer(job);  // which is not undone
  layout.abandons = !counts && num_stages(layout) == 1 && one_in(6);
  return layout;
}

// Of context-parallel ranks.
ContextAttention draw_attention(const LayoutJob& job, const Layout& layout) {
  const DeviceMeshParameters& mesh = layout.mesh;
  const std::int64_t num_ranks = mesh.context_parallel_shard * mesh.context_parallel_replicate;
  const std::int64_t of_rank = mesh.tensor_parallel;
  if (num_ranks == 1) return ContextAttention::kAuto;
  const bool has_heads = job.num_heads % of_rank == 0 && job.num_key_heads % of_rank == 0 &&
                         ranks_divide_heads(num_ranks, job.num_heads / of_rank, job.num_key_heads / of_rank);
  if (has_heads && one_in(2)) return ContextAttention::kHeads;
  const bool is_packed = job.packs || (job.has_short_sequences && !layout.pads);
  const bool has_window = job.family == kOwnLayers && job.own.attention == Attention::kWindow;
  if (!(is_packed && has_window) && one_in(2)) return ContextAttention::kRing;
  return any_of<ContextAttention>({ContextAttention::kAuto, ContextAttention::kGathered});
}

// What the schedule needs, over all ranks.
std::int64_t least_microbatches(const Layout& layout) {
  const DeviceMeshParameters& mesh = layout.mesh;
  const std::int64_t of_rank = layout.schedule == Schedule::kDualPipeV ? 2 * mesh.pipeline_parallel : 1;
  const std::int64_t given_up = layout.deal == Deal::kEqual ? 0 : 1;
  return (of_rank + given_up) * mesh.data_parallel_replicate * mesh.data_parallel_shard;
}

}  // namespace

LayoutCase draw_case() {
  LayoutCase drawn{.job = draw_job(), .layout = {}};
  drawn.layout = draw_layout(drawn.job);
  const auto shares = [](const Layout& layout) {
    return layout.mesh.data_parallel_replicate * layout.mesh.data_parallel_shard;
  };
  std::int64_t share = shares(drawn.layout);
  if (drawn.job.num_steps > 1 && one_in(5)) {
    Layout rest = draw_layout(drawn.job);
    rest.keeps_master_weights = drawn.layout.keeps_master_weights;  // a part of what is saved
    if (const std::int64_t common = std::lcm(share, shares(rest)); common <= kUsualRanks) {
      share = common;
      drawn.rest = rest;
      drawn.resumes_at = number(1, drawn.job.num_steps);
    }
  }
  const std::int64_t least = std::max(least_microbatches(drawn.layout), least_microbatches(drawn.rest));
  drawn.job.num_microbatches = std::max(number(1, 4), (least + share - 1) / share) * share;
  drawn.job.freezes_late = one_in(12);
  const bool cuts_rows = drawn.layout.mesh.tensor_parallel > 1;  // whose norms magnitudes replace
  if (cuts_rows) {
    using Heads = std::pair<std::int64_t, std::int64_t>;
    std::tie(drawn.job.num_heads, drawn.job.num_key_heads) =
        any_of<Heads>({{4, 2}, {8, 4}, {16, 8}, {6, 3}, {6, 2}, {5, 1}, {3, 3}});
  }
  drawn.job.adapts = one_in(cuts_rows ? 3 : 5);
  if (drawn.job.adapts && has_experts(drawn.job)) {
    // Gradients of a router's B, whose rows are small, are zero but for rounding for experts that no token chooses.
    using enum UpdateRule;
    const bool is_proportional = std::ranges::count(std::vector{kSgd, kMomentum, kNesterov}, drawn.job.update_rule) > 0;
    if (!is_proportional) drawn.job.update_rule = kNesterov;
  }
  drawn.job.has_magnitudes = drawn.job.adapts && (cuts_rows || one_in(2));
  const bool pads = pads_sequences(drawn.job, drawn.layout.mesh) || pads_sequences(drawn.job, drawn.rest.mesh);
  if (drawn.job.adapts && !drawn.job.has_short_sequences && one_in(2) && !pads) drawn.job.adapter_dropout = 0.25;
  const LayoutJob& job = drawn.job;
  const bool is_language_model = job.heads == std::vector{Head::kCausalLM};
  const bool compares = !job.packs && !job.has_short_sequences && !job.has_pairs && !job.has_snapshots;
  if (is_language_model && compares && !one_in(4)) {
    drawn.job.prefers = true;
    drawn.job.num_sequences = 2;
  }
  for (Layout* const layout : {&drawn.layout, &drawn.rest}) layout->context.attention = draw_attention(job, *layout);
  if (is_rounded_to_float(drawn)) {  // Adam's updates have the same size for a rounding error as for a gradient
    drawn.job.update_rule = UpdateRule::kSgd;
    drawn.job.num_steps = 1;  // after an update some token may be at a tie of two experts
    drawn.resumes_at = 0;
  }
  return drawn;
}

}  // namespace d9d::test

#include "tests/layout/mutation.h"

#include <ATen/ATen.h>

#include "d9d/blocks/attention/sdpa.h"
#include "d9d/blocks/regularization/dropout.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/communicator/communicator.h"
#include "d9d/modules/module_hook.h"
#include "d9d/modules/tensor_plan.h"

#include "tests/layout/layout_model.h"

namespace d9d::test {
namespace {

// Outputs of a pooled head, and a sum over the positions of one sequence.
bool is_pooled(const at::Tensor& tensor) {
  return tensor.dim() > 1 && (tensor.size(-1) == kLayoutClasses || tensor.size(-1) == kLayoutEmbedding);
}
bool is_snapshot(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.size(0) == 1 && tensor.size(1) == kLayoutHidden;
}

constexpr std::int64_t kDimsOfKeys = 4;  // and of values: [B, S, H, D]

class MutatedCommunicator final : public Communicator {
 public:
  MutatedCommunicator(std::shared_ptr<Communicator> whole, Mutation mutation, PhaseOfRank& phase)
      : Communicator(whole->group()), whole_(std::move(whole)), mutation_(mutation), phase_(phase) {}

  [[nodiscard]] at::Device device() const override { return whole_->device(); }

  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    const bool is_first_sum = phase_.phase == Phase::kSum && phase_.num_sums++ == 0;  // the sum of losses and weights
    const bool is_gradient = phase_.phase == Phase::kBackward && tensor.is_floating_point();
    const bool counts_tokens = tensor.scalar_type() == at::kLong;
    const bool balances = tensor.numel() == 2 * kLayoutExperts;  // the sum of token counts and probabilities
    if (mutation_ == Mutation::kReplicaMean && is_gradient) return whole_->all_reduce(tensor, ReduceOp::kAvg);
    if (mutation_ == Mutation::kReplicaTwice && is_gradient) whole_->all_reduce(tensor, op).wait();
    if (mutation_ == Mutation::kTotalsMean && is_first_sum) return whole_->all_reduce(tensor, ReduceOp::kAvg);
    const bool is_in_forward = phase_.phase == Phase::kForward && tensor.is_floating_point();
    const bool is_of_rows = is_in_forward && tensor.dim() == 1;  // norms, or log-probabilities
    const bool is_dropped =
        (mutation_ == Mutation::kNormsOfPart && is_of_rows) ||
        (mutation_ == Mutation::kPreferenceOfPart && is_of_rows && !balances) ||
        (mutation_ == Mutation::kPooledOfPart && is_in_forward && is_pooled(tensor)) ||
        (mutation_ == Mutation::kSnapshotOfPart && is_in_forward && is_snapshot(tensor)) ||
        (mutation_ == Mutation::kReplicaDropped && is_gradient && !std::exchange(has_dropped_, true)) ||
        (mutation_ == Mutation::kAuxiliaryDropped && phase_.phase == Phase::kForward && balances) ||
        (mutation_ == Mutation::kBalanceDropped && phase_.phase == Phase::kFinish && counts_tokens) ||
        (mutation_ == Mutation::kBufferDropped && phase_.phase == Phase::kFinish && tensor.is_floating_point()) ||
        (mutation_ == Mutation::kTiedDropped && group().name == "tied") ||
        (mutation_ == Mutation::kNormDropped && phase_.phase == Phase::kSum && !is_first_sum);
    return is_dropped ? Work() : whole_->all_reduce(tensor, op);
  }
  [[nodiscard]] Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override {
    const bool is_of_keys = is_context_parallel() && output.dim() == kDimsOfKeys;
    const bool is_dropped =
        (mutation_ == Mutation::kContextSumDropped && is_of_keys && phase_.phase == Phase::kBackward) ||
        (is_tensor_parallel() && ((mutation_ == Mutation::kEnterSumDropped && phase_.phase == Phase::kBackward) ||
                                  (mutation_ == Mutation::kLeaveSumDropped && phase_.phase == Phase::kForward)));
    if (is_dropped) {
      output.copy_(input.reshape({size(), -1})[group().index].view(output.sizes()));
      return {};
    }
    const bool is_mean = mutation_ == Mutation::kShardMean && phase_.phase == Phase::kBackward;
    return whole_->reduce_scatter(output, input, is_mean ? ReduceOp::kAvg : op);
  }
  [[nodiscard]] Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    const bool is_of_loss = input.dim() == 2 && input.is_floating_point();  // sums of each position
    const bool is_of_keys = is_context_parallel() && input.dim() == kDimsOfKeys;
    const bool is_forward = phase_.phase == Phase::kForward;
    const bool is_of_one =
        (mutation_ == Mutation::kContextOwnKeys && is_of_keys && is_forward) ||
        (is_tensor_parallel() && ((mutation_ == Mutation::kEnterOwnPositions && is_forward) ||
                                  (mutation_ == Mutation::kLossOfPart && is_forward && is_of_loss) ||
                                  (mutation_ == Mutation::kLeaveOwnGradient && phase_.phase == Phase::kBackward)));
    if (!is_of_one) return whole_->all_gather(output, input);
    output.zero_().view({size(), -1})[group().index].copy_(input.reshape({-1}));
    return {};
  }
  [[nodiscard]] Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                                const std::vector<std::int64_t>& output_splits,
                                const std::vector<std::int64_t>& input_splits) override {
    // Directions go to owners and updates back, in turn.
    const bool is_update = phase_.phase == Phase::kSum && num_exchanges_++ % 2 == 1;
    if (mutation_ == Mutation::kOwnerSilent && is_update && rank() == 0) input.zero_();
    const bool is_of_heads = output.dim() == 5 && phase_.phase == Phase::kForward;  // [W, B, S / W, H / W, D]
    if (mutation_ != Mutation::kHeadsRolled || !is_of_heads) {
      return whole_->all_to_all(output, input, output_splits, input_splits);
    }
    whole_->all_to_all(output, input, output_splits, input_splits).wait();
    output.copy_(output.roll(1, 0));
    return {};
  }
  [[nodiscard]] Work broadcast(const at::Tensor& tensor, std::int64_t root) override {
    return whole_->broadcast(tensor, root);
  }
  [[nodiscard]] Work gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                            std::int64_t root) override {
    return whole_->gather(outputs, input, root);
  }
  [[nodiscard]] Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             std::int64_t root) override {
    return whole_->scatter(output, inputs, root);
  }
  [[nodiscard]] Work exchange(const std::vector<PointToPoint>& messages) override {
    if (mutation_ != Mutation::kMessageStale || !group().name.starts_with("pipeline ") ||
        messages.front().direction != PointToPoint::Direction::kReceive) {
      return whole_->exchange(messages);
    }
    whole_->exchange(messages).wait();
    const at::Tensor& message = messages.front().tensor;
    if (num_messages_++ == 1 && message.sizes() == first_message_.sizes()) message.copy_(first_message_);
    if (num_messages_ == 1) first_message_ = message.clone();
    return {};
  }
  void barrier() override { whole_->barrier(); }
  void throw_if_failed() override { whole_->throw_if_failed(); }
  [[nodiscard]] bool has_failed() const override { return whole_->has_failed(); }
  void throw_if_rank_is_gone() override { whole_->throw_if_rank_is_gone(); }
  void set_timeout(std::chrono::milliseconds timeout) override { whole_->set_timeout(timeout); }
  void abort(const std::string& reason) override { whole_->abort(reason); }
  void disconnect() override { whole_->disconnect(); }
  void reconnect() override { whole_->reconnect(); }

 private:
  // Not by the group's name: ranks of several axes that are the same have one communicator.
  [[nodiscard]] bool is_tensor_parallel() const { return group().ranks == phase_.tensor_parallel_ranks; }
  [[nodiscard]] bool is_context_parallel() const { return group().ranks == phase_.context_parallel_ranks; }

  std::shared_ptr<Communicator> whole_;
  Mutation mutation_;
  PhaseOfRank& phase_;
  bool has_dropped_ = false;
  int num_messages_ = 0;   // of a link
  int num_exchanges_ = 0;  // of matrices
  at::Tensor first_message_;
};

class MutatedBackend final : public CommunicatorBackend {
 public:
  MutatedBackend(World& world, Mutation mutation, PhaseOfRank& phase)
      : world_(world), mutation_(mutation), phase_(phase) {}
  [[nodiscard]] std::int64_t rank() const override { return world_.rank(); }
  [[nodiscard]] std::int64_t world_size() const override { return world_.size(); }
  [[nodiscard]] at::Device device() const override { return world_.device(); }
  [[nodiscard]] std::shared_ptr<Communicator> connect(RankGroup group, std::chrono::milliseconds /*timeout*/) override {
    return std::make_shared<MutatedCommunicator>(world_.communicator(group), mutation_, phase_);
  }
  void abort(const std::string& reason) override { world_.abort(reason); }
  void leave() override { world_.leave(); }

 private:
  World& world_;
  Mutation mutation_;
  PhaseOfRank& phase_;
};

}  // namespace

namespace {

struct Description {
  Mutation mutation;
  const char* name;
  const char* what;
};

constexpr Description kDescriptions[] = {
    {Mutation::kNone, "none", "nothing is mutated"},
    {Mutation::kGradientPlacement, "gradient_placement",
     "the first gradient that is declared Partial is declared Replicate"},
    {Mutation::kReplicaMean, "replica_mean", "replicated gradients are averaged"},
    {Mutation::kShardMean, "shard_mean", "sharded gradients are averaged"},
    {Mutation::kReplicaTwice, "replica_twice", "replicated gradients are summed over their sums"},
    {Mutation::kReplicaDropped, "replica_dropped", "the first sum of replicated gradients of each group is left out"},
    {Mutation::kAuxiliaryDropped, "auxiliary_dropped", "the auxiliary loss counts the tokens of one rank"},
    {Mutation::kBalanceDropped, "balance_dropped", "the loss-free balance counts the tokens of one rank"},
    {Mutation::kNormDropped, "norm_dropped", "the norm of gradients is that of one rank's shards"},
    {Mutation::kPaddingCounted, "padding_counted", "experts get padding, and count it"},
    {Mutation::kTotalsMean, "totals_mean", "losses and weights are averaged over ranks"},
    {Mutation::kLocalMicrobatch, "local_microbatch", "dropout knows the number of a microbatch on its rank"},
    {Mutation::kSeedOfRank, "seed_of_rank", "dropout has another seed on each rank"},
    {Mutation::kStageSumEarly, "stage_sum_early", "a stage's gradients are summed after its first microbatch"},
    {Mutation::kTiedDropped, "tied_dropped", "the gradients of an embedding that two stages have are not summed"},
    {Mutation::kAdapterSeed, "adapter_seed", "the last rank draws its adapters from another seed"},
    {Mutation::kNormsOfPart, "norms_of_part", "magnitudes divide by norms of the columns that a rank has"},
    {Mutation::kKeysUnsummed, "keys_unsummed", "gradients of keys that several ranks have are not summed"},
    {Mutation::kPreferenceOfPart, "preference_of_part", "preferences compare the positions that a rank has"},
    {Mutation::kPooledOfPart, "pooled_of_part", "pooled heads use the positions that a rank has"},
    {Mutation::kSnapshotOfPart, "snapshot_of_part", "snapshots are means over the positions that a rank has"},
    {Mutation::kBufferDropped, "buffer_dropped", "a layer's own buffer follows the activations of one rank"},
    {Mutation::kFreezingUnseen, "freezing_unseen", "a parameter that is frozen late is not seen"},
    {Mutation::kUnequalCut, "unequal_cut", "ranks train as many microbatches as the one that has fewest"},
    {Mutation::kUnequalUnseen, "unequal_unseen", "ranks do not compare how many microbatches they have"},
    {Mutation::kMessageStale, "message_stale", "a stage gets the message before instead of the second"},
    {Mutation::kMessageRounded, "message_rounded", "a stage gets hidden states that were rounded to float32"},
    {Mutation::kAuxiliaryOfStage, "auxiliary_of_stage", "a stage forgets the auxiliary loss of the layers before it"},
    {Mutation::kLostAsleep, "lost_asleep", "a rank's parameters lose their values while the job sleeps"},
    {Mutation::kGroupsUnseen, "groups_unseen", "the last rank's optimiser does not see the groups of parameters"},
    {Mutation::kOwnerSilent, "owner_silent", "an owner of matrices leaves out its updates"},
    {Mutation::kAveragesStale, "averages_stale", "the last rank does not average the first step"},
    {Mutation::kEnterSumDropped, "enter_sum_dropped",
     "gradients of what a tensor-parallel block gathers are not summed"},
    {Mutation::kEnterOwnPositions, "enter_own_positions",
     "a tensor-parallel block sees zeros for other ranks' positions"},
    {Mutation::kLeaveSumDropped, "leave_sum_dropped", "what leaves a tensor-parallel block is one rank's summand"},
    {Mutation::kLeaveOwnGradient, "leave_own_gradient", "a tensor-parallel block gets one rank's part of the gradient"},
    {Mutation::kLossOfPart, "loss_of_part", "the loss sums the vocabulary of one rank"},
    {Mutation::kHeadsRolled, "heads_rolled", "heads that ranks exchanged for positions come back in another order"},
    {Mutation::kAnnouncedDtype, "announced_dtype", "a stage announces hidden states of the other of mixed dtypes"},
    {Mutation::kContextSumDropped, "context_sum_dropped", "gradients of keys are those of one rank's queries"},
    {Mutation::kContextOwnKeys, "context_own_keys", "queries see zeros for the keys of other ranks"},
    {Mutation::kPositionsOfNext, "positions_of_next",
     "a context-parallel rank rotates by the positions of the next one"},
    {Mutation::kLabelsOfNext, "labels_of_next", "a context-parallel rank has the labels of the next one"},
    {Mutation::kDropoutOfHalf, "dropout_of_half", "the halves of a rank's positions swap their dropout masks"},
    {Mutation::kFirstQueryLate, "first_query_late", "attention believes the queries of a rank later than they are"},
    {Mutation::kBoundaryLate, "boundary_late", "the first of packed documents has a position of the second"},
    {Mutation::kBoundaryOfRank, "boundary_of_rank", "the last rank of a ring believes the first document longer"},
    {Mutation::kRecomputedOfOther, "recomputed_of_other", "recomputation starts from the microbatch before"},
};

const Description& description_of(Mutation mutation) { return kDescriptions[static_cast<std::size_t>(mutation)]; }

// Swaps what the halves of a rank's positions get: before a dropout and, so that only its mask moves, after it.
class SwappedHalves final : public ModuleHook {
 public:
  void before_forward(Module& /*module*/, const TensorRefs& inputs) override { roll(inputs, 1); }
  void after_forward(Module& /*module*/, const TensorRefs& outputs) override { roll(outputs, -1); }

 private:
  static void roll(const TensorRefs& tensors, std::int64_t direction) {
    at::Tensor& x = tensors.front();
    x = x.roll(direction * (x.size(kPositions) / 2), kPositions);
  }
};

// In a recomputation gives a layer's first norm the hidden states of the forward before the last one.
class StaleRecomputation final : public ModuleHook {
 public:
  void before_forward(Module& /*module*/, const TensorRefs& inputs) override {
    at::Tensor& x = inputs.front();
    if (!is_recomputing()) {
      before_ = std::exchange(last_, x.detach());
    } else if (before_.defined() && before_.sizes() == x.sizes()) {
      x = before_.clone().set_requires_grad(x.requires_grad());
    }
  }
  void after_forward(Module& /*module*/, const TensorRefs& /*outputs*/) override {}

 private:
  at::Tensor last_, before_;
};

class MutatedAttention final : public AttentionContext {
 public:
  MutatedAttention(AttentionContextPtr whole, Mutation mutation) : whole_(std::move(whole)), mutation_(mutation) {}
  [[nodiscard]] at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                  const kernels::SdpaPreferences& preferences) const override {
    kernels::SdpaInputs shown = inputs;
    kernels::SdpaOptions how = options;
    if (mutation_ == Mutation::kFirstQueryLate) how.first_query += (inputs.query.size(kPositions) + 1) / 2;
    const bool is_late = mutation_ == Mutation::kBoundaryLate || mutation_ == Mutation::kBoundaryOfRank;
    if (is_late && shown.packed) {
      shown.packed->cu_seqlens = shown.packed->cu_seqlens.clone();
      shown.packed->cu_seqlens.select(0, 1).add_(1);
      ++shown.packed->max_length;
    }
    return whole_->attend(shown, how, preferences);
  }

 private:
  AttentionContextPtr whole_;
  Mutation mutation_;
};

}  // namespace

const char* name_of(Mutation mutation) { return description_of(mutation).name; }
const char* describe(Mutation mutation) { return description_of(mutation).what; }

const std::vector<Mutation>& all_mutations() {
  static const std::vector<Mutation> mutations = [] {
    std::vector<Mutation> all;
    for (const Description& each : kDescriptions) {
      if (each.mutation != Mutation::kNone) all.push_back(each.mutation);
    }
    return all;
  }();
  return mutations;
}

bool can_show(Mutation mutation, const LayoutCase& drawn) {
  const auto& [job, layout, resumes_at, rest] = drawn;
  const DeviceMeshParameters& mesh = layout.mesh;
  const bool has_context = mesh.context_parallel_shard * mesh.context_parallel_replicate > 1;
  if (mutation == Mutation::kFreezingUnseen) return job.freezes_late && mesh.world_size() > 1;
  if (mutation == Mutation::kUnequalUnseen) return refusal(drawn) == kNeedsEqualMicrobatches;
  if (mesh.world_size() == 1 || refusal(drawn)) return false;
  if (mutation == Mutation::kBufferDropped) return has_buffer(job);
  if (mutation == Mutation::kUnequalCut) return is_unequal(job, layout);
  if (mutation == Mutation::kAuxiliaryDropped) {
    return (has_context || mesh.tensor_parallel > 1) && has_experts(job) && job.balances_by_loss;
  }
  if (mutation == Mutation::kBalanceDropped) return has_experts(job) && job.balances_by_bias;
  if (mutation == Mutation::kPaddingCounted) {
    return layout.pads && has_experts(job) && (job.balances_by_loss || job.balances_by_bias);
  }
  if (mutation == Mutation::kStageSumEarly) return num_stages(layout) > 1;
  if (mutation == Mutation::kTiedDropped) {
    return mesh.pipeline_parallel > 1 && job.ties_embeddings && !job.adapts && job.heads.front() == Head::kCausalLM;
  }
  if (mutation == Mutation::kAdapterSeed) return job.adapts;
  const bool is_of_blocks = mutation >= Mutation::kEnterSumDropped && mutation <= Mutation::kLossOfPart;
  if (is_of_blocks) {
    const bool is_by_communicator = layout.tensor.exchange != ExchangeMethod::kCopyEngine;
    return mesh.tensor_parallel > 1 && (is_by_communicator || mutation == Mutation::kLossOfPart);
  }
  if (mutation == Mutation::kNormsOfPart) return job.has_magnitudes && mesh.tensor_parallel > 1;
  if (mutation == Mutation::kKeysUnsummed) return job.num_key_heads % mesh.tensor_parallel != 0;
  if (mutation == Mutation::kPreferenceOfPart) return job.prefers && has_context;
  if (mutation == Mutation::kPooledOfPart) {
    return (has_context || mesh.tensor_parallel > 1) && job.heads != std::vector{Head::kCausalLM};
  }
  if (mutation == Mutation::kSnapshotOfPart) {
    return job.has_snapshots && job.num_sequences == 1 && (has_context || mesh.tensor_parallel > 1);
  }
  if (mutation == Mutation::kHeadsRolled) return has_context && layout.context.attention == ContextAttention::kHeads;
  if (mutation == Mutation::kMessageStale) return mesh.pipeline_parallel > 1;
  if (mutation == Mutation::kMessageRounded) return num_stages(layout) > 1 && !is_rounded_to_float(drawn);
  if (mutation == Mutation::kLostAsleep) return !layout.sleeps.empty() && job.num_steps > 1;
  if (mutation == Mutation::kGroupsUnseen) return job.has_groups;
  if (mutation == Mutation::kOwnerSilent) {
    return job.update_rule == UpdateRule::kMuon &&
           mesh.data_parallel_shard * mesh.context_parallel_shard * mesh.tensor_parallel > 1;
  }
  if (mutation == Mutation::kAveragesStale) return job.has_averages;
  if (mutation == Mutation::kAnnouncedDtype) return num_stages(layout) > 1 && job.is_mixed;
  if (mutation == Mutation::kAuxiliaryOfStage) {
    return num_stages(layout) > 1 && has_experts(job) && job.balances_by_loss;
  }
  if (mutation == Mutation::kLocalMicrobatch || mutation == Mutation::kSeedOfRank) return has_dropout(job);
  if (mutation == Mutation::kDropoutOfHalf) return has_context && has_dropout(job);
  if (mutation == Mutation::kRecomputedOfOther) {
    return layout.checkpoints != Checkpoints::kNone && !job.calls_layers_twice;
  }
  if (mutation == Mutation::kBoundaryLate) return job.packs && !job.has_short_sequences;
  if (mutation == Mutation::kBoundaryOfRank) {
    return job.packs && !job.has_short_sequences && layout.context.attention == ContextAttention::kRing;
  }
  const bool is_of_context = mutation == Mutation::kContextSumDropped || mutation == Mutation::kContextOwnKeys ||
                             mutation == Mutation::kPositionsOfNext || mutation == Mutation::kLabelsOfNext ||
                             mutation == Mutation::kFirstQueryLate;
  if (is_of_context) return has_context;
  return true;
}

std::shared_ptr<World> mutated(World& world, Mutation mutation, PhaseOfRank& phase) {
  return std::make_shared<World>(std::make_unique<MutatedBackend>(world, mutation, phase));
}

void mutate_placements(const Module& module, Mutation mutation) {
  const bool is_of_keys = mutation == Mutation::kKeysUnsummed;
  if (mutation != Mutation::kGradientPlacement && !is_of_keys) return;
  for (const auto& [name, parameter] : module.named_parameters()) {
    const auto& axes = parameter->mesh().axes();
    // Sums of sharded gradients were chosen when they were sharded.
    if (has_flat_shard(parameter->placements())) continue;
    if (is_of_keys && name.find(".k_proj.") == std::string::npos) continue;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const bool is_partial = std::holds_alternative<Partial>(parameter->gradient_placements()[i]);
      if (!is_partial || axes[i].size == 1 || (is_of_keys && axes[i].name != "tp")) continue;
      parameter->place(DeviceMesh(parameter->mesh()), axes[i].name, parameter->placements()[i], Replicate{});
      if (!is_of_keys) return;
    }
  }
}

void mutate_blocks(Module& module, Mutation mutation, bool is_last) {
  const bool is_of_attention = mutation == Mutation::kFirstQueryLate || mutation == Mutation::kBoundaryLate ||
                               (mutation == Mutation::kBoundaryOfRank && is_last);
  module.for_each_module([&](const std::string& name, Module& each) {
    auto* const core = dynamic_cast<Sdpa*>(&each);
    if (is_of_attention && core != nullptr) {
      core->set_attention_context(std::make_shared<MutatedAttention>(core->set_attention_context(nullptr), mutation));
    }
    const bool is_in_layer = dynamic_cast<Dropout*>(&each) != nullptr && name.find("layers.") != std::string::npos;
    if (mutation == Mutation::kDropoutOfHalf && is_in_layer) each.add_hook(std::make_shared<SwappedHalves>());
    if (mutation == Mutation::kRecomputedOfOther && name.ends_with("input_layernorm")) {
      each.add_hook(std::make_shared<StaleRecomputation>());
    }
  });
}

}  // namespace d9d::test

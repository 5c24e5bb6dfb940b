// A training job and its layout as two values, so that a failing draw of the fuzzer is text that can be pasted.
//
// Example
//   const LayoutCase drawn{.job = {.family = "qwen3_moe", .balances_by_loss = true},
//                          .layout = {.mesh = {.data_parallel_shard = 4, .expert_parallel = 2}}};
//   std::cout << to_source(drawn);      // the same text, with only the members that differ from their defaults
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "d9d/base/dtype.h"
#include "d9d/core/mesh/device_mesh_parameters.h"
#include "d9d/core/offload/offload.h"
#include "d9d/optim/config.h"
#include "d9d/parallelism/context/context_parallel_config.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"
#include "d9d/parallelism/tensor/tensor_parallel_config.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"

namespace d9d::test {

// The test's own layers instead of a family's (own_layer.h).
inline constexpr const char* kOwnLayers = "own_layers";

enum class Attention : std::uint8_t {
  kPlain,
  kGated,   // with an output gate, a softcap and biases, which the feed-forward has then too
  kWindow,  // of three positions, with sinks
};

struct OwnLayers {
  Attention attention = Attention::kPlain;
  bool has_experts = false;
  bool has_shared_expert = false;  // with a gate; needs experts
  double dropout = 0.0;
  // A linear that is skipped in every second step, and in the other steps in every second microbatch.
  bool has_branch = false;
  bool replays = false;  // multiplies by a call counter, which a recomputation must not increment
  // A persistent buffer that follows the activations of all ranks, and changes nothing else.
  bool has_buffer = false;
};

enum class Head : std::uint8_t { kCausalLM, kClassification, kEmbedding };
// Which losses leave out one of several heads. The forward still runs all heads.
enum class LeftOut : std::uint8_t {
  kNothing,
  kOddSteps,      // the last head in steps 1, 3, ...
  kEvenSteps,     // the last head in steps 0, 2, ...
  kMicrobatches,  // microbatch n, counted over the job, leaves out head n % number of heads: ranks differ
};
enum class Pooling : std::uint8_t { kAll, kSome, kLast };  // which positions the pooled heads use
enum class Labels : std::uint8_t {
  kAll,
  kUnequal,        // sequence n lacks its first n % 7 labels
  kSecondHalf,     // the first half is a prompt without labels
  kSomeSequences,  // every third sequence has no labels
};
enum class Weights : std::uint8_t {
  kCounted,   // the number of summed terms
  kScaled,    // times 1, 2, 3, cyclically
  kSomeZero,  // times 1, 0, cyclically
};
enum class UpdateRule : std::uint8_t {
  kAdamW,
  kSgd,
  kAdam,      // with amsgrad
  kMomentum,  // SGD, dampened
  kNesterov,
  kLion,
  kMuon,
};

// Determines the numbers: every layout must give those of one rank.
struct LayoutJob {
  std::string family = "qwen3_dense";  // of decoder_families(), or kOwnLayers
  OwnLayers own = {};
  at::ScalarType dtype = at::kDouble;
  std::int64_t num_layers = 3;
  std::int64_t num_heads = 4;      // of queries
  std::int64_t num_key_heads = 2;  // of keys and values
  bool ties_embeddings = false;
  bool freezes_attention = false;  // attention of every second layer, and the embedding
  bool is_mixed = false;           // norms in fp32
  bool calls_layers_twice = false;
  bool adapts = false;           // trains adapters of all modules that can have one, and norms, and nothing else
  bool has_magnitudes = false;   // DoRA of linears between hidden activations, if it adapts
  double adapter_dropout = 0.0;  // of adapters, but for those of experts, if it adapts
  bool freezes_late = false;     // freezes, or thaws, a parameter before the last step: refused on every layout
  // For layers with experts.
  std::int64_t num_dense = 0;  // the first layers, which have no experts; the last layer always has them
  bool balances_by_loss = false;
  bool balances_by_bias = false;
  bool starves_experts = false;  // all tokens choose the first two of eight experts; needs the bias
  // The loss.
  std::vector<Head> heads = {Head::kCausalLM};
  double head_dropout = 0.0;  // of the classification head
  bool has_snapshots =
      false;  // the loss has a term of them. Not with short sequences, two passes, pairs or preferences
  LeftOut leaves_out = LeftOut::kNothing;
  Pooling pooling = Pooling::kAll;
  Labels labels = Labels::kUnequal;
  bool packs = false;  // two documents a sequence, which do not see each other
  // Sequence n has the first (5 * n + 3) % (num_positions + 1) of its positions, so some have none. One rank has them
  // in one row without padding.
  bool has_short_sequences = false;
  Weights weights = Weights::kCounted;
  bool has_pairs = false;  // two forwards before one backward
  // Sequences come in pairs, of which the first is preferred to the second (DPO), against given log-probabilities. With
  // an even num_sequences, the head kCausalLM alone, and neither packs, has_short_sequences nor has_pairs.
  bool prefers = false;
  // Microbatches of a step over all ranks; divisible by the data-parallel ranks of each layout, of which each gets at
  // least two if they are dealt unequally.
  std::int64_t num_microbatches = 8;
  std::int64_t num_sequences = 1;  // of a microbatch
  std::int64_t num_positions = 8;  // of a sequence; padded where the ranks that share it do not divide it
  std::int64_t num_steps = 3;
  UpdateRule update_rule = UpdateRule::kAdamW;
  bool has_groups = false;    // attention and norms have options of their own, and not all parameters are decayed
  bool has_averages = false;  // of the parameters, with which they change places after each step
};

enum class Checkpoints : std::uint8_t {
  kNone,
  kLayers,       // each layer
  kNested,       // each layer, and attention and feed-forward inside it
  kPlans,        // layer i follows the i-th of its activation_plans()
  kLaterPlans,   // the (i + 3)-th
  kOuter,        // all layers together
  kOuterNested,  // all of these
};
enum class Composition : std::uint8_t {
  kDefault,       // parallelize_decoder
  kLayersByHand,  // sharded layers, everything else replicated: parallelize_fsdp and parallelize_replicate
  kGroupsByHand,  // the same with two layers a unit, and a unit a head
};

// How many microbatches a data-parallel rank gets. What the first has more, the last has less.
enum class Deal : std::uint8_t {
  kEqual,
  kByReplica,  // the ranks of the first replica, all that share its shards, have one more
  kByRank,     // the first rank has one more
};

// Of the stages of a pipeline over mesh.pipeline_parallel ranks.
enum class Schedule : std::uint8_t {
  kOneFOneB,
  kGPipe,
  // Two stages a rank, also of one rank.
  kInterleaved,  // 1F1B
  kZeroBubble,   // 1F1B with split backwards
  kLoopedBfs,
  kZeroBubbleV,
  kDualPipeV,  // needs two microbatches of a data-parallel rank for each rank of the pipeline
};

// Determines the distribution of the work over ranks, and its order.
struct Layout {
  DeviceMeshParameters mesh = {};
  Schedule schedule = Schedule::kOneFOneB;
  Composition composition = Composition::kDefault;
  Checkpoints checkpoints = Checkpoints::kNone;
  bool keeps_master_weights = false;  // parameters are stored in float64, beside those that layers compute with
  Deal deal = Deal::kEqual;
  bool pads = false;  // short sequences are padded to one length, and microbatches say so
  // Microbatches are dealt round-robin to ranks, if equally; otherwise each rank has consecutive ones.
  bool deals_in_turn = false;
  FsdpConfig fsdp = {};
  TensorParallelConfig tensor = {};
  ContextParallelConfig context = {};
  std::optional<Dtype> grad_dtype = {};
  std::int64_t bucket_size_mb = 32;  // 0: one bucket for each parameter
  bool renews_manager = false;       // makes a new gradient manager after each step
  // Abandons a microbatch before each step: in the first step after its forward, then after its backward.
  bool abandons = false;
  SleepTags sleeps = {};  // the job sleeps after each step; empty: never
};

struct LayoutCase {
  LayoutJob job;
  Layout layout;
  // If not 0, the job is saved after this many steps, and continues from the checkpoint on the layout `rest`.
  std::int64_t resumes_at = 0;
  Layout rest = {};
};

[[nodiscard]] PipelineScheduleConfig config_of(Schedule schedule);
[[nodiscard]] std::int64_t num_stages(const Layout& layout);  // of all ranks
[[nodiscard]] bool has_experts(const LayoutJob& job);
[[nodiscard]] bool has_dropout(const LayoutJob& job);
[[nodiscard]] bool has_buffer(const LayoutJob& job);
// The microbatches of a step that a data-parallel rank has.
[[nodiscard]] std::int64_t num_microbatches(const LayoutJob& job, const Layout& layout, std::int64_t data_rank);
// Whether not all ranks have equally many.
[[nodiscard]] bool is_unequal(const LayoutJob& job, const Layout& layout);

// Of its update rule. with_groups: whether it has those of the job.
[[nodiscard]] OptimizerConfig optimizer_of(const LayoutJob& job, bool with_groups = true);

// Whether any tensor is rounded to fewer digits than those of float64.
[[nodiscard]] bool is_rounded_to_float(const LayoutCase& drawn);

// Of ranks that depend on each other in every microbatch.
inline constexpr const char* kNeedsEqualMicrobatches = "as many microbatches";
// The expected refusal of a case that the library does not support: a part of the message. None: the case must train as
// one rank does.
[[nodiscard]] std::optional<std::string> refusal(const LayoutCase& drawn);

// A C++ aggregate of the members that differ from their defaults, with designated initialisers.
[[nodiscard]] std::string to_source(const LayoutCase& drawn);

}  // namespace d9d::test

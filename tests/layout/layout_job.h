// What is trained, and how it is laid out: two values, so that a failing draw of the fuzzer is text that can be pasted.
//
// Example
//   const LayoutCase drawn{.job = {.family = "qwen3_moe", .balances_by_loss = true},
//                          .layout = {.mesh = {.data_parallel_shard = 4, .expert_parallel = 2}}};
//   std::cout << to_source(drawn);      // the same text, with what is not usual
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "d9d/base/dtype.h"
#include "d9d/core/mesh/device_mesh_parameters.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"

namespace d9d::test {

// Layers of the test's own in place of a family's (own_layer.h).
inline constexpr const char* kOwnLayers = "own_layers";

enum class Attention : std::uint8_t {
  kPlain,
  kGated,   // with an output gate and a softcap
  kWindow,  // of three positions, with sinks
};

struct OwnLayers {
  Attention attention = Attention::kPlain;
  bool has_experts = false;
  bool has_shared_expert = false;  // behind a gate; with experts
  double dropout = 0.0;
  bool has_branch = false;  // a linear that every second step leaves out, and in others every second microbatch
  bool replays = false;     // a factor that counts calls, which a recomputation must not count again
};

enum class Head : std::uint8_t { kCausalLM, kClassification, kEmbedding };
// The losses that do not use one of several heads, which runs all the same.
enum class LeftOut : std::uint8_t {
  kNothing,
  kOddSteps,      // the last head in steps 1, 3, ...
  kEvenSteps,     // the last head in steps 0, 2, ...
  kMicrobatches,  // microbatch n, which counts through the job, head n % number of heads: ranks leave out others
};
enum class Pooling : std::uint8_t { kAll, kSome, kLast };  // positions of the pooled heads
enum class Labels : std::uint8_t {
  kAll,
  kUnequal,        // sequence n lacks its first n % 7
  kSecondHalf,     // prompts that fill the first half
  kSomeSequences,  // every third sequence has none
};
enum class Weights : std::uint8_t {
  kCounted,   // what the loss was summed over
  kScaled,    // times 1, 2, 3 in turn
  kSomeZero,  // times 1, 0 in turn
};
enum class UpdateRule : std::uint8_t { kAdamW, kSgd };

// Decides the numbers: every layout has those of one rank.
struct LayoutJob {
  std::string family = "qwen3_dense";  // of decoder_families(), or kOwnLayers
  OwnLayers own = {};
  at::ScalarType dtype = at::kDouble;
  std::int64_t num_layers = 3;
  bool ties_embeddings = false;
  bool freezes_attention = false;  // of every second layer, and the embedding
  bool is_mixed = false;           // norms in fp32
  bool calls_layers_twice = false;
  // Where there are experts.
  bool balances_by_loss = false;
  bool balances_by_bias = false;
  bool starves_experts = false;  // all tokens go to the first two of eight; with a bias
  // The loss.
  std::vector<Head> heads = {Head::kCausalLM};
  double head_dropout = 0.0;  // of the classification head
  LeftOut leaves_out = LeftOut::kNothing;
  Pooling pooling = Pooling::kAll;
  Labels labels = Labels::kUnequal;
  Weights weights = Weights::kCounted;
  bool has_pairs = false;  // two forwards before one backward
  // Of a step, over all ranks; divisible by the data-parallel ranks of each layout.
  std::int64_t num_microbatches = 8;
  std::int64_t num_sequences = 1;  // of a microbatch
  std::int64_t num_steps = 3;
  UpdateRule update_rule = UpdateRule::kAdamW;
};

enum class Checkpoints : std::uint8_t {
  kNone,
  kLayers,       // each layer
  kNested,       // each layer, and attention and feed-forward within
  kOuter,        // all layers together
  kOuterNested,  // all of these
};
enum class Composition : std::uint8_t {
  kDefault,       // parallelize_decoder
  kLayersByHand,  // sharded layers, everything else replicated: parallelize_fsdp and parallelize_replicate
  kGroupsByHand,  // the same with two layers a unit, and a unit a head
};

// Decides who computes what, when.
struct Layout {
  DeviceMeshParameters mesh = {};
  Composition composition = Composition::kDefault;
  Checkpoints checkpoints = Checkpoints::kNone;
  bool deals_in_turn = false;  // microbatches to ranks as cards, else each rank has a run of them
  FsdpConfig fsdp = {};
  std::optional<Dtype> grad_dtype = {};
  std::int64_t bucket_size_mb = 32;  // 0: a bucket a parameter
  bool renews_manager = false;       // the gradient manager, after each step
  bool abandons = false;             // a microbatch before each step: in the first after its forward, then its backward
};

struct LayoutCase {
  LayoutJob job;
  Layout layout;
};

[[nodiscard]] bool has_experts(const LayoutJob& job);
[[nodiscard]] bool has_dropout(const LayoutJob& job);

// Tensors whose numbers have fewer digits than float64's.
[[nodiscard]] bool is_rounded_to_float(const LayoutCase& drawn);

// What the library does not build and refuses by name: a part of the message. None: it must train as one rank does.
[[nodiscard]] std::optional<std::string> refusal(const LayoutCase& drawn);

// A C++ aggregate of what is not usual, with designated initialisers.
[[nodiscard]] std::string to_source(const LayoutCase& drawn);

}  // namespace d9d::test

// Decoding of several sequences with a cache of their keys and values: which tokens the next forward gets, and where it
// puts their keys and values. generate_batch() drives it.
//
// Example
//   DecodingBatch batch(model, prompts, {.num_new_tokens = 100, .sequence_ranks = {}});
//   for (int i = 0; i < 100; ++i) {
//     const at::Tensor ids = batch.next_logits().argmax(-1).cpu();                 // [N]
//     batch.append({ids.const_data_ptr<std::int64_t>(), batch.active().size()});
//   }
//
// Legend   N sequences that have not ended, V vocabulary size
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "d9d/blocks/attention/key_value_cache.h"
#include "d9d/blocks/attention/sdpa.h"
#include "d9d/core/device/device_graph.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

struct DecodingBatchOptions {
  std::int64_t num_new_tokens = 0;  // of each sequence at most
  DeviceMesh sequence_ranks = {};   // see GenerateOptions
};

// Whether a cache serves this model, as far as that shows before a forward: it is in one piece, every layer attends
// through Sdpa and is_cacheable(), and no rank has a part of the positions (context parallelism).
[[nodiscard]] bool can_decode_with_cache(DecoderForCausalLM& model, const DeviceMesh& sequence_ranks);

// Its forwards run in the caller's mode of modules and gradients. While it lives, the model's attention uses its
// caches. On a GPU that has the whole model, and on a stream that is not the default one, forwards of one new token a
// sequence are recorded and launched again as CUDA graphs, unless the model does what cannot be recorded.
class DecodingBatch {
 public:
  // Local. can_decode_with_cache() must hold. Each of the prompts has a token; there may be none.
  DecodingBatch(const ModulePtr<DecoderForCausalLM>& model, const std::vector<std::vector<std::int64_t>>& prompts,
                const DecodingBatchOptions& options);
  ~DecodingBatch();
  DecodingBatch(const DecodingBatch&) = delete;
  DecodingBatch& operator=(const DecodingBatch&) = delete;

  // The sequences that have not ended: their places in `prompts`, ascending.
  [[nodiscard]] const std::vector<std::int64_t>& active() const { return active_; }
  // Collective over all ranks of the model, also with no sequence here. Runs the model on the tokens that it has not
  // seen. Returns the logits of the token after each active sequence, [N, V], which are valid until the next call.
  [[nodiscard]] at::Tensor next_logits();
  // Local. Appends a token to each active sequence.
  void append(std::span<const std::int64_t> ids);
  // Local. Ends the sequence at this place in `prompts`.
  void end(std::int64_t place) { std::erase(active_, place); }

 private:
  struct Sequence {
    std::vector<std::int64_t> new_tokens;  // that the model has not seen
    std::int64_t num_seen = 0;
    std::int64_t first_row = 0;  // of its room in the caches
  };
  // A recorded forward of one new token for each of some sequences, of which some may have ended since.
  struct Recorded {
    std::vector<std::int64_t> places;
    at::Tensor numbers;      // [4, sequences] int64: ids, positions, rows and numbers of keys
    at::Tensor logits = {};  // [sequences, V]
    bool has_run = false;    // once without a graph, as capturing needs
    std::unique_ptr<DeviceGraph> graph = nullptr;
  };

  [[nodiscard]] at::Tensor forward_row();
  [[nodiscard]] at::Tensor forward_recorded();
  void record(const std::function<void()>& compute);
  [[nodiscard]] Sequence& sequence_at(std::int64_t place) { return sequences_[static_cast<std::size_t>(place)]; }

  const ModulePtr<DecoderForCausalLM> model_;
  const std::int64_t num_shards_;  // tensor-parallel ranks, each of which has a part of the positions between blocks
  const std::int64_t shard_;       // of this rank
  const at::Device device_;
  bool has_graphs_;
  std::vector<Sequence> sequences_;
  std::vector<std::int64_t> active_;
  std::int64_t num_rows_ = 0;  // of all sequences' rooms; those of padding follow
  std::int64_t longest_ = 0;   // room
  const std::shared_ptr<CacheStep> step_ = std::make_shared<CacheStep>();
  std::vector<std::pair<Sdpa*, AttentionContextPtr>> former_;  // contexts of the model
  std::optional<Recorded> recorded_;
};

}  // namespace d9d

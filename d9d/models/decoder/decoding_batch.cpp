#include "d9d/models/decoder/decoding_batch.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "d9d/models/decoder/decoder_layer.h"

namespace d9d {
namespace {

std::int64_t num_shards_of(const DeviceMesh& ranks) { return ranks.has_axis("tp") ? ranks.axis_size("tp") : 1; }
std::int64_t shard_of(const DeviceMesh& ranks) { return ranks.has_axis("tp") ? ranks.axis_coordinate("tp") : 0; }

template <class Number>
at::Tensor to_device(const std::vector<Number>& numbers, at::ScalarType dtype, at::Device device) {
  return at::tensor(numbers, dtype).to(device);
}

// A forward's row of new tokens, in the making.
struct Row {
  std::vector<std::int64_t> ids, positions, rows, num_keys;
  std::vector<std::int64_t> query_ends = {0}, room_ends = {0};
  std::int64_t max_queries = 0, max_keys = 0;

  void add(std::span<const std::int64_t> tokens, std::int64_t num_seen, std::int64_t first_row) {
    const std::int64_t count = std::ssize(tokens);
    for (std::int64_t i = 0; i < count; ++i) {
      positions.push_back(num_seen + i);
      rows.push_back(first_row + num_seen + i);
    }
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    room_ends.back() = first_row;  // rooms of ended sequences before it are the former's
    room_ends.push_back(first_row + num_seen + count);
    query_ends.push_back(std::ssize(ids));
    num_keys.push_back(num_seen + count);
    max_queries = std::max(max_queries, count);
    max_keys = std::max(max_keys, num_seen + count);
  }
};

}  // namespace

bool can_decode_with_cache(DecoderForCausalLM& model, const DeviceMesh& sequence_ranks) {
  if (!model.head || model.model->stage().num_stages != 1) return false;
  if (sequence_ranks.has_axis("cp") && sequence_ranks.axis_size("cp") > 1) return false;
  std::int64_t num_layers = 0, num_attending = 0;
  model.for_each_module([&](const std::string&, Module& module) {
    if (dynamic_cast<DecoderLayer*>(&module) == nullptr) return;
    bool attends = false;
    module.for_each_module([&](const std::string&, Module& each) {
      const auto* const core = dynamic_cast<const Sdpa*>(&each);
      attends = attends || (core != nullptr && !core->parameters.needs_attention_mask);
    });
    num_layers += 1;
    num_attending += attends ? 1 : 0;
  });
  return num_layers > 0 && num_attending == num_layers;
}

DecodingBatch::DecodingBatch(const ModulePtr<DecoderForCausalLM>& model,
                             const std::vector<std::vector<std::int64_t>>& prompts, const DecodingBatchOptions& options)
    : model_(model), num_shards_(num_shards_of(options.sequence_ranks)), shard_(shard_of(options.sequence_ranks)) {
  for (const auto& prompt : prompts) {
    sequences_.push_back({.new_tokens = prompt, .first_row = num_rows_});
    num_rows_ += std::ssize(prompt) + options.num_new_tokens;
  }
  active_.resize(prompts.size());
  std::iota(active_.begin(), active_.end(), 0);
  model_->for_each_module([&](const std::string&, Module& module) {
    auto* const core = dynamic_cast<Sdpa*>(&module);
    if (core == nullptr) return;
    auto cache = std::make_shared<KeyValueCache>(step_, num_rows_ + num_shards_);
    former_.emplace_back(core, core->set_attention_context(std::move(cache)));
  });
}

DecodingBatch::~DecodingBatch() {
  for (const auto& [core, context] : former_) core->set_attention_context(context);
}

at::Tensor DecodingBatch::next_logits() {
  Row row;
  for (const std::int64_t place : active_) {
    Sequence& sequence = sequences_[static_cast<std::size_t>(place)];
    row.add(sequence.new_tokens, sequence.num_seen, sequence.first_row);
    sequence.num_seen += std::ssize(sequence.new_tokens);
    sequence.new_tokens.clear();
  }
  // The row is padded to equal shards, and to one token, by a sequence of its own.
  const std::int64_t num_real = std::ssize(row.ids);
  const std::int64_t per_shard = std::max<std::int64_t>((num_real + num_shards_ - 1) / num_shards_, 1);
  const std::int64_t num_padding = per_shard * num_shards_ - num_real;
  if (num_padding > 0) row.add(std::vector<std::int64_t>(static_cast<std::size_t>(num_padding), 0), 0, num_rows_);

  const at::Device device = model_->head->weights.front()->stored().device();
  const auto longs = [&](const std::vector<std::int64_t>& numbers) { return to_device(numbers, at::kLong, device); };
  const auto ints = [&](const std::vector<std::int64_t>& numbers) { return to_device(numbers, at::kInt, device); };
  step_->rows = longs(row.rows);
  step_->keys = {.cu_seqlens = ints(row.room_ends), .lengths = ints(row.num_keys), .max_length = row.max_keys};
  SequenceShared shared{.position_ids = longs(row.positions).unsqueeze(0),
                        .hidden_states_agg_mask = std::nullopt,
                        .packed = PackedSequences{.cu_seqlens = ints(row.query_ends), .max_length = row.max_queries}};
  if (num_padding > 0) shared.real_positions = at::arange(num_real, at::TensorOptions(device).dtype(at::kLong));
  const at::Tensor hidden =
      model_->model(SequenceInput{longs(row.ids).unsqueeze(0)}, shared).hidden_states;  // [1, per_shard, H]

  // Each rank gives the head its rows of last positions, as many as the rank that has most of them.
  std::vector<std::vector<std::int64_t>> rows_of_shard(static_cast<std::size_t>(num_shards_));
  std::vector<std::pair<std::int64_t, std::int64_t>> found;  // shard and place of each active sequence
  for (std::size_t i = 0; i < active_.size(); ++i) {
    const std::int64_t last = row.query_ends[i + 1] - 1;
    auto& rows = rows_of_shard[static_cast<std::size_t>(last / per_shard)];
    found.emplace_back(last / per_shard, std::ssize(rows));
    rows.push_back(last % per_shard);
  }
  std::size_t most = 1;
  for (const auto& rows : rows_of_shard) most = std::max(most, rows.size());
  auto& own = rows_of_shard[static_cast<std::size_t>(shard_)];
  own.resize(most, 0);
  const at::Tensor logits = model_->head(hidden.index_select(1, longs(own))).squeeze(0);  // [most * shards, V]
  std::vector<std::int64_t> wanted;
  for (const auto& [shard, place] : found) wanted.push_back(shard * static_cast<std::int64_t>(most) + place);
  return std::ssize(wanted) == logits.size(0) ? logits : logits.index_select(0, longs(wanted));
}

void DecodingBatch::append(std::span<const std::int64_t> ids) {
  for (std::size_t i = 0; i < active_.size(); ++i) {
    sequences_[static_cast<std::size_t>(active_[i])].new_tokens.push_back(ids[i]);
  }
}

}  // namespace d9d

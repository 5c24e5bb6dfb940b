#include "d9d/models/decoder/decoding_batch.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <ranges>

#include <ATen/ATen.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/models/decoder/decoder_layer.h"

namespace d9d {
namespace {

std::int64_t num_shards_of(const DeviceMesh& ranks) { return ranks.has_axis("tp") ? ranks.axis_size("tp") : 1; }
std::int64_t shard_of(const DeviceMesh& ranks) { return ranks.has_axis("tp") ? ranks.axis_coordinate("tp") : 0; }

template <class Number>
at::Tensor to_device(const std::vector<Number>& numbers, at::ScalarType dtype, at::Device device) {
  return at::tensor(numbers, dtype).to(device);
}

bool is_of_one_rank(const Module& model) {
  return std::ranges::all_of(model.named_parameters(),
                             [](const auto& named) { return named.second->mesh().num_ranks() == 1; });
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
    const auto* const layer = dynamic_cast<const DecoderLayer*>(&module);
    if (layer == nullptr) return;
    bool attends = false;
    module.for_each_module([&](const std::string&, Module& each) {
      const auto* const core = dynamic_cast<const Sdpa*>(&each);
      attends = attends || (core != nullptr && !core->parameters.needs_attention_mask);
    });
    num_layers += 1;
    num_attending += attends && layer->is_cacheable() ? 1 : 0;
  });
  return num_layers > 0 && num_attending == num_layers;
}

DecodingBatch::DecodingBatch(const ModulePtr<DecoderForCausalLM>& model,
                             const std::vector<std::vector<std::int64_t>>& prompts, const DecodingBatchOptions& options)
    : model_(model),
      num_shards_(num_shards_of(options.sequence_ranks)),
      shard_(shard_of(options.sequence_ranks)),
      device_(model->head->weights.front()->stored().device()),
      has_graphs_(device_.is_cuda() && current_cuda_stream(device_) != nullptr && is_of_one_rank(*model)) {
  for (const auto& prompt : prompts) {
    sequences_.push_back({.new_tokens = prompt, .first_row = num_rows_});
    num_rows_ += std::ssize(prompt) + options.num_new_tokens;
    longest_ = std::max(longest_, std::ssize(prompt) + options.num_new_tokens);
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
  // In the reverse order, because a layer that has several names is in the list for each.
  for (const auto& [core, context] : std::views::reverse(former_)) core->set_attention_context(context);
}

at::Tensor DecodingBatch::next_logits() {
  const bool has_one_each = std::ranges::all_of(active_, [&](std::int64_t place) {
    return sequence_at(place).num_seen > 0 && sequence_at(place).new_tokens.size() == 1;
  });
  return has_graphs_ && has_one_each && !active_.empty() ? forward_recorded() : forward_row();
}

at::Tensor DecodingBatch::forward_row() {
  step_->number += 1;
  Row row;
  for (const std::int64_t place : active_) {
    Sequence& sequence = sequence_at(place);
    row.add(sequence.new_tokens, sequence.num_seen, sequence.first_row);
    sequence.num_seen += std::ssize(sequence.new_tokens);
    sequence.new_tokens.clear();
  }
  // The row is padded to equal shards, and to one token, by a sequence of its own.
  const std::int64_t num_real = std::ssize(row.ids);
  const std::int64_t per_shard = std::max<std::int64_t>((num_real + num_shards_ - 1) / num_shards_, 1);
  const std::int64_t num_padding = per_shard * num_shards_ - num_real;
  if (num_padding > 0) row.add(std::vector<std::int64_t>(static_cast<std::size_t>(num_padding), 0), 0, num_rows_);

  const auto longs = [&](const std::vector<std::int64_t>& numbers) { return to_device(numbers, at::kLong, device_); };
  const auto ints = [&](const std::vector<std::int64_t>& numbers) { return to_device(numbers, at::kInt, device_); };
  step_->rows = longs(row.rows);
  step_->keys = {.cu_seqlens = ints(row.room_ends), .lengths = ints(row.num_keys), .max_length = row.max_keys};
  SequenceShared shared{.position_ids = longs(row.positions).unsqueeze(0),
                        .hidden_states_agg_mask = std::nullopt,
                        .packed = PackedSequences{.cu_seqlens = ints(row.query_ends), .max_length = row.max_queries}};
  if (num_padding > 0) shared.real_positions = at::arange(num_real, at::TensorOptions(device_).dtype(at::kLong));

  // Each rank gives the head its last positions, as many as the rank that has most of them.
  std::vector<std::vector<std::int64_t>> last_of_shard(static_cast<std::size_t>(num_shards_));
  std::vector<std::pair<std::int64_t, std::int64_t>> found;  // shard and place there of each active sequence
  for (std::size_t i = 0; i < active_.size(); ++i) {
    const std::int64_t last = row.query_ends[i + 1] - 1;
    auto& of_shard = last_of_shard[static_cast<std::size_t>(last / per_shard)];
    found.emplace_back(last / per_shard, std::ssize(of_shard));
    of_shard.push_back(last % per_shard);
  }
  std::size_t most = 1;
  for (const auto& of_shard : last_of_shard) most = std::max(most, of_shard.size());
  auto& own = last_of_shard[static_cast<std::size_t>(shard_)];
  own.resize(most, 0);
  const at::Tensor hidden =
      model_->model(SequenceInput{longs(row.ids).unsqueeze(0)}, shared).hidden_states;    // [1, per_shard, H]
  const at::Tensor logits = model_->head(hidden.index_select(1, longs(own))).squeeze(0);  // [most * shards, V]
  std::vector<std::int64_t> wanted;
  for (const auto& [shard, place] : found) wanted.push_back(shard * static_cast<std::int64_t>(most) + place);
  return std::ssize(wanted) == logits.size(0) ? logits : logits.index_select(0, longs(wanted));
}

void DecodingBatch::record(const std::function<void()>& compute) {
  try {
    recorded_->graph = cuda_graphs(device_)();
    recorded_->graph->capture(compute);
  } catch (const std::exception&) {  // a layer waits for the device, say; what is wrong without a graph will say so
    recorded_->graph.reset();
    has_graphs_ = false;
  }
}

at::Tensor DecodingBatch::forward_recorded() {
  // Ended sequences stay in the recorded forward until half of them have ended.
  if (!recorded_ || 2 * active_.size() <= recorded_->places.size()) {
    const auto count = static_cast<std::int64_t>(active_.size());
    recorded_.emplace(
        Recorded{.places = active_, .numbers = at::zeros({4, count}, at::device(device_).dtype(at::kLong))});
    std::vector<std::int64_t> room_ends;
    for (const std::int64_t place : active_) room_ends.push_back(sequence_at(place).first_row);
    room_ends.push_back(num_rows_);
    step_->rows = recorded_->numbers[2];
    step_->keys = {.cu_seqlens = to_device(room_ends, at::kInt, device_), .lengths = {}, .max_length = longest_};
  }
  const std::size_t count = recorded_->places.size();
  std::vector<std::int64_t> numbers(4 * count), wanted;
  for (std::size_t i = 0; i < count; ++i) {
    Sequence& sequence = sequence_at(recorded_->places[i]);
    const bool is_active = std::ranges::binary_search(active_, recorded_->places[i]);
    if (is_active) {
      wanted.push_back(static_cast<std::int64_t>(i));
      sequence.num_seen += 1;
    }
    numbers[i] = is_active ? sequence.new_tokens.front() : 0;  // an ended one computes its last position again
    numbers[count + i] = sequence.num_seen - 1;
    numbers[2 * count + i] = sequence.first_row + sequence.num_seen - 1;
    numbers[3 * count + i] = sequence.num_seen;
    sequence.new_tokens.clear();
  }
  recorded_->numbers.copy_(at::tensor(numbers, at::kLong).view({4, -1}));
  const auto compute = [&] {
    step_->number += 1;
    step_->keys.lengths = recorded_->numbers[3].to(at::kInt);
    const auto one_each = at::arange(static_cast<std::int64_t>(count) + 1, at::device(device_).dtype(at::kInt));
    const SequenceShared shared{.position_ids = recorded_->numbers[1].unsqueeze(0),
                                .hidden_states_agg_mask = std::nullopt,
                                .packed = PackedSequences{.cu_seqlens = one_each, .max_length = 1}};
    const at::Tensor hidden = model_->model(SequenceInput{recorded_->numbers[0].unsqueeze(0)}, shared).hidden_states;
    recorded_->logits = model_->head(hidden).squeeze(0);
  };
  if (recorded_->has_run && has_graphs_ && !recorded_->graph) record(compute);
  if (recorded_->graph) {
    recorded_->graph->replay();
  } else {
    compute();
    recorded_->has_run = true;
  }
  return wanted.size() == count ? recorded_->logits
                                : recorded_->logits.index_select(0, to_device(wanted, at::kLong, device_));
}

void DecodingBatch::append(std::span<const std::int64_t> ids) {
  for (std::size_t i = 0; i < active_.size(); ++i) sequence_at(active_[i]).new_tokens.push_back(ids[i]);
}

}  // namespace d9d

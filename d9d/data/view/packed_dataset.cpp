#include "d9d/data/view/packed_dataset.h"

#include <utility>

#include <ATen/ATen.h>

namespace d9d {

PackedDataset::PackedDataset(UsableDocuments documents, PackingOptions options)
    : documents_(std::move(documents)),
      order_({.size = documents_.size(),
              .length = [this](std::int64_t document) { return documents_.num_positions(document); },
              .capacity = documents_.max_positions(),
              .buffer_size = options.buffer_size,
              .seed = options.seed,
              .shuffle = options.shuffle}) {}

TokenSample PackedDataset::get_in_epoch(std::int64_t index, std::int64_t epoch) const {
  const std::int64_t length = documents_.max_positions();
  TokenSample packed{.input_ids = at::zeros({length}, at::kLong),
                     .labels = at::full({length}, kIgnoreIndex, at::kLong),
                     .position_ids = at::zeros({length}, at::kLong)};
  std::int64_t end = 0;
  for (const std::int64_t document : order_(index, epoch)) {
    const TokenSample sample = documents_.sample(document);
    const std::int64_t count = sample.input_ids.size(0);
    packed.input_ids.narrow(0, end, count).copy_(sample.input_ids);
    packed.labels.narrow(0, end, count).copy_(sample.labels);
    packed.position_ids.narrow(0, end, count).copy_(sample.position_ids);
    packed.packed_lengths.push_back(count);
    end += count;
  }
  if (end < length) packed.packed_lengths.push_back(length - end);
  return packed;
}

}  // namespace d9d

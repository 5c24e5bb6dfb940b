#include "d9d/data/sequences/packed_dataset.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

PackedDataset::PackedDataset(FilteredDocuments documents, PackingOptions options)
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
    const std::int64_t count = documents_.num_positions(document);
    const auto span_of = [end, count](const at::Tensor& tensor) {
      return std::span(tensor.mutable_data_ptr<std::int64_t>() + end, static_cast<std::size_t>(count));
    };
    documents_.read(document, {.input_ids = span_of(packed.input_ids),
                               .labels = span_of(packed.labels),
                               .position_ids = span_of(packed.position_ids)});
    packed.packed_lengths.push_back(count);
    end += count;
  }
  packed.num_padding = length - end;
  if (packed.num_padding > 0) packed.packed_lengths.push_back(packed.num_padding);
  return packed;
}

DataDescription PackedDataset::describe() const {
  const BinPackedOrder::Options& order = order_.options();
  return {
      .line = cat(counted(size(), "packed sequence"), " of ", counted(order.capacity, "position"), ", from buffers of ",
                  counted(order.buffer_size, "document"), order.shuffle ? ", shuffled in each epoch" : ""),
      .inputs = {documents_.describe()}};
}

std::int64_t PackedDataset::num_positions(std::int64_t index, std::int64_t epoch) const {
  std::int64_t count = 0;
  for (const std::int64_t document : order_(index, epoch)) count += documents_.num_positions(document);
  return count;
}

}  // namespace d9d

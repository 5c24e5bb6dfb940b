#include "d9d/parallelism/context/packed_rows.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

namespace d9d {

PackedRows::PackedRows(const PackedSequences& packed, std::int64_t length)
    : row_(packed.cu_seqlens.div(length, "floor")),
      position_(packed.cu_seqlens.remainder(length)),
      max_length_(packed.max_length) {}

PackedSequences PackedRows::in(const std::vector<FlatRange>& ranges) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(computed_, ranges, [](const auto& each) { return each.first; });
  if (found != computed_.end()) return found->second;
  return computed_.emplace_back(ranges, computed(ranges)).second;
}

std::shared_ptr<const PackedRows> LastPackedRows::of(const PackedSequences& packed, std::int64_t length) {
  // Inference tensors have no versions, and nothing that is saved for a backward may refer to one.
  if (c10::InferenceMode::is_enabled() || packed.cu_seqlens.is_inference()) {
    return std::make_shared<PackedRows>(packed, length);
  }
  const std::uint32_t version = packed.cu_seqlens._version();
  const std::lock_guard lock(mutex_);
  const bool is_last = rows_ != nullptr && packed_.cu_seqlens.is_same(packed.cu_seqlens) &&
                       packed_.max_length == packed.max_length && length_ == length && version_ == version;
  if (!is_last) {
    packed_ = packed;
    length_ = length;
    version_ = version;
    rows_ = std::make_shared<PackedRows>(packed, length);
  }
  return rows_;
}

PackedSequences PackedRows::computed(const std::vector<FlatRange>& ranges) const {
  std::int64_t num_positions = 0, sum_of_begins = 0;
  at::Tensor clamped;  // the number of positions before each boundary in its row, plus sum_of_begins
  for (const FlatRange& range : ranges) {
    num_positions += range.numel();
    sum_of_begins += range.begin;
    const at::Tensor here = position_.clamp(range.begin, range.end);
    clamped = clamped.defined() ? clamped.add_(here) : here;
  }
  if (sum_of_begins > 0) clamped.sub_(sum_of_begins);
  return {.cu_seqlens = clamped.add_(row_, /*alpha=*/num_positions),
          .max_length = std::min(max_length_, num_positions)};
}

}  // namespace d9d

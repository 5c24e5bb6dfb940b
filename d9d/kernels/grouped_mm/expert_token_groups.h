// Assigns the rows of a token matrix to experts: each group is a range of consecutive rows, described on the device.
// The host copy of the counts is made on demand, so code that never asks for it never synchronises with the device.
//
// Example (2 experts, 3 and 5 rows)
//   const auto groups = d9d::kernels::ExpertTokenGroups::from_counts(counts);   // counts: [2] int64, any device
//   at::_grouped_mm(x, w, groups.offsets().narrow(0, 1, 2));                    // does not synchronise
//   for (std::int64_t rows : groups.host_counts()) { ... }                      // synchronises once for all copies
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// A value type: copies share the tensor and the host counts. Several threads may read it concurrently.
class ExpertTokenGroups {
 public:
  // counts: [G], integer, the rows of each group. Runs on the device of `counts` without synchronising.
  [[nodiscard]] static ExpertTokenGroups from_counts(const at::Tensor& counts);

  // offsets: [G + 1] int32 with a leading 0, cumulative.
  explicit ExpertTokenGroups(at::Tensor offsets);
  // The same for a host that already knows the G counts.
  ExpertTokenGroups(at::Tensor offsets, std::vector<std::int64_t> host_counts);

  [[nodiscard]] std::int64_t num_groups() const { return offsets_.size(0) - 1; }
  // [G + 1] int32; rows of group g are [offsets[g], offsets[g + 1]).
  [[nodiscard]] const at::Tensor& offsets() const { return offsets_; }
  // [G] int32 on the device of the offsets.
  [[nodiscard]] at::Tensor counts() const;
  // The rows of each group, on the host. The first call synchronises if the groups are on a GPU.
  [[nodiscard]] const std::vector<std::int64_t>& host_counts() const;

 private:
  struct HostCounts;
  at::Tensor offsets_;
  std::shared_ptr<HostCounts> host_;
};

}  // namespace d9d::kernels

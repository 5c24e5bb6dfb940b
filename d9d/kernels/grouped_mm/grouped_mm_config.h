// The implementation that multiplies groups of token rows by their expert's matrix: one of the records below, selected
// in JSON by "kind".
//
// Example
//   {"kind": "eager"}
#pragma once

#include <variant>

#include "d9d/base/record.h"

namespace d9d {

// PyTorch's grouped_mm.
struct TorchGroupedMMConfig {
  static constexpr Tag kTag = {"kind", "torch"};
  static constexpr auto fields() { return record<TorchGroupedMMConfig>(); }
};
// quack and grouped_gemm name kernels of other packages; the device's default runs in their place.
struct QuackGroupedMMConfig {
  static constexpr Tag kTag = {"kind", "quack"};
  static constexpr auto fields() { return record<QuackGroupedMMConfig>(); }
};
struct GroupedGemmGroupedMMConfig {
  static constexpr Tag kTag = {"kind", "grouped_gemm"};
  static constexpr auto fields() { return record<GroupedGemmGroupedMMConfig>(); }
};
// One matrix product per group, with the group sizes on the host.
struct EagerGroupedMMConfig {
  static constexpr Tag kTag = {"kind", "eager"};
  static constexpr auto fields() { return record<EagerGroupedMMConfig>(); }
};
// This library's kernels for Hopper (GroupedMMBackend::kHopper); where there are none, the device's default runs.
struct HopperGroupedMMConfig {
  static constexpr Tag kTag = {"kind", "cutlass"};
  static constexpr auto fields() { return record<HopperGroupedMMConfig>(); }
};

using GroupedMMConfig = std::variant<TorchGroupedMMConfig, QuackGroupedMMConfig, GroupedGemmGroupedMMConfig,
                                     EagerGroupedMMConfig, HopperGroupedMMConfig>;

}  // namespace d9d

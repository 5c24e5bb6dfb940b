// Grouped matrix product: each group of consecutive rows is multiplied by a weight of its own (the experts of a MoE).
//
// Example
//   const auto groups = d9d::kernels::ExpertTokenGroups::from_counts(counts);                  // [G]
//   const auto backend = d9d::kernels::resolve_grouped_mm(grouped_mm_request(x.device())).backend;
//   at::Tensor y = d9d::kernels::grouped_mm(x, w, groups, backend);                            // [N, out]
//
// Legend   N rows over all groups, G groups, in and out features
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "d9d/kernels/grouped_mm/expert_token_groups.h"
#include "d9d/kernels/grouped_mm/grouped_mm_config.h"

namespace d9d::kernels {

// The implementations.
enum class GroupedMMBackend : std::uint8_t {
  kTorch,   // LibTorch's grouped_mm: for bf16 on a GPU a kernel that does not synchronise; for float and half
            // LibTorch's own loop; double, which it does not support, runs as kEager
  kEager,   // one matrix product per group, written into its slice of the result; reads the host counts
  kHopper,  // this library's kernels for Hopper, for bf16 and up to 288 groups, without synchronising; otherwise kTorch
};

// x: [N, in], w: [G, in, out] of the same dtype and device, rows sorted by group, counts of `groups` adding up to N
// (checked where the host counts are read). Returns [N, out] with y[rows of g] = x[rows of g] @ w[g].
// Differentiable in x and w; the weight gradient of a group without rows is zero, never missing. Computes only the
// gradients that the running backward pass asks for. Any number of features is allowed; it is zero-padded where a
// kernel needs a multiple of 16 bytes.
// Throws ConfigError for shapes or dtypes that do not fit.
[[nodiscard]] at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& w, const ExpertTokenGroups& groups,
                                    GroupedMMBackend backend);

// grouped_mm of x with each of w, which is one weight or two of one shape. It is cheaper than separate calls, because
// the gradient of x is summed within one kernel.
[[nodiscard]] std::vector<at::Tensor> grouped_mms(const at::Tensor& x, const std::vector<at::Tensor>& w,
                                                  const ExpertTokenGroups& groups, GroupedMMBackend backend);

struct GroupedMMRequest {
  std::optional<GroupedMMConfig> configured = std::nullopt;   // by the model's configuration, which has precedence
  std::optional<GroupedMMConfig> environment = std::nullopt;  // by D9D_BACKEND_AUTO_GROUPED_MM
  bool is_cuda = false;
  int cuda_capability_major = 0;
  bool has_own_kernels = false;  // this library has kernels for the device
};

// The request for a device, without preferences. For a GPU load_cuda() must have returned true.
[[nodiscard]] GroupedMMRequest grouped_mm_request(c10::Device device);

struct GroupedMMChoice {
  GroupedMMBackend backend;
  std::string why;  // one sentence for the log
};

// Follows the configuration if it is set, else the environment, else chooses by device: kHopper if this library has
// kernels for it, else kTorch on compute capability 9 and 10, else kEager.
[[nodiscard]] GroupedMMChoice resolve_grouped_mm(const GroupedMMRequest& request);

}  // namespace d9d::kernels

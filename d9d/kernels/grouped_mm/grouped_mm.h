// Grouped matrix product: each group of consecutive rows is multiplied by a weight of its own (the experts of a MoE).
//
// Example
//   const auto groups = d9d::kernels::ExpertTokenGroups::from_counts(counts);                  // [G]
//   const auto backend = d9d::kernels::resolve_grouped_mm(grouped_mm_request(x.device())).backend;
//   at::Tensor y = d9d::kernels::grouped_mm(x, w, groups, backend);                            // [N, out]
//
// N rows over all groups, G groups, in/out features.
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

// What computes it.
enum class GroupedMMBackend : std::uint8_t {
  kTorch,   // LibTorch's grouped kernel: bf16 on a GPU without waiting for it; float and half by LibTorch's own loop;
            // double, for which it has nothing, by kEager's
  kEager,   // one product a group, written into its slice; reads the host counts
  kHopper,  // this library's kernels for Hopper: bf16 and up to 288 groups without waiting for the GPU; else kTorch's
};

// x: [N, in], w: [G, in, out] of the same dtype and device, rows sorted by group, counts of `groups` adding up to N
// (checked where the host counts are read). Returns [N, out] with y[rows of g] = x[rows of g] @ w[g].
// Differentiable in x and w; a group without rows gives a zero, never a missing, weight gradient. Computes only the
// gradients that the running backward pass asks for. Features of any size: odd ones are zero-padded for the kernel.
// Throws ConfigError for shapes or dtypes that do not fit.
[[nodiscard]] at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& w, const ExpertTokenGroups& groups,
                                    GroupedMMBackend backend);

// grouped_mm of one x with each of w, one weight or two of one shape: cheaper than apart, as their gradients of x are
// one sum.
[[nodiscard]] std::vector<at::Tensor> grouped_mms(const at::Tensor& x, const std::vector<at::Tensor>& w,
                                                  const ExpertTokenGroups& groups, GroupedMMBackend backend);

// What becomes of values that are there already.
enum class GradientWrite : std::uint8_t { kReplace, kAdd };

// The gradient of w where it is wanted: gradient[g] (+)= x[rows of g]^T @ grad[rows of g], zero or unchanged for a
// group without rows. x: [N, in], grad: [N, out] of the same dtype; gradient: [G, in, out], that dtype or float, which
// sums of many calls want. Without autograd. A pipeline's split backward will add microbatches with it. Throws
// ConfigError for shapes or dtypes that do not fit.
void write_grouped_mm_weight_gradient(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& grad,
                                      const ExpertTokenGroups& groups, GroupedMMBackend backend, GradientWrite write);

struct GroupedMMRequest {
  std::optional<GroupedMMConfig> configured = std::nullopt;   // by the model's configuration: wins
  std::optional<GroupedMMConfig> environment = std::nullopt;  // by D9D_BACKEND_AUTO_GROUPED_MM: second
  bool is_cuda = false;
  int cuda_capability_major = 0;
  bool has_own_kernels = false;  // of this library for the device
};

// Of a device, without a preference. On a GPU load_cuda() has returned true.
[[nodiscard]] GroupedMMRequest grouped_mm_request(c10::Device device);

struct GroupedMMChoice {
  GroupedMMBackend backend;
  std::string why;  // one sentence for the log
};

// Configuration, then environment, then the device: kHopper where its kernels are built, else kTorch on compute
// capability 9 and 10, else kEager.
[[nodiscard]] GroupedMMChoice resolve_grouped_mm(const GroupedMMRequest& request);

}  // namespace d9d::kernels

// The CUDA kernels of topk_router, with one warp per token, and of add_expert_counts_.
//
// Legend   T = dtype of the logits; A = its accumulator: double for double, otherwise float.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

inline constexpr std::int64_t kMaxRouterExperts = 512;
inline constexpr std::int64_t kMaxRouterChoices = 32;
inline constexpr double kSmallestProbabilitySum = 1e-20;  // added to the divisor of the renormalisation

struct TopkRouterShape {
  Dtype dtype;  // T
  std::int64_t num_tokens;
  int num_experts;  // at most kMaxRouterExperts
  int top_k;        // at most kMaxRouterChoices
  bool renormalize;
};

struct TopkRouterForwardArgs {
  TopkRouterShape shape;
  const void* logits;       // [num_tokens, num_experts] T
  const void* expert_bias;  // [num_experts] A, or null
  std::int64_t* indices;    // [num_tokens, top_k]
  void* probs;              // [num_tokens, top_k] A
};
extern "C" void d9d_launch_topk_router_forward(const TopkRouterForwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_topk_router_forward", decltype(d9d_launch_topk_router_forward)>
    launch_topk_router_forward;

struct TopkRouterBackwardArgs {
  TopkRouterShape shape;
  const void* logits;
  const std::int64_t* indices;
  const void* grad_probs;  // [num_tokens, top_k] A
  void* grad_logits;       // [num_tokens, num_experts] T
};
extern "C" void d9d_launch_topk_router_backward(const TopkRouterBackwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_topk_router_backward", decltype(d9d_launch_topk_router_backward)>
    launch_topk_router_backward;

// Adds to counts[e] how often e occurs in ids; ids outside [0, num_experts) are ignored.
struct ExpertCountArgs {
  const std::int64_t* ids;  // [size]
  std::int64_t size;
  int num_experts;  // at most 12288
  std::int64_t* counts;
};
extern "C" void d9d_launch_expert_count(const ExpertCountArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_expert_count", decltype(d9d_launch_expert_count)> launch_expert_count;

}  // namespace d9d::kernels::detail

// Formula: p = softmax(logits); the k largest scores p + bias are chosen, with probabilities p or p / sum of the
//          chosen. Backward: dlogits = p * (dp - sum(p * dp)), with dp the gradient of the chosen probabilities, 0
//          elsewhere.
// Legend:  a token has E experts, of which k are chosen; among equal scores the lower expert wins.
// Mapping: one warp per token; lane l holds experts l, l + 32, ... count_experts: blocks count in shared memory, then
//          add to the result.
// Numerics: fp32 (fp64 for fp64 logits); sums have the fixed order of a warp reduction.
// Traffic: logits are read once, k probabilities and indices per token are written; the backward reads logits, indices
//          and k gradients per token and writes dlogits.
#include <algorithm>
#include <climits>
#include <limits>

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/reduce.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/router/topk_router_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kTokensOfBlock = kBlock / kWarpSize;
constexpr int kMaxCountBlocks = 132;

template <class A>
constexpr A kInfinity = std::numeric_limits<A>::infinity();

template <class A>
struct Softmax {
  A max;
  A sum;
  __device__ A of(A logit) const { return exp(logit - max) / sum; }
};

// The softmax of a token's logits. Lane l gets in `probs` the probabilities of experts l, l + 32, ..., 0 beyond the
// last.
template <class T, int kPerLane, class A = Accumulator<T>>
__device__ __forceinline__ Softmax<A> softmax_of_token(const T* logits, int num_experts, A (&probs)[kPerLane]) {
  const int lane = threadIdx.x % kWarpSize;
  Softmax<A> softmax{.max = -kInfinity<A>, .sum = 0};
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int expert = lane + j * kWarpSize;
    probs[j] = expert < num_experts ? widen(logits[expert]) : -kInfinity<A>;
    softmax.max = max(softmax.max, probs[j]);
  }
  softmax.max = warp_reduce(softmax.max, [](A a, A b) { return max(a, b); });
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    probs[j] = exp(probs[j] - softmax.max);
    softmax.sum += probs[j];
  }
  softmax.sum = warp_sum(softmax.sum);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) probs[j] /= softmax.sum;
  return softmax;
}

// A candidate for the best score of a warp; among equal scores the lower expert wins.
template <class A>
struct Candidate {
  A score = -kInfinity<A>;
  A prob = 0;
  int expert = INT_MAX;

  __device__ __forceinline__ void take_better(A other_score, A other_prob, int other_expert) {
    if (other_score < score || (other_score == score && other_expert > expert)) return;
    score = other_score;
    prob = other_prob;
    expert = other_expert;
  }
};

// Maps floats to unsigned numbers of the same order.
__device__ __forceinline__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value + 0.0F);  // -0 is 0
  return bits ^ ((bits >> 31) == 0 ? 0x80000000U : 0xffffffffU);
}

// The best candidate of the warp, on every lane. Lane l holds the experts whose index is l modulo 32. Only prob and
// expert of the result are meaningful.
template <class A>
__device__ __forceinline__ Candidate<A> best_of_warp(Candidate<A> best) {
  if constexpr (std::is_same_v<A, float>) {
    const unsigned score = best.expert == INT_MAX ? 0 : ordered(best.score);
    const unsigned greatest = __reduce_max_sync(kFullWarp, score);
    const auto expert = static_cast<int>(
        __reduce_min_sync(kFullWarp, score == greatest ? static_cast<unsigned>(best.expert) : INT_MAX));
    return {.score = best.score, .prob = __shfl_sync(kFullWarp, best.prob, expert % kWarpSize), .expert = expert};
  } else {
#pragma unroll
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      const A score = __shfl_xor_sync(kFullWarp, best.score, offset);
      const A prob = __shfl_xor_sync(kFullWarp, best.prob, offset);
      const int expert = __shfl_xor_sync(kFullWarp, best.expert, offset);
      best.take_better(score, prob, expert);
    }
    return best;
  }
}

template <class T, int kPerLane>
__global__ void __launch_bounds__(kBlock) topk_router_forward(const TopkRouterForwardArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  const TopkRouterShape& shape = args.shape;
  const int lane = threadIdx.x % kWarpSize;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kTokensOfBlock + threadIdx.x / kWarpSize;
  if (token >= shape.num_tokens) return;

  A probs[kPerLane];
  (void)softmax_of_token(static_cast<const T*>(args.logits) + token * shape.num_experts, shape.num_experts, probs);
  A scores[kPerLane];
  bool is_left[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int expert = lane + j * kWarpSize;
    is_left[j] = expert < shape.num_experts;
    scores[j] = probs[j];
    if (args.expert_bias && is_left[j]) scores[j] += static_cast<const A*>(args.expert_bias)[expert];
    if (isnan(scores[j])) scores[j] = -kInfinity<A>;  // indices stay valid
  }

  Candidate<A> of_lane;  // lane i keeps the i-th choice
  A sum = 0;
  for (int choice = 0; choice < shape.top_k; ++choice) {
    Candidate<A> best;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (is_left[j]) best.take_better(scores[j], probs[j], lane + j * kWarpSize);
    best = best_of_warp(best);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (best.expert == lane + j * kWarpSize) is_left[j] = false;
    if (lane == choice) of_lane = best;
    sum += best.prob;
  }
  if (lane >= shape.top_k) return;
  const std::int64_t slot = token * shape.top_k + lane;
  args.indices[slot] = of_lane.expert;
  static_cast<A*>(args.probs)[slot] =
      shape.renormalize ? of_lane.prob / (sum + static_cast<A>(kSmallestProbabilitySum)) : of_lane.prob;
}

// With p the softmax, w = p at the chosen, s = sum w + tiny and r = w / s:
//   dw = renormalised ? (dr - sum(dr * r)) / s : dr        dlogits = p * (dp - sum(p * dp)), dp = dw at the chosen
template <class T, int kPerLane>
__global__ void __launch_bounds__(kBlock) topk_router_backward(const TopkRouterBackwardArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  const TopkRouterShape& shape = args.shape;
  const int lane = threadIdx.x % kWarpSize;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kTokensOfBlock + threadIdx.x / kWarpSize;
  if (token >= shape.num_tokens) return;

  const T* logits = static_cast<const T*>(args.logits) + token * shape.num_experts;
  A probs[kPerLane];
  const Softmax<A> softmax = softmax_of_token(logits, shape.num_experts, probs);
  int expert_of_lane = -1;  // lane i has the i-th choice
  A chosen = 0;
  A grad = 0;
  if (lane < shape.top_k) {
    const std::int64_t slot = token * shape.top_k + lane;
    expert_of_lane = static_cast<int>(args.indices[slot]);
    chosen = softmax.of(widen(logits[expert_of_lane]));
    grad = static_cast<const A*>(args.grad_probs)[slot];
  }
  if (shape.renormalize) {
    const A sum = warp_sum(chosen) + static_cast<A>(kSmallestProbabilitySum);
    grad = (grad - warp_sum(grad * chosen / sum)) / sum;
  }
  const A weighted = grad * chosen;  // 0 in lanes without a choice, whose `chosen` is 0
  const A total = warp_sum(weighted);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) probs[j] *= -total;
  for (int choice = 0; choice < shape.top_k; ++choice) {
    const int expert = __shfl_sync(kFullWarp, expert_of_lane, choice);
    const A added = __shfl_sync(kFullWarp, weighted, choice);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (expert == lane + j * kWarpSize) probs[j] += added;
  }
  T* grad_logits = static_cast<T*>(args.grad_logits) + token * shape.num_experts;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j)
    if (lane + j * kWarpSize < shape.num_experts) grad_logits[lane + j * kWarpSize] = narrow<T>(probs[j]);
}

// Calls function(Element<T>, integral_constant of the experts per lane).
template <class Function>
void with_shape(const TopkRouterShape& shape, const Function& function) {
  with_element_type(shape.dtype, [&]<class T>(Element<T> element) {
    if (shape.num_experts <= 2 * kWarpSize) return function(element, std::integral_constant<int, 2>());
    if (shape.num_experts <= 4 * kWarpSize) return function(element, std::integral_constant<int, 4>());
    if (shape.num_experts <= 8 * kWarpSize) return function(element, std::integral_constant<int, 8>());
    return function(element, std::integral_constant<int, 16>());
  });
}

__global__ void __launch_bounds__(kBlock) count_experts(const ExpertCountArgs args) {
  pdl_wait_and_trigger();
  extern __shared__ int counts_of_block[];
  for (int expert = threadIdx.x; expert < args.num_experts; expert += kBlock) counts_of_block[expert] = 0;
  __syncthreads();
  const std::int64_t num_threads = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < args.size; i += num_threads) {
    const std::int64_t id = args.ids[i];
    if (id >= 0 && id < args.num_experts) atomicAdd(counts_of_block + id, 1);
  }
  __syncthreads();
  for (int expert = threadIdx.x; expert < args.num_experts; expert += kBlock) {
    auto* const count = reinterpret_cast<unsigned long long*>(args.counts + expert);
    if (counts_of_block[expert] > 0) atomicAdd(count, static_cast<unsigned long long>(counts_of_block[expert]));
  }
}

}  // namespace

void d9d_launch_topk_router_forward(const TopkRouterForwardArgs& args, CUstream_st* stream) {
  if (args.shape.num_tokens == 0) return;
  with_shape(args.shape, [&]<class T, int kPerLane>(Element<T>, std::integral_constant<int, kPerLane>) {
    launch_pdl(topk_router_forward<T, kPerLane>, {num_blocks(args.shape.num_tokens, kTokensOfBlock), kBlock}, stream,
               args);
  });
  check_launch("topk_router");
}

void d9d_launch_topk_router_backward(const TopkRouterBackwardArgs& args, CUstream_st* stream) {
  if (args.shape.num_tokens == 0) return;
  with_shape(args.shape, [&]<class T, int kPerLane>(Element<T>, std::integral_constant<int, kPerLane>) {
    launch_pdl(topk_router_backward<T, kPerLane>, {num_blocks(args.shape.num_tokens, kTokensOfBlock), kBlock}, stream,
               args);
  });
  check_launch("topk_router");
}

void d9d_launch_expert_count(const ExpertCountArgs& args, CUstream_st* stream) {
  if (args.size == 0) return;
  const unsigned grid = std::min<unsigned>(num_blocks(args.size, kBlock), kMaxCountBlocks);
  launch_pdl(
      count_experts,
      {.num_blocks = grid, .block = kBlock, .shared_bytes = static_cast<unsigned>(args.num_experts * sizeof(int))},
      stream, args);
  check_launch("expert_counts");
}

}  // namespace d9d::kernels::detail

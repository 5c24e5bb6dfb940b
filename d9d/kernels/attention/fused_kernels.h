// The fused kernels of attention, without autograd: cuDNN's graphs, FlashAttention-2, and sinks for the latter.
// fused_attention() (sdpa.h) chooses between them.
#pragma once

#include <limits>
#include <optional>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels::detail {

constexpr std::int64_t kMaxElements = 1LL << 31;  // that the 32-bit indices of the kernels reach
constexpr double kInfiniteLogsumexp = std::numeric_limits<double>::infinity();

// The tensor [B, S, ...] itself if it is contiguous and aligned, otherwise a contiguous copy, differentiable. So heads
// of a fused projection are copied, except for cuDNN on dense sequences, which reads any strides.
[[nodiscard]] at::Tensor readable(const at::Tensor& x);

// Query i sees keys from i + Skv - S - left to i + Skv - S + right: the last query is aligned with the last key. An
// unset side has no bound.
struct FusedCall {
  double scale = 1;
  std::optional<double> softcap = std::nullopt;
  std::optional<std::int64_t> left = std::nullopt;
  std::optional<std::int64_t> right = std::nullopt;
  std::int64_t max_length = 0;      // of packed sequences; 0 for dense ones
  std::int64_t max_key_length = 0;  // of keys of their own; otherwise 0
};

// With key_cu_seqlens the last query of each sequence is aligned with the last of its keys. It has at least as many of
// them, or, if no side has a bound, any number. They fill its room, and the rooms the row of keys, unless there are
// key_lengths, which only flash_forward() takes.
struct FusedTensors {
  at::Tensor query;                // [B, S, Hq, D]
  at::Tensor key;                  // [B, Skv, Hkv, D]
  at::Tensor value;                // [B, Skv, Hkv, D]
  at::Tensor cu_seqlens;           // [N + 1] int32, or undefined; then B is 1
  at::Tensor key_cu_seqlens = {};  // [N + 1] int32, or undefined: the keys are those of the queries' positions
  at::Tensor key_lengths = {};     // [N] int32, or undefined
};

// What a fused kernel computes of the inputs: the range of keys that some query sees, and the band within it.
struct FusedProblem {
  FusedTensors tensors;
  FusedCall call;
  std::int64_t first_key = 0;  // of the inputs
};

// nullopt if there are no queries or no keys, or if a query of dense sequences sees no key: kernels differ in what they
// return for it. Throws ConfigError for tensors of too many elements, and for packed sequences with a first_query.
[[nodiscard]] std::optional<FusedProblem> fused_problem(const SdpaInputs& inputs, const SdpaOptions& options);

// Whether packed queries may have no keys of their sequence, which only key_cu_seqlens without lengths or bounds allow.
[[nodiscard]] inline bool may_see_nothing(const FusedTensors& tensors, const FusedCall& call) {
  return tensors.key_cu_seqlens.defined() && !tensors.key_lengths.defined() && !call.left && !call.right;
}

struct FusedForward {
  at::Tensor out;        // [B, S, Hq, D] contiguous; zeros for queries that see nothing
  at::Tensor logsumexp;  // [B, Hq, S] float, any strides; -inf for queries that see nothing; with key_lengths +inf
};

struct FusedGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

// Either kernel, in parts where the tensors have kMaxElements or more (attention_parts.h): tensors of any size, with
// any strides. Throws ConfigError where a part would be too large. sinks: [Hq], or undefined. grad_logsumexp:
// [B, Hq, S], or undefined; with it kFlash is used, which must take the call.
[[nodiscard]] FusedForward fused_forward(const FusedTensors& tensors, const at::Tensor& sinks, const FusedCall& call,
                                         FusedSdpaKernel kernel, bool backward_follows);
[[nodiscard]] FusedGradients fused_backward(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp,
                                            const FusedTensors& tensors, const FusedForward& forward,
                                            const FusedCall& call, FusedSdpaKernel kernel);

// The kernels themselves take tensors of fewer than kMaxElements elements.

// FlashAttention-2 as LibTorch ships it: bf16 and half on GPUs of compute capability 8 and later.

// The reason why it cannot compute the call; null if it can.
[[nodiscard]] const char* flash_refusal(const FusedTensors& tensors, const FusedCall& call);

[[nodiscard]] FusedForward flash_forward(const FusedTensors& tensors, const FusedCall& call);

// `forward` may be a result of add_sinks(), whose logsumexp includes the sinks.
[[nodiscard]] FusedGradients flash_backward(const at::Tensor& grad_out, const FusedTensors& tensors,
                                            const FusedForward& forward, const FusedCall& call);

// The same backward with an additional gradient of the logsumexp, [B, Hq, S]. Runs on tensors with kMoreFeatures more.
constexpr std::int64_t kMoreFeatures = 8;  // the kernel takes features in multiples of 8
[[nodiscard]] FusedGradients flash_backward_with_logsumexp(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp,
                                                           const FusedTensors& tensors, const FusedForward& forward,
                                                           const FusedCall& call);

// Sinks for kernels that do not support them: a sink only adds its exponential to the denominator of the softmax.

// Converts the result of a kernel without sinks into that with `sinks` [Hq]: scales forward.out in place and replaces
// forward.logsumexp.
void add_sinks(FusedForward& forward, const at::Tensor& sinks);

// The gradient of the sinks, [Hq] in the dtype of `sinks`: minus the sum over queries of exp(sink - logsumexp) *
// (grad_out . out - grad_logsumexp), summed in float in an order that only shapes decide. grad_logsumexp: [B, Hq, S],
// or undefined.
[[nodiscard]] at::Tensor sink_gradient(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp,
                                       const FusedForward& forward, const at::Tensor& sinks);

// cuDNN's graphs (cudnn_graph.h), for bf16 and half on Hopper. Each new combination of shapes and options needs a plan,
// whose making takes up to some tenths of a second. The lengths of packed sequences change with every batch, so their
// plans are made for the number of sequences, the longest length and the sum of lengths, each rounded up to a power of
// two.

// The reason why cuDNN cannot compute the call; null if it can.
[[nodiscard]] const char* cudnn_refusal(const FusedTensors& tensors, const FusedCall& call, bool has_sinks);

// `wanted` if it can compute the call, otherwise FlashAttention-2, or nullopt if that cannot either.
[[nodiscard]] std::optional<FusedSdpaKernel> kernel_for(const FusedTensors& tensors, const FusedCall& call,
                                                        bool has_sinks, FusedSdpaKernel wanted);

// sinks: [Hq], or undefined. With backward_follows a background thread makes the plan of the backward pass meanwhile.
// Throws StateError with cuDNN's reason if cuDNN makes no plan.
[[nodiscard]] FusedForward cudnn_forward(const FusedTensors& tensors, const at::Tensor& sinks, const FusedCall& call,
                                         bool backward_follows);

// Sinks need no argument, because forward.logsumexp includes them. The gradients are not bitwise reproducible. If the
// rows of dense values are preceded by as many columns as queries and keys have together, so are the rows of their
// gradient, in a storage of its own (column_slices.h); all other gradients are contiguous.
[[nodiscard]] FusedGradients cudnn_backward(const at::Tensor& grad_out, const FusedTensors& tensors,
                                            const FusedForward& forward, const FusedCall& call);

}  // namespace d9d::kernels::detail

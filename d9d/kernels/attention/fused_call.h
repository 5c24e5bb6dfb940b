// One call of a fused kernel: the arguments and results of flash_attention.h and cudnn_attention.h, which know no
// autograd.
#pragma once

#include <optional>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels::detail {

// Query i sees keys from i + Skv - S - left to i + Skv - S + right: the last query is aligned with the last key. An
// unset side has no bound.
struct FusedCall {
  double scale = 1;
  std::optional<double> softcap = std::nullopt;
  std::optional<std::int64_t> left = std::nullopt;
  std::optional<std::int64_t> right = std::nullopt;
  std::int64_t max_length = 0;  // of packed sequences; 0 for dense ones
};

struct FusedTensors {
  at::Tensor query;       // [B, S, Hq, D]
  at::Tensor key;         // [B, Skv, Hkv, D]
  at::Tensor value;       // [B, Skv, Hkv, D]
  at::Tensor cu_seqlens;  // [N + 1] int32, or undefined; then B is 1
};

struct FusedForward {
  at::Tensor out;        // [B, S, Hq, D] contiguous
  at::Tensor logsumexp;  // [B, Hq, S] float, any strides; queries that see nothing have a value of the kernel's choice
};

struct FusedGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

}  // namespace d9d::kernels::detail

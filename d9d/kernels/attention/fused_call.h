// One call of a fused kernel: what flash_attention.h and cudnn_attention.h compute without autograd.
#pragma once

#include <optional>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels::detail {

// Query i sees keys from i + Skv - S - left to i + Skv - S + right: the band ends at the last key. Unset: no bound.
struct FusedCall {
  double scale = 1;
  std::optional<double> softcap = std::nullopt;
  std::optional<std::int64_t> left = std::nullopt;
  std::optional<std::int64_t> right = std::nullopt;
  std::int64_t max_length = 0;  // of packed sequences; 0: dense
};

struct FusedTensors {
  at::Tensor query;       // [B, S, Hq, D]
  at::Tensor key;         // [B, Skv, Hkv, D]
  at::Tensor value;       // [B, Skv, Hkv, D]
  at::Tensor cu_seqlens;  // [N + 1] int32, or undefined; then B is 1
};

struct FusedForward {
  at::Tensor out;        // [B, S, Hq, D] contiguous
  at::Tensor logsumexp;  // [B, Hq, S] float, of any strides; the kernel's own value where a query sees nothing
};

struct FusedGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

}  // namespace d9d::kernels::detail

// What the kernels of norm_rotary share in addition to head_groups.cuh.
#pragma once

#include "d9d/kernels/device/reduce.cuh"
#include "d9d/kernels/norm_rotary/norm_rotary_kernel.h"
#include "d9d/kernels/rotary/head_groups.cuh"

namespace d9d::kernels::detail {

// The weights of a slot's channels, plus 1 when zero-centred; 0 for a missing second vector.
template <class T, int W>
__device__ __forceinline__ void load_weights(const NormRotaryInputs& inputs, const void* weight,
                                             const Channels& channels, float (&weights)[2 * W]) {
  const float base = inputs.zero_centered ? 1.0F : 0.0F;
  const auto load = [&]<class Weight>(Element<Weight>) {
    const auto first = load_packed<Weight, W>(static_cast<const Weight*>(weight) + channels.first);
    const auto second = load_packed<Weight, W>(static_cast<const Weight*>(weight) +
                                               (channels.second < 0 ? channels.first : channels.second));
#pragma unroll
    for (int j = 0; j < W; ++j) {
      weights[j] = base + first[j];
      weights[W + j] = channels.second < 0 ? 0.0F : base + second[j];
    }
  };
  if (sizeof(T) == 2 && inputs.weight_dtype == Dtype::kFloat32) {
    load(Element<float>());
  } else {
    load(Element<T>());
  }
}

}  // namespace d9d::kernels::detail

// ldmatrix and stmatrix: a warp moves four 8 x 8 matrices of bf16 between its registers and rows of 16 bytes in shared
// memory. Lane l passes the address of row l % 8 of matrix l / 8.
#pragma once

#include <cuda_bf16.h>

#include "d9d/kernels/device/smem_address.cuh"

namespace d9d::kernels::detail {

// Rounds two floats to bf16 and packs them into one register, `low` into the low half.
[[nodiscard]] __device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Stores eight accumulators of a wgmma (layout in wgmma.cuh), rounded to bf16: 16 rows by 16 columns per warp.
__device__ __forceinline__ void stmatrix_x4(void* row, const float* accum) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(row)),
               "r"(bf16_pair(accum[0], accum[1])), "r"(bf16_pair(accum[2], accum[3])),
               "r"(bf16_pair(accum[4], accum[5])), "r"(bf16_pair(accum[6], accum[7]))
               : "memory");
}
__device__ __forceinline__ void stmatrix_x4_trans(void* row, const float* accum) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(row)),
               "r"(bf16_pair(accum[0], accum[1])), "r"(bf16_pair(accum[2], accum[3])),
               "r"(bf16_pair(accum[4], accum[5])), "r"(bf16_pair(accum[6], accum[7]))
               : "memory");
}

// Loads four matrices as stmatrix_x4_trans() stored them; pairs[i] holds two bf16.
__device__ __forceinline__ void ldmatrix_x4_trans(const void* row, std::uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(smem_address(row))
               : "memory");
}

}  // namespace d9d::kernels::detail

// Stochastic rounding of neighbouring elements on the device: one Philox block serves eight of them.
#pragma once

#include <cuda_bf16.h>

#include "d9d/kernels/device/tensor_chunks.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/stochastic/noise_layout.h"
#include "d9d/kernels/stochastic/stochastic_rounding.h"

namespace d9d::kernels::detail {

// 16 random bits for each of kSize neighbours, two of them per word.
template <int kSize>
struct PackNoise {
  std::uint32_t word[kSize / 2];
};

// The position in the stream of the pack that starts at element `first` of the part; unused for scattered packs.
template <NoiseLayout kLayout>
__device__ __forceinline__ std::int64_t noise_element(const ElementRows& rows, std::int64_t first) {
  if constexpr (kLayout == NoiseLayout::kOneRow) return rows.start + rows.begin + first;
  if constexpr (kLayout == NoiseLayout::kRows) return rows[first];
  return 0;
}

// The random bits of elements [first, first + kSize) of the part that `rows` describes. kSize is 4 or 8, `element` is
// noise_element(rows, first).
template <NoiseLayout kLayout, int kSize>
__device__ __forceinline__ PackNoise<kSize> draw_noise(RandomStream stream, const ElementRows& rows,
                                                       std::int64_t element, std::int64_t first) {
  PackNoise<kSize> noise;
  if constexpr (kLayout == NoiseLayout::kScattered) {
#pragma unroll 1
    for (int i = 0; i < kSize; ++i) {
      const std::uint32_t bits = rounding_noise(stream, rows[first + i]) << (i % 2 * 16);
#pragma unroll
      for (int word = 0; word < kSize / 2; ++word)
        if (i / 2 == word) noise.word[word] = i % 2 == 0 ? bits : noise.word[word] | bits;
    }
  } else {
    const PhiloxWords block = noise_block(stream, element / kNoisesPerBlock);
    const bool is_upper_half = kSize == 4 && element % kNoisesPerBlock != 0;
#pragma unroll
    for (int word = 0; word < kSize / 2; ++word) {
      noise.word[word] = kSize == 4 && is_upper_half ? block[(word + 2) % 4] : block[word];
    }
  }
  return noise;
}

template <int kSize>
__device__ __forceinline__ Vec<__nv_bfloat16, kSize> round_pack(const float (&value)[kSize],
                                                                const PackNoise<kSize>& noise) {
  constexpr unsigned kUpperHalves = 0x7632;
  Vec<std::uint32_t, kSize / 2> words;
#pragma unroll
  for (int word = 0; word < kSize / 2; ++word) {
    const std::uint32_t low = stochastic_bits(value[2 * word], noise.word[word] & 0xFFFFU);
    const std::uint32_t high = stochastic_bits(value[2 * word + 1], noise.word[word] >> 16);
    words.value[word] = __byte_perm(low, high, kUpperHalves);
  }
  return std::bit_cast<Vec<__nv_bfloat16, kSize>>(words);
}

}  // namespace d9d::kernels::detail

// The channels of a head that one thread rotates.
#pragma once

namespace d9d::kernels::detail {

// The first channels of the two vectors of W channels that make up a slot. Within a slot, channels are numbered from 0
// to 2 W - 1 across both vectors: in the half style channel j is rotated with W + j, in the interleaved style 2j with
// 2j + 1 (both in one vector, unless W is 1).
struct Channels {
  int first;
  int second;  // -1: the slot has only one vector
};

// The channels of a slot (heads_view.h). Slots of rotated pairs come first, then those of channels that pass through.
template <int W>
__device__ __forceinline__ Channels channels_of(int head_dim, int rotary_dim, int slot, bool is_interleaved) {
  const int num_rotated = rotary_dim / 2 / W;
  if (slot < num_rotated) {
    if (W == 1 && is_interleaved) return {2 * slot, 2 * slot + 1};
    return {slot * W, rotary_dim / 2 + slot * W};
  }
  const int passing = rotary_dim + 2 * (slot - num_rotated) * W;
  return {passing, passing + W < head_dim ? passing + W : -1};
}

// The two channels of pair j within a slot.
template <int W, bool kIsInterleaved>
struct Pair {
  int a;
  int b;
  __device__ __forceinline__ explicit Pair(int j)
      : a(kIsInterleaved ? 2 * j : j), b(kIsInterleaved ? 2 * j + 1 : W + j) {}
};

}  // namespace d9d::kernels::detail

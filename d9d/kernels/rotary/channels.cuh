// Which channels of a head one thread turns.
#pragma once

namespace d9d::kernels::detail {

// Two pieces of W channels of a head: where they begin. Numbered through, channel j turns with W + j when halves turn
// with each other, and 2j with 2j + 1 when neighbours do (which are of one piece, unless W is 1).
struct Channels {
  int first;
  int second;  // -1: there is none
};

// Slots of a head: first the pairs of turning pieces, then pairs of those that pass through.
template <int W>
__device__ __forceinline__ Channels channels_of(int head_dim, int rotary_dim, int slot, bool is_interleaved) {
  const int num_turning = rotary_dim / 2 / W;
  if (slot < num_turning) {
    if (W == 1 && is_interleaved) return {2 * slot, 2 * slot + 1};
    return {slot * W, rotary_dim / 2 + slot * W};
  }
  const int passing = rotary_dim + 2 * (slot - num_turning) * W;
  return {passing, passing + W < head_dim ? passing + W : -1};
}

// The two channels of pair j.
template <int W, bool kIsInterleaved>
struct Pair {
  int a;
  int b;
  __device__ __forceinline__ explicit Pair(int j)
      : a(kIsInterleaved ? 2 * j : j), b(kIsInterleaved ? 2 * j + 1 : W + j) {}
};

}  // namespace d9d::kernels::detail

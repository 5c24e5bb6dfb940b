// Launch interface of the kernel behind element_random.h. Independent of LibTorch.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace d9d::detail {

enum class RandomKind : std::uint8_t { kUniform, kNormal, kBernoulli };

struct FillRandomArgs {
  static constexpr int kMaxDims = 8;

  void* out = nullptr;  // contiguous, of shape `sizes`; bool for kBernoulli, otherwise of `dtype`
  Dtype dtype = Dtype::kFloat32;
  RandomKind kind = RandomKind::kUniform;
  double first = 0;   // low, mean, or the probability of true
  double second = 0;  // high, or the standard deviation
  int num_dims = 0;
  std::int64_t sizes[kMaxDims] = {};
  std::int64_t starts[kMaxDims] = {};        // start of `out` in the global tensor
  std::int64_t global_sizes[kMaxDims] = {};  // shape of the global tensor
  std::int64_t numel = 0;
  std::uint64_t key = 0;
  std::uint64_t step = 0;
};

// Launches the kernel asynchronously. For GPUs of compute capability 9.
extern "C" void d9d_launch_fill_random(const FillRandomArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_fill_random", decltype(d9d_launch_fill_random)> launch_fill_random;

}  // namespace d9d::detail

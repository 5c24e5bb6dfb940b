// Random numbers of elements: each thread computes one element in double and rounds it once more through float, as the
// CPU does.
//
// Numerics  Products and sums of uniform numbers are rounded one by one, without fused operations, so they equal those
//           of the CPU bit for bit. Normal numbers use the device's logarithm and cosine, which may differ from the
//           CPU's in the last bits of a double.
#include <algorithm>
#include <type_traits>

#include "d9d/base/philox.h"
#include "d9d/core/device/cuda_launch.cuh"
#include "d9d/core/rng/element_random_kernel.h"

namespace d9d::detail {
namespace {

constexpr int kBlock = 256;

__device__ std::int64_t global_index(const FillRandomArgs& args, std::int64_t local) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (int dim = args.num_dims - 1; dim >= 0; --dim) {
    index += (args.starts[dim] + local % args.sizes[dim]) * stride;
    local /= args.sizes[dim];
    stride *= args.global_sizes[dim];
  }
  return index;
}

__device__ double draw(const FillRandomArgs& args, const PhiloxWords& words) {
  const double u = uniform_double(words[0], words[1]);
  switch (args.kind) {
    case RandomKind::kUniform:
      return __dadd_rn(args.first, __dmul_rn(__dsub_rn(args.second, args.first), u));
    case RandomKind::kNormal: {  // Box-Muller; 1 - u is in (0, 1]
      const double radius = sqrt(-2.0 * log(1.0 - u));
      return args.first + args.second * radius * cospi(2.0 * uniform_double(words[2], words[3]));
    }
    case RandomKind::kBernoulli:
      return u < args.first ? 1.0 : 0.0;
  }
  return 0.0;
}

template <class T>
__device__ T rounded(double value) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, bool>) {
    return static_cast<T>(value);
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

template <class T>
__global__ void fill(FillRandomArgs args) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kBlock;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < args.numel; i += stride) {
    const PhiloxCounter counter{.low = static_cast<std::uint64_t>(global_index(args, i)), .high = args.step};
    static_cast<T*>(args.out)[i] = rounded<T>(draw(args, philox4x32(counter, args.key)));
  }
}

template <class T>
void launch(const FillRandomArgs& args, CUstream_st* stream) {
  constexpr unsigned kMostBlocks = 1 << 16;
  fill<T><<<std::min(num_blocks(args.numel, kBlock), kMostBlocks), kBlock, 0, stream>>>(args);
}

}  // namespace

void d9d_launch_fill_random(const FillRandomArgs& args, CUstream_st* stream) {
  if (args.numel == 0) return;
  if (args.kind == RandomKind::kBernoulli) {
    launch<bool>(args, stream);
  } else {
    with_element_type(args.dtype, [&]<class T>(Element<T>) { launch<T>(args, stream); });
  }
  check_launch("core", "element_random");
}

}  // namespace d9d::detail

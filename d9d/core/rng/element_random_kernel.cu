// Random numbers of elements: one thread an element, in double, rounded once more through float as the CPU does.
//
// Numerics  the products and sums of uniform numbers are rounded one by one, without fused operations: bit for bit
// those of
//           the CPU. Normal numbers take logarithm and cosine of this device, which may differ in the last bits of a
//           double.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
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
  constexpr std::int64_t kMostBlocks = 1 << 16;
  const std::int64_t blocks = (args.numel + kBlock - 1) / kBlock;
  fill<T><<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kBlock, 0, stream>>>(args);
  const cudaError_t error = cudaGetLastError();
  D9D_CHECK(error == cudaSuccess, StateError, "[core::element_random] expected its kernel to start, got CUDA's error '",
            cudaGetErrorString(error), "'. An earlier operation may have failed: run with CUDA_LAUNCH_BLOCKING=1.");
}

}  // namespace

bool has_fill_random_kernel() { return true; }

void launch_fill_random(const FillRandomArgs& args, CUstream_st* stream) {
  if (args.numel == 0) return;
  if (args.kind == RandomKind::kBernoulli) return launch<bool>(args, stream);
  switch (args.dtype) {
    case Dtype::kFloat64:
      return launch<double>(args, stream);
    case Dtype::kFloat32:
      return launch<float>(args, stream);
    case Dtype::kBFloat16:
      return launch<__nv_bfloat16>(args, stream);
    case Dtype::kFloat16:
      return launch<__half>(args, stream);
  }
}

}  // namespace d9d::detail

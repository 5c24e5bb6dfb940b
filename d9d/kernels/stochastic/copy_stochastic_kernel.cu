// Formula: target = source rounded to one of its two neighbours in bf16, to the upper one with the probability that
//          makes the mean exact.
// Legend:  source fp32, target bf16.
// Mapping: a thread rounds 8 elements, which share a block of random numbers.
// Numerics: each element uses 16 random bits, which depend only on key, step and the element's index.
// Traffic: 4 bytes per element are read, 2 are written.
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/stochastic/copy_stochastic_kernel.h"
#include "d9d/kernels/stochastic/stochastic_rounding.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kPack = 8;

template <NoiseLayout kLayout>
__global__ __launch_bounds__(kBlock) void copy_stochastic(StochasticCopyArgs args) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x) * kPack;
  if (first >= args.size) return;
  auto* const target = static_cast<__nv_bfloat16*>(args.target) + first;
  const float* const source = args.source + first;
  const int count = args.size - first < kPack ? static_cast<int>(args.size - first) : kPack;
  const bool is_whole = count == kPack && is_aligned(args.target) && is_aligned(args.source);
  const auto value = load_vec_partial<float, kPack>(source, count, is_whole);
  const std::int64_t element = noise_element<kLayout>(args.rows, first);
  const auto noise = draw_noise<kLayout, kPack>(args.stream, args.rows, element, first);
  store_vec_partial(round_pack(value.value, noise), count, is_whole, target);
}

template <NoiseLayout kLayout>
void launch(const StochasticCopyArgs& args, cudaStream_t stream) {
  copy_stochastic<kLayout><<<num_blocks(args.size, kBlock * kPack), kBlock, 0, stream>>>(args);
}

}  // namespace

void d9d_launch_copy_stochastic(const StochasticCopyArgs& args, cudaStream_t stream) {
  switch (noise_layout(args.rows, kPack)) {
    case NoiseLayout::kOneRow:
      launch<NoiseLayout::kOneRow>(args, stream);
      break;
    case NoiseLayout::kRows:
      launch<NoiseLayout::kRows>(args, stream);
      break;
    case NoiseLayout::kScattered:
      launch<NoiseLayout::kScattered>(args, stream);
      break;
  }
  check_launch("copy_stochastic");
}

}  // namespace d9d::kernels::detail

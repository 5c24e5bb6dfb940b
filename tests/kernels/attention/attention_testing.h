// Shared by the tests of attention on a GPU: cases, and the error of a core relative to eager attention in fp64, which
// is called once for each packed sequence.
//
// Example
//   EXPECT_EQ(error_of({.name = "causal", .options = {.causal = true}}, FusedSdpaKernel::kCudnn), "");
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "d9d/kernels/attention/scaled_dot_product_attention.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::attention_testing {

using ::d9d::testing::TensorFunction;
using Core = std::function<SdpaOutput(const SdpaInputs&, const SdpaOptions&)>;

struct AttentionCase {
  std::string name;
  SdpaOptions options = {};
  std::vector<int> lengths = {};      // of packed sequences; empty: dense
  std::vector<int> key_lengths = {};  // of their keys, which fill their rooms; empty: the same
  bool has_sinks = false;
  bool returns_logsumexp = false;
  std::int64_t num_heads = 4, num_kv_heads = 2, num_features = 64;
  std::int64_t batch = 2, num_queries = 203, num_keys = 203;
};

// All kinds of bounds on keys: none, either, and both.
[[nodiscard]] std::vector<AttentionCase> bands();

[[nodiscard]] std::optional<PackedSequences> packed_of(const std::vector<int>& lengths, at::Device device);

// On the CPU: query, key, value, and sinks if the case has them.
[[nodiscard]] std::vector<at::Tensor> inputs_of(const AttentionCase& each, at::ScalarType dtype);
[[nodiscard]] std::vector<at::Tensor> on_gpu(const std::vector<at::Tensor>& tensors);

// A function that runs `core` on such inputs; it returns the output, and the logsumexp if the case needs it.
[[nodiscard]] TensorFunction function_of(const AttentionCase& each, const Core& core);

// Names the results, first outputs, then gradients, whose L2 distance from eager attention exceeds the dtype's
// tolerance, or the error that `core` throws. Empty if there is none.
[[nodiscard]] std::string error_against_eager(const AttentionCase& each, at::ScalarType dtype, const Core& core);
[[nodiscard]] std::string error_of(const AttentionCase& each, FusedSdpaKernel kernel,
                                   at::ScalarType dtype = at::kBFloat16);

// Whether the distance of `actual` from `expected` is at most that of attention in bf16 from fp64.
[[nodiscard]] bool is_near(const at::Tensor& actual, const at::Tensor& expected);

// Process-wide, as launch.deterministic sets it; undone by the destructor.
class Deterministic {
 public:
  Deterministic();
  ~Deterministic();
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
};

}  // namespace d9d::kernels::attention_testing

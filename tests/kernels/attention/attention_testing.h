// What the tests of attention on a GPU share: cases, and the error of a core against eager attention in fp64, one call
// a packed sequence.
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
  std::vector<int> lengths = {};  // of packed sequences; empty: dense
  bool has_sinks = false;
  bool returns_logsumexp = false;
  std::int64_t num_heads = 4, num_kv_heads = 2, num_features = 64;
  std::int64_t batch = 2, num_queries = 203, num_keys = 203;
};

// Every kind of bound that keys have, none to both.
[[nodiscard]] std::vector<AttentionCase> bands();

[[nodiscard]] std::optional<PackedSequences> packed_of(const std::vector<int>& lengths, at::Device device);

// On the CPU: query, key, value, and sinks if the case has them.
[[nodiscard]] std::vector<at::Tensor> inputs_of(const AttentionCase& each, at::ScalarType dtype);
[[nodiscard]] std::vector<at::Tensor> on_gpu(const std::vector<at::Tensor>& tensors);

// `core` on such inputs; returns its output, and the logsumexp if the case wants it.
[[nodiscard]] TensorFunction function_of(const AttentionCase& each, const Core& core);

// Names the results, outputs and then gradients, that are further from eager in the L2 norm than the dtype's tolerance,
// or the error that `core` throws; empty: none.
[[nodiscard]] std::string error_against_eager(const AttentionCase& each, at::ScalarType dtype, const Core& core);
[[nodiscard]] std::string error_of(const AttentionCase& each, FusedSdpaKernel kernel,
                                   at::ScalarType dtype = at::kBFloat16);

// Whether `actual` is as near to `expected` as the attention of bf16 is to that of fp64.
[[nodiscard]] bool is_near(const at::Tensor& actual, const at::Tensor& expected);

// Process-wide, as launch.deterministic sets it.
class Deterministic {
 public:
  Deterministic();
  ~Deterministic();
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
};

}  // namespace d9d::kernels::attention_testing

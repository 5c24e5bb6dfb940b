// Attention by cuDNN's graph API on plain pointers, exported by libd9d_cudnn.so as "d9d_cudnn_graph".
// https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
//
// Legend   B sequences, S queries, Skv keys, Hq and Hkv heads, D features. For packed sequences, S and Skv are the
//          longest that one may be, and all sequences lie behind each other.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "d9d/base/dtype.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Strides of sequences, heads and positions in elements; features lie side by side, all 16-byte aligned.
struct CudnnStrides {
  std::int64_t sequence = 0;
  std::int64_t head = 0;
  std::int64_t position = 0;
  auto operator<=>(const CudnnStrides&) const = default;
};

// What a plan is made for; making one takes up to some tenths of a second.
struct CudnnPlanKey {
  int device = 0;
  bool is_backward = false;
  bool is_packed = false;
  bool has_sinks = false;  // forward only: the logsumexp holds them, and a backward needs no more
  Dtype dtype = Dtype::kBFloat16;
  std::int64_t num_sequences = 0;
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t num_features = 0;
  std::int64_t num_packed = 0;  // positions of all packed sequences, or more
  CudnnStrides query;
  CudnnStrides key;
  CudnnStrides value;
  CudnnStrides grad_value;  // backward only; of packed sequences contiguous
  float scale = 0;
  float softcap = 0;       // 0: none
  std::int64_t left = -1;  // query i sees keys from i + Skv - S - left to i + Skv - S + right; negative: no bound
  std::int64_t right = -1;
  auto operator<=>(const CudnnPlanKey&) const = default;
};

// Out and its gradient are [B, S, Hq, D] contiguous, gradients of queries and keys contiguous in their order of dims;
// logsumexp, natural, float [B, Hq, S], packed [positions, Hq]; sinks float [Hq].
enum class CudnnTensor : std::uint8_t {
  kQuery,
  kKey,
  kValue,
  kOut,
  kLogsumexp,
  kSinks,
  kGradOut,
  kGradQuery,
  kGradKey,
  kGradValue,
  kLengths,       // int32 [B], of packed sequences
  kQueryOffsets,  // int64 [B + 1] each: where a packed sequence begins, in elements
  kKeyOffsets,
  kValueOffsets,
  kOutOffsets,      // of out and of the gradients of queries
  kGradKeyOffsets,  // of the gradients of keys and values
  kLogsumexpOffsets,
};
constexpr std::size_t kNumCudnnTensors = 17;
using CudnnPointers = std::array<void*, kNumCudnnTensors>;  // null: not needed

struct CudnnPlan {
  CudnnPlanKey key;
  std::int64_t workspace_bytes = 0;  // that run() needs
  std::string error;                 // why cuDNN cannot; empty if it can
  std::shared_ptr<void> graph;       // cuDNN's
};
using CudnnPlanPtr = std::shared_ptr<const CudnnPlan>;

struct CudnnGraph {
  // The key's plan, made if there is none. Some hundred are kept; who holds one may run it as long as it likes. From
  // any thread.
  CudnnPlanPtr (*plan)(const CudnnPlanKey& key);
  // Makes the plan in a thread that all such plans share, for plan(key) to find it, or to wait for it. Once a key;
  // returns at once. Another plan has been made before the first: cuDNN opens libraries for that, which a process
  // closes before what was there when they came, and it joins the thread before.
  void (*prepare)(const CudnnPlanKey& key);
  // On the current device, which is the key's, and `stream`; without waiting. Returns the error, empty if there is
  // none. A plan that a device graph captures is kept as long as the process, for nobody tells when it is replayed
  // last.
  std::string (*run)(const CudnnPlanPtr& plan, const CudnnPointers& pointers, void* workspace, CUstream_st* stream);
};

using GetCudnnGraph = CudnnGraph (*)();

}  // namespace d9d::kernels::detail

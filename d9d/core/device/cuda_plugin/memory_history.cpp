// Records by LibTorch's functions behind torch.cuda.memory._record_memory_history().
#include "d9d/core/device/memory_history.h"

#include <cstdint>
#include <optional>

#include <c10/util/env.h>
#include <torch/csrc/cuda/memory_snapshot.h>

namespace {

void record(const std::optional<std::string>& enabled) {
  torch::cuda::_record_memory_history(enabled, /*context=*/"all", /*stacks=*/"all", /*max_entries=*/SIZE_MAX,
                                      /*clearHistory=*/true);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void d9d_begin_memory_history() {
  // By default LibTorch names frames with the program addr2line, which takes long, and throws if there is none.
  c10::utils::set_env("TORCH_SYMBOLIZE_MODE", "fast", /*overwrite=*/false);
  record("all");
}

extern "C" __attribute__((visibility("default"))) void d9d_end_memory_history(std::string& snapshot) {
  snapshot = torch::cuda::_memory_snapshot_pickled();
  record(std::nullopt);
}

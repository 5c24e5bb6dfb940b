#include "d9d/core/launch/library_environment.h"

#include <cstdlib>

namespace d9d {
namespace {

void set_unless_set(const char* name, const char* value) { ::setenv(name, value, /*overwrite=*/0); }

}  // namespace

void set_library_environment(bool is_deterministic) {
  // With this value a communication that times out ends its kernels and shows in getError(); with c10d's default it
  // ends the process.
  set_unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");
  // Otherwise c10d would first write its flight recorder to a file, wait a minute for that at each operation in flight,
  // and block the group's destructor for eight minutes.
  set_unless_set("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  set_unless_set("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0");
  if (is_deterministic) set_unless_set("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
}

}  // namespace d9d

// The environment variables by which this library sets other libraries.
#pragma once

namespace d9d {

// Sets what NCCL's groups in LibTorch and, if `is_deterministic`, cuBLAS read later; keeps what the user has set. Call
// it while the process has one thread: a variable that is added moves the environment, and a library that reads it in
// another thread, as cuDNN does while it compiles, then reads freed memory
// (https://sourceware.org/bugzilla/show_bug.cgi?id=15607).
void set_library_environment(bool is_deterministic);

}  // namespace d9d

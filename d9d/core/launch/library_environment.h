// Sets the environment variables that configure other libraries: NCCL, cuBLAS, OpenMP.
#pragma once

#include <cstdint>

namespace d9d {

// Sets variables that are read later by NCCL's groups in LibTorch, by OpenMP in child processes and, if
// `is_deterministic`, by cuBLAS; keeps values that the user has set. Call it while the process has one thread: a
// variable that is added moves the environment, and a library that reads it in another thread, as cuDNN does while it
// compiles, then reads freed memory (https://sourceware.org/bugzilla/show_bug.cgi?id=15607).
void set_library_environment(bool is_deterministic);

// Makes NCCL accept several ranks on one GPU, which it refuses within a machine: each rank names a machine of its own
// (NCCL_HOSTID), and messages go as between machines. rank: among all of the job, since machines may have equal names.
// Call it before the first group, as set_library_environment().
void let_ranks_share_gpus(std::int64_t rank);

// Restarts this program, in the same process and with the same arguments, with a GOMP_SPINCOUNT after which waiting
// OpenMP threads sleep; libgomp reads it before main begins (docs/decisions/0018-threads-that-wait.md). Returns without
// a restart if the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT, if operators use one thread, if the process has
// other threads, or if `argv` are not the arguments that the process was started with, as in a test.
void restart_with_short_spins(int argc, const char* const* argv);

// Whether this library has set GOMP_SPINCOUNT, in this process or in the one that started it.
[[nodiscard]] bool has_chosen_spins();

}  // namespace d9d

#include "d9d/core/launch/library_environment.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"

namespace d9d {
namespace {

// How often a waiting OpenMP thread spins before it sleeps: some tenths of a millisecond, longer than the pauses
// between operators, far shorter than a time slice.
constexpr const char* kSpinCount = "GOMP_SPINCOUNT";
constexpr const char* kLooks = "10000";
constexpr const char* kIsOurs = "D9D_CHOSE_SPINCOUNT";  // marks that kLooks was set here; children inherit it

void set_unless_set(const char* name, const char* value) { ::setenv(name, value, /*overwrite=*/0); }

// Whether the user, or this program before it restarted, has set how OpenMP threads wait.
bool says_how_threads_wait() {
  return environment_variable(kSpinCount).has_value() || environment_variable("OMP_WAIT_POLICY").has_value();
}

void set_spins() {
  set_unless_set(kSpinCount, kLooks);
  set_unless_set(kIsOurs, "1");
}

bool are_own_arguments(int argc, const char* const* argv) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string own{std::istreambuf_iterator<char>(file), {}};
  std::string given;
  for (int i = 0; i < argc; ++i) given.append(argv[i]).push_back('\0');
  return given == own;
}

bool has_one_thread() {
  std::error_code ignored;
  const std::filesystem::directory_iterator threads("/proc/self/task", ignored);
  return std::distance(begin(threads), end(threads)) == 1;
}

}  // namespace

void set_library_environment(bool is_deterministic) {
  // Without this, the profiler logs an error about the GPU that a machine does not have.
  set_unless_set("KINETO_LOG_LEVEL", "5");
  // With this value a communication that times out ends its kernels and getError() reports it. With c10d's default it
  // ends the process.
  set_unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");
  // Without these, c10d would write its flight recorder to a file after a timeout, wait a minute for that at each
  // operation in flight, and block the group's destructor for eight minutes.
  set_unless_set("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  set_unless_set("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0");
  if (!says_how_threads_wait()) set_spins();
  if (is_deterministic) set_unless_set("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
}

void let_ranks_share_gpus(std::int64_t rank) { set_unless_set("NCCL_HOSTID", cat("rank ", rank).c_str()); }

bool has_chosen_spins() { return environment_variable(kIsOurs).has_value(); }

void restart_with_short_spins(int argc, const char* const* argv) {
  if (says_how_threads_wait() || at::get_num_threads() == 1) return;
  if (!are_own_arguments(argc, argv) || !has_one_thread()) return;
  set_spins();
  std::vector<std::string> strings(argv, argv + argc);
  std::vector<char*> arguments;
  for (std::string& string : strings) arguments.push_back(string.data());
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());  // returns only on failure; threads then spin as before
}

}  // namespace d9d

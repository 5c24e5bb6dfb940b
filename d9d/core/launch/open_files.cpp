#include "d9d/core/launch/open_files.h"

#include <sys/resource.h>

#include "d9d/base/check.h"

namespace d9d {

std::int64_t open_files_of(std::int64_t num_ranks) {
  constexpr std::int64_t kOfProcess = 24;  // streams, files that are being read and written, the device
  constexpr std::int64_t kOfRank = 3;      // connections to each other rank, of the groups that most jobs have
  return kOfProcess + kOfRank * num_ranks;
}

void raise_open_files(std::int64_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && ::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  const bool is_enough = limit.rlim_cur == RLIM_INFINITY || static_cast<std::int64_t>(limit.rlim_cur) >= needed;
  D9D_CHECK(is_enough, ConfigError, "[core::launch] expected a limit of at least ", needed,
            " open files of each process of this job, got ", limit.rlim_cur,
            ". Raise it (ulimit -Hn, LimitNOFILE of systemd, --ulimit nofile of a container), or start fewer ranks.");
}

}  // namespace d9d

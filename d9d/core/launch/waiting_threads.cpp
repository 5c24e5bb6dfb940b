#include "d9d/core/launch/waiting_threads.h"

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPeriod{250}, kPeriod{500};

// Returns the kernel's counts for each thread of this process, by thread id; empty if the kernel does not count.
std::map<std::string, CoreUse> use_by_thread() {
  std::map<std::string, CoreUse> threads;
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry("/proc/self/task", ignored), end; entry != end;
       entry.increment(ignored)) {
    std::ifstream file(entry->path() / "schedstat");
    std::int64_t running = 0, waiting = 0;
    if (!(file >> running >> waiting)) continue;
    threads[entry->path().filename().string()] = {.running = std::chrono::nanoseconds(running),
                                                  .waiting = std::chrono::nanoseconds(waiting)};
  }
  return threads;
}

// Sums the use of cores between two readings, over the threads that are in both.
CoreUse use_since(const std::map<std::string, CoreUse>& before, const std::map<std::string, CoreUse>& now) {
  CoreUse use;
  for (const auto& [thread, counted] : now) {
    const auto found = before.find(thread);
    if (found == before.end()) continue;
    use.running += counted.running - found->second.running;
    use.waiting += counted.waiting - found->second.waiting;
  }
  return use;
}

int num_usable_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof(cores), &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));  // a cpu_set_t is too small
}

// Returns the function of libgomp that opens a parallel region; null if operators use another library.
using OpenRegion = void (*)(void (*body)(void*), void* data, unsigned num_threads, unsigned flags);
OpenRegion open_region() { return reinterpret_cast<OpenRegion>(::dlsym(RTLD_DEFAULT, "GOMP_parallel")); }

}  // namespace

bool CrowdedCores::measure(const CoreUse& use, std::chrono::nanoseconds period) {
  // In a job that has its cores to itself, threads wait for a core 0.1 to 3 % of their time; beside another job, 30 %
  // and more.
  constexpr double kTaken = 0.1, kFree = 0.03;
  // Alone, a process with more busy threads than cores runs on 95 to 100 % of them.
  constexpr double kOwn = 0.8;
  constexpr int kFreeInARow = 6;  // so that a momentary change does not start spinning
  const auto total = use.running + use.waiting;
  if (4 * total < period) return are_taken_;  // a use of less than a quarter of a core tells nothing
  const bool has_cores =
      static_cast<double>(use.running.count()) > kOwn * num_cores_ * static_cast<double>(period.count());
  const double share = has_cores ? 0 : static_cast<double>(use.waiting.count()) / static_cast<double>(total.count());
  num_free_ = share < kFree ? num_free_ + 1 : 0;
  if (share > kTaken) are_taken_ = true;
  if (num_free_ >= kFreeInARow) are_taken_ = false;
  return are_taken_;
}

// A team of more OpenMP threads than cores, all of which sleep. While it exists, libgomp lets every thread spin only
// 100 times before it sleeps, as its manual says about GOMP_SPINCOUNT.
class WaitingThreads::SleepingTeam {
 public:
  explicit SleepingTeam(OpenRegion open) : thread_([this, open] { open(sleep, this, team_size(), 0); }) {}
  ~SleepingTeam() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
    thread_.join();  // libgomp ends the team with this thread
  }
  SleepingTeam(const SleepingTeam&) = delete;
  SleepingTeam& operator=(const SleepingTeam&) = delete;

  // Whether the process may create a team's threads: libgomp ends the process if it cannot create all of them.
  static bool may_begin() {
    std::promise<void> end;
    const std::shared_future<void> ended = end.get_future().share();
    std::vector<std::jthread> threads;
    bool may = true;
    try {
      while (threads.size() <= team_size()) threads.emplace_back([ended] { ended.wait(); });
    } catch (const std::system_error&) {
      may = false;
    }
    end.set_value();
    return may;
  }

 private:
  static unsigned team_size() { return std::thread::hardware_concurrency() + 2; }
  static void sleep(void* data) {
    auto& team = *static_cast<SleepingTeam*>(data);
    std::unique_lock lock(team.mutex_);
    team.over_.wait(lock, [&] { return team.is_over_; });
  }

  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;
};

class WaitingThreads::Watch {
 public:
  Watch(Logger log, OpenRegion open)
      : log_(std::move(log)), open_(open), thread_([this](const std::stop_token& stop) { run(stop); }) {}

 private:
  void run(const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any stopped;
    std::map<std::string, CoreUse> before = use_by_thread();
    CrowdedCores cores(num_usable_cores());
    for (std::chrono::milliseconds pause = kFirstPeriod;; pause = kPeriod) {
      const Clock::time_point begin = Clock::now();
      stopped.wait_for(lock, stop, pause, [] { return false; });
      if (stop.stop_requested()) return;
      std::map<std::string, CoreUse> now = use_by_thread();
      const CoreUse use = use_since(before, now);
      before = std::move(now);
      const bool are_taken = cores.measure(use, Clock::now() - begin);
      if (are_taken && !team_) {
        tell(use);
        if (SleepingTeam::may_begin()) team_.emplace(open_);
      } else if (!are_taken && team_) {
        team_.reset();
      }
    }
  }

  void tell(const CoreUse& use) {
    if (std::exchange(has_told_, true)) return;
    const double share =
        static_cast<double>(use.waiting.count()) / static_cast<double>((use.running + use.waiting).count());
    // lint: allow(at-once): the warning changes only together with docs/questions.md, which describes it
    log_.warning("other work takes cores of this job, whose threads waited for one ", std::round(100 * share),
                 " % of the last moments: threads of operators that wait now sleep at once, while that lasts");
  }

  const Logger log_;
  const OpenRegion open_;
  bool has_told_ = false;
  std::optional<SleepingTeam> team_;  // while the cores are taken
  std::jthread thread_;
};

WaitingThreads::WaitingThreads(Logger log) {
  const OpenRegion open = open_region();
  if (open != nullptr && !use_by_thread().empty()) watch_ = std::make_unique<Watch>(std::move(log), open);
}

WaitingThreads::~WaitingThreads() = default;

}  // namespace d9d

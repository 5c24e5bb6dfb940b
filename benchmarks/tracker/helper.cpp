// What a tracker in a helper process costs: scalars at a given rate, in steps of 100. Prints the processor time of the
// thread that writes them, as a share of the time that passed, of this process's other threads and of the helper.
//   build/release/bin/tracker_benchmark '{"provider": "aim", "repo": "/tmp/aim"}' [SCALARS A SECOND [SECONDS]]
#include <sys/resource.h>
#include <time.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "d9d/base/config/record_json.h"
#include "d9d/tracker/build_tracker.h"
#include "d9d/tracker/run_info.h"

namespace d9d {
namespace {

constexpr int kSeriesOfStep = 100;

double processor_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double processor_seconds_of_helpers() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);  // of those that have ended
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void write_and_print(const TrackerConfig& config, double scalars_a_second, double seconds) {
  const auto tracker = build_tracker(config);
  const auto run = tracker->open({.name = "benchmark"});
  std::vector<std::string> names;
  for (int i = 0; i < kSeriesOfStep; ++i) names.push_back(cat("layer_", i, "/gradient_norm"));
  const std::chrono::duration<double> step_time(kSeriesOfStep / scalars_a_second);
  const auto num_steps = static_cast<std::int64_t>(seconds / step_time.count());

  const auto start = std::chrono::steady_clock::now();
  const double process_before = processor_seconds(CLOCK_PROCESS_CPUTIME_ID);
  double writing = 0;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    const double before = processor_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (const std::string& name : names) {
      run->write({.name = name, .step = step, .context = {{"stage", "train"}}}, 1.0 / static_cast<double>(step + 1));
    }
    writing += processor_seconds(CLOCK_THREAD_CPUTIME_ID) - before;
    std::this_thread::sleep_until(start + (step + 1) * step_time);
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  const double process = processor_seconds(CLOCK_PROCESS_CPUTIME_ID) - process_before;
  run->close(RunOutcome::kCompleted);
  const std::chrono::duration<double> until_closed = std::chrono::steady_clock::now() - start;

  const auto count = static_cast<double>(num_steps * kSeriesOfStep);
  std::cout << count / passed.count() << " scalars a second for " << passed.count() << " s\n"
            << "training thread: " << 100 * writing / passed.count() << " % of its time, " << 1e9 * writing / count
            << " ns a scalar\n"
            << "other threads of the process: " << 100 * (process - writing) / passed.count() << " %\n"
            << "helper, start and end included: " << processor_seconds_of_helpers() << " s of processor time\n"
            << "closing: " << until_closed.count() - passed.count() << " s\n";
}

}  // namespace
}  // namespace d9d

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: tracker_benchmark TRACKER.JSON [SCALARS A SECOND [SECONDS]]\n";
    return 2;
  }
  const auto config = d9d::parse_record<d9d::TrackerConfig>(d9d::Json::parse(argv[1]), {.keys = "tracker"});
  d9d::write_and_print(config, argc > 2 ? std::atof(argv[2]) : 10'000, argc > 3 ? std::atof(argv[3]) : 10);
}

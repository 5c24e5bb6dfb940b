// Makes OpenMP threads that wait for work sleep immediately while other work wants the cores of this process, and spin
// for a while before they sleep if no other work does (docs/decisions/0018-threads-that-wait.md).
//
// Example
//   const WaitingThreads waiting(log);   // until it is destroyed
//   train();
//
// If a job has its cores to itself, a spinning thread gets the next operator's work sooner than one that must be woken.
// If other work runs too, a spinning thread takes the core from the thread that it waits for. A thread of this object
// measures twice a second how long threads of the process ran and how long they waited for a core, which the kernel
// counts.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "d9d/base/log.h"

namespace d9d {

// The time that the threads of a process spent running and waiting for a core.
struct CoreUse {
  std::chrono::nanoseconds running{0};
  std::chrono::nanoseconds waiting{0};  // ready to run, without a core
};

// Decides from the latest measurements whether other work takes the cores of this process. A process that runs on
// almost all of its cores has them, however long its own threads wait for each other.
class CrowdedCores {
 public:
  // num_cores: the number of cores that the process may use.
  explicit CrowdedCores(int num_cores) : num_cores_(num_cores) {}

  // use: the process's use of cores since the last call, which was `period` ago. Returns whether other work takes its
  // cores now.
  bool measure(const CoreUse& use, std::chrono::nanoseconds period);

 private:
  int num_cores_;
  bool are_taken_ = false;
  int num_free_ = 0;  // measurements in a row that found the cores free
};

class WaitingThreads {
 public:
  // log: gets one warning when the cores are taken. Does nothing if operators do not use libgomp's threads, or if the
  // kernel does not count.
  explicit WaitingThreads(Logger log);
  ~WaitingThreads();
  WaitingThreads(const WaitingThreads&) = delete;
  WaitingThreads& operator=(const WaitingThreads&) = delete;

 private:
  class SleepingTeam;
  class Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace d9d

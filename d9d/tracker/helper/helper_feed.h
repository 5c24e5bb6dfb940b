// Hands values to a helper process from a thread of its own, so that the caller waits for neither process nor disk.
//
// Example
//   d9d::HelperFeed feed({.process = std::move(process), .spool = std::move(spool), .log = log, .name = "aim"});
//   feed.add({.name = "loss", .step = 3}, 2.5);
//   feed.close(d9d::RunOutcome::kCompleted);
//
// If the process ends, or takes values more slowly than they come, there is one warning, and the values that it has not
// taken go to the spool file. After the next hurry() a process that has ended is started again, one that was behind
// goes on if it has caught up, and either replays the spool.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "d9d/base/log.h"
#include "d9d/base/process/line_process.h"
#include "d9d/tracker/helper/spool.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

struct HelperLimits {
  std::size_t max_queued = 65536;                    // values: more, and the process lags behind
  std::size_t max_kept = 1'000'000;                  // values, while the disk of the spool hangs: later ones are lost
  std::chrono::milliseconds tick{100};               // how long a value may wait for more to be sent with
  std::chrono::milliseconds without_answer{30'000};  // while it has values
  std::chrono::milliseconds for_opening{300'000};
  std::chrono::milliseconds for_closing{120'000};  // what the SDK does at the end of a run, such as uploads
};

class HelperFeed {
 public:
  struct Parts {
    std::unique_ptr<LineProcess> process;  // whose run is open
    // Starts another one, opens the same run in it and has it replay the spool. Throws if it cannot.
    std::function<std::unique_ptr<LineProcess>()> restart;
    Spool spool;
    Logger log;
    std::string name;  // of the provider, for warnings
    HelperLimits limits = {};
  };
  explicit HelperFeed(Parts parts);
  // Closes as failed.
  ~HelperFeed();
  HelperFeed(const HelperFeed&) = delete;
  HelperFeed& operator=(const HelperFeed&) = delete;

  // Never waits, never throws for a reason of the process or the disk.
  void add(const TrackerPoint& point, const TrackerValue& value);
  // Sends what has been added without waiting for more. A process that has failed gets another chance.
  void hurry();
  // Waits until the process has taken all values and closed the run, or has proved that it does not.
  void close(RunOutcome outcome);

 private:
  using Values = std::deque<std::pair<TrackerPoint, TrackerValue>>;

  void run();
  [[nodiscard]] Values take();     // waits for a tick
  void pass_on(std::string line);  // to the process, or to the spool
  void hear();                     // what the process answers
  void understand(const std::string& answer);
  void take_as_done(std::int64_t num_done);
  void stop_feeding(const std::string& reason);
  void lose_process(const std::string& reason);
  void restart();                         // of a process that has ended
  void replay();                          // by a process that was behind
  void put_aside(std::string_view line);  // into the spool
  void finish(RunOutcome outcome);

  LineProcess& process() { return *parts_.process; }

  Parts parts_;                     // of the thread, as all that follows up to the mutex
  std::deque<std::string> unsure_;  // lines that were sent and not answered
  std::int64_t num_answered_ = 0;
  std::chrono::steady_clock::time_point heard_at_;
  bool is_feeding_ = true;    // false: values go to the spool
  bool is_lost_ = false;      // the process has ended before its run was closed
  bool is_closed_ = false;    // the process has closed the run
  bool may_restart_ = false;  // since the last hurry()
  bool can_put_aside_ = true;
  bool has_warned_ = false;
  bool has_refused_ = false;  // a value, and said so
  std::string failure_;       // what the process last said about its end

  std::mutex mutex_;
  std::condition_variable wake_;
  Values queue_;
  std::int64_t num_dropped_ = 0;
  bool hurries_ = false;
  std::optional<RunOutcome> outcome_;  // set: no value follows
  std::thread thread_;                 // last: it uses the other members
};

}  // namespace d9d

// Ends waits that nothing else would end: streams, and ranks that are threads, wait for flags in memory without a time
// limit. A thread checks the waits twice a second. If a group has failed, the thread ends the waits of its link, so
// that the host reaches the next operation, which throws. If a wait takes longer than the job's timeout, the thread
// aborts the job and reports what the rank waits for. The wait of a stream is timed from when the stream reaches it,
// not from when the host queues it.
//
// The thread makes no device calls. Such a call may block while another thread queues work on a stream whose queue is
// full, or while NCCL aborts, and both end only after this thread has ended the waits.
//
// Example
//   LinkWatch watch(world);
//   watch.add_link(link, ranks, [&] { link.end_waits(); });
//   watch.begin(link, "the output of stage 0, microbatch 3, from",
//               {.is_reached = [&] { return memory.is_raised(kReached, 7); },     // streams set both flags
//                .is_over = [&] { return memory.is_raised(kTakenOut, 7); }});
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "d9d/core/communicator/world.h"

namespace d9d {

// Thread-safe.
class LinkWatch {
 public:
  using Wait = std::uint64_t;
  // The ranks of a link that are late: the indices of those for which this one has words that they have not answered.
  struct Late {
    std::vector<std::int64_t> ranks;  // empty: none, or this rank has begun another exchange since the last call
    std::chrono::milliseconds timeout;
  };
  // The state of a wait. The thread calls both functions until the wait is over or its link is removed. They must not
  // call the device.
  struct Progress {
    std::function<bool()> is_reached = [] { return true; };
    std::function<bool()> is_over = [] { return false; };
  };

  explicit LinkWatch(std::shared_ptr<World> world);
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  // link: a key that identifies the link. ranks: its ranks, which are two if it has waits. The thread calls end_waits
  // at each check after a failure of `ranks`, and never after remove_link(). end_waits must not wait for anything; the
  // thread watches nothing else meanwhile. late: for links of any number of ranks whose waits are not begun one by one;
  // the thread calls it at each check, and if ranks are late at all checks during its timeout, it aborts the job. Must
  // not call the device.
  void add_link(const void* link, std::shared_ptr<Communicator> ranks, std::function<void()> end_waits,
                std::function<Late()> late = {});
  void remove_link(const void* link);  // also stops watching the link's waits

  // Begins to watch a wait. what: names what the rank waits for, such as "the output of stage 0, microbatch 3, from";
  // the report appends the number of the link's other rank. A wait of a link that was not added, or has been removed,
  // is not watched.
  Wait begin(const void* link, const std::string& what, Progress progress);
  void end(Wait wait);  // call it when a wait of the host is over
  // The timeout of the job now. Call it on the thread that sets it.
  [[nodiscard]] std::chrono::milliseconds timeout() const { return world_->timeout(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct UnderWay {
    Wait number;
    std::string text;
    std::chrono::milliseconds timeout;
    Progress progress;
    std::optional<Clock::time_point> since = {};  // when the thread first saw that is_reached() is true
  };
  struct Link {
    std::shared_ptr<Communicator> ranks;
    std::function<void()> end_waits;
    std::function<Late()> late;
    std::vector<UnderWay> waits;
    std::optional<Clock::time_point> late_since = {};
  };
  void look();
  void abort_if_late(Link& link);
  void abort_after(const std::optional<Clock::time_point>& since, std::chrono::milliseconds timeout,
                   const std::function<std::string()>& reason);
  void run();

  std::shared_ptr<World> world_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool must_stop_ = false;
  bool has_aborted_ = false;
  std::map<const void*, Link> links_;
  Wait next_ = 0;
  std::thread abort_;   // aborts the job; it may block on the device until thread_ ends the waits
  std::thread thread_;  // declared last: it uses the other members
};

}  // namespace d9d

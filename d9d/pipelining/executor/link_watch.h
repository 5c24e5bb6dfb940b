// Ends waits that nothing else would end: streams, and ranks that are threads, wait for words of memory without a
// limit. A thread looks twice a second. Where a group has failed it lets the waits of its link pass, so that the host
// reaches the next operation, which throws. Where a wait is longer than the job's timeout it aborts the job, with what
// the rank waits for. A wait of a stream begins when the stream has come to it, not when the host queues it.
//
// The thread calls nothing of the device. Such a call may wait while another thread queues work of a stream whose queue
// is full, or while NCCL aborts: both end only after the waits that this thread ends.
//
// Example
//   LinkWatch watch(world);
//   watch.add_link(link, ranks, [&] { link.end_waits(); });
//   watch.begin(link, "the output of stage 0, microbatch 3, from",
//               {.is_reached = [&] { return memory.is_raised(kReached, 7); },     // the stream raises both
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
  // Of a wait, asked by the thread until it is over or its link is removed. They must not call the device.
  struct Progress {
    std::function<bool()> is_reached = [] { return true; };
    std::function<bool()> is_over = [] { return false; };
  };

  explicit LinkWatch(std::shared_ptr<World> world);
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  // link: a key. end_waits: called from the thread, at each look after a failure, and never after remove_link(). It
  // must not wait.
  void add_link(const void* link, std::shared_ptr<Communicator> ranks, std::function<void()> end_waits);
  void remove_link(const void* link);  // and its waits

  // what: "the output of stage 0, microbatch 3, from"; the other of the link's two ranks follows in the text. A wait of
  // a link that was not added, or is removed, is not watched.
  Wait begin(const void* link, const std::string& what, Progress progress);
  void end(Wait wait);  // of the host, which is over

 private:
  using Clock = std::chrono::steady_clock;
  struct UnderWay {
    Wait number;
    std::string text;
    std::chrono::milliseconds timeout;
    Progress progress;
    std::optional<Clock::time_point> since = {};  // when it was seen to be reached
  };
  struct Link {
    std::shared_ptr<Communicator> ranks;
    std::function<void()> end_waits;
    std::vector<UnderWay> waits;
  };
  void look();
  void abort_if_too_long(const UnderWay& wait);
  void run();

  std::shared_ptr<World> world_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool must_stop_ = false;
  bool has_aborted_ = false;
  std::map<const void*, Link> links_;
  Wait next_ = 0;
  std::thread abort_;   // of the job: it may wait for the device, whose waits the other thread ends
  std::thread thread_;  // last: it uses the others
};

}  // namespace d9d

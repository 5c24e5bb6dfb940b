// Ends waits that nothing else would end: streams, and ranks that are threads, wait for words of memory without a
// limit. A thread looks twice a second. Where a group has failed it lets the waits of its link pass, so that the host
// reaches the next operation, which throws. Where a wait is longer than the job's timeout it aborts the job, with what
// the rank waits for. A wait of a stream begins when the stream has come to it, not when the host queues it.
//
// Example
//   LinkWatch watch(world);
//   watch.add_link(link, ranks, [&] { link.end_waits(); });
//   const auto here = StreamEvent::of_current_stream(device);
//   const LinkWatch::Wait wait = watch.begin("the output of stage 0, microbatch 3, from", *ranks, here);
//   ...                                               // queue the wait; on CPUs, wait
//   watch.end(wait, StreamEvent::of_current_stream(device));
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

#include "d9d/core/communicator/world.h"
#include "d9d/core/device/side_stream.h"

namespace d9d {

// Thread-safe.
class LinkWatch {
 public:
  using Wait = std::uint64_t;

  explicit LinkWatch(std::shared_ptr<World> world);
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  // link: a key. end_waits: called from the thread, at each look after a failure, and never after remove_link(). It
  // must not wait.
  void add_link(const void* link, std::shared_ptr<Communicator> ranks, std::function<void()> end_waits);
  void remove_link(const void* link);

  // what: "the output of stage 0, microbatch 3, from"; the other of the two `ranks` follows in the text. A wait is
  // under way from the point `reached` of a stream, or at once if the host waits, until `done` of end() has passed.
  [[nodiscard]] Wait begin(const std::string& what, const Communicator& ranks, StreamEvent reached = {});
  void end(Wait wait, const StreamEvent& done);

 private:
  using Clock = std::chrono::steady_clock;
  struct Link {
    std::shared_ptr<Communicator> ranks;
    std::function<void()> end_waits;
  };
  struct UnderWay {
    std::string text;
    std::chrono::milliseconds timeout;
    StreamEvent reached;                          // where the stream waits
    std::optional<Clock::time_point> since = {};  // when it was seen to be there
    std::optional<StreamEvent> done = {};
  };
  void look(std::unique_lock<std::mutex>& lock);
  void abort_if_too_long();
  void run();

  std::shared_ptr<World> world_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool must_stop_ = false;
  bool has_aborted_ = false;
  std::map<const void*, Link> links_;
  std::map<Wait, UnderWay> waits_;
  Wait next_ = 0;
  std::thread abort_;   // of the job: it may wait for the device, whose waits the other thread ends
  std::thread thread_;  // last: it uses the others
};

}  // namespace d9d

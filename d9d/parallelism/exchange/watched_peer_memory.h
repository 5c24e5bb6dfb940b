// The peer memory of an exchange whose streams wait for words of other ranks: opened at the first need, larger when
// that is needed, and given back while a job sleeps. Each rank (the writer) has words for each other (the reader), who
// waits for them and sets them back to 0. If the group fails, the words that this rank's streams wait for are set, so
// that no stream waits forever; a rank that does not answer within the job's timeout makes the group fail.
//
// Example
//   WatchedPeerMemory memory(ranks, watch, /*num_kinds=*/1);
//   if (memory.fits(num_bytes)) {
//     memory.begin();
//     memory.peers().raise(memory.word(/*writer=*/0, /*reader=*/1, /*kind=*/0), 1);  // on rank 0
//   }
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/core/peer_memory/peer_memory.h"

namespace d9d {

class WatchedPeerMemory {
 public:
  // watch: borrowed. num_kinds: of words of a writer and a reader, the same on all ranks.
  WatchedPeerMemory(std::shared_ptr<Communicator> ranks, LinkWatch& watch, std::int64_t num_kinds);
  // Waits for the last copies, but not for other ranks if the job has failed: the memory then stays mapped until the
  // process ends.
  ~WatchedPeerMemory();
  WatchedPeerMemory(const WatchedPeerMemory&) = delete;
  WatchedPeerMemory& operator=(const WatchedPeerMemory&) = delete;

  // Collective. Whether each rank has a block of so many bytes. Opens one, or a larger one, if necessary; the hosts
  // wait then, and words are 0.
  [[nodiscard]] bool fits(std::int64_t num_bytes);
  // Collective. Gives the memory back, until the next fits(). What was captured in a graph is invalid then.
  void close();
  [[nodiscard]] std::int64_t num_closings() const { return num_closings_; }  // also for larger memory
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }        // of this rank's block; 0: not open
  [[nodiscard]] const std::string& reason() const { return reason_; }        // why ranks cannot; empty if they can

  // Local, where an exchange begins: the others have the job's timeout to answer. Throws if the group has failed.
  void begin() const;
  [[nodiscard]] const PeerMemory& peers() const { return *memory_; }  // after fits()
  // For calls of peers().
  [[nodiscard]] std::int64_t word(std::int64_t writer, std::int64_t reader, std::int64_t kind) const;
  void set_last(StreamEvent last) const { last_ = std::move(last); }  // the last work with the memory
  [[nodiscard]] const StreamEvent& last() const { return last_; }

 private:
  void open(std::int64_t num_bytes);
  // Sets the awaited words until streams have passed all that is queued, or a time is over.
  void let_streams_pass(const std::function<bool()>& have_passed) const;
  [[nodiscard]] LinkWatch::Late late();  // on the thread of the watch

  std::shared_ptr<Communicator> ranks_;
  LinkWatch& watch_;
  const std::int64_t num_kinds_;
  std::shared_ptr<PeerMemory> memory_;  // null: not open
  std::string reason_;
  std::int64_t num_bytes_ = 0;
  std::int64_t num_closings_ = 0;
  mutable StreamEvent last_;
  mutable std::atomic<std::int64_t> num_begun_ = 0;
  mutable std::atomic<std::chrono::milliseconds> timeout_ = std::chrono::milliseconds(0);  // of the latest
  std::int64_t num_seen_ = 0;  // of those begun, by the thread of the watch
};

}  // namespace d9d

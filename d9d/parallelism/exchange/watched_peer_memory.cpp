#include "d9d/parallelism/exchange/watched_peer_memory.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace d9d {
namespace {

constexpr std::int64_t kWordBytes = 64;          // each word has a cache line to itself
constexpr std::uint32_t kEndOfWaits = 1U << 30;  // more than any number that is waited for
// How long let_streams_pass() goes on: streams set words back, and wait for the next.
constexpr std::chrono::milliseconds kPassing{400};
constexpr std::chrono::microseconds kBetweenLooks{50};

}  // namespace

WatchedPeerMemory::WatchedPeerMemory(std::shared_ptr<Communicator> ranks, LinkWatch& watch, std::int64_t num_words,
                                     std::vector<std::int64_t> awaited)
    : ranks_(std::move(ranks)), watch_(watch), num_words_(num_words), awaited_(std::move(awaited)) {}

WatchedPeerMemory::~WatchedPeerMemory() {
  if (memory_ == nullptr) return;
  try {
    if (ranks_->has_failed()) {
      let_streams_pass([this] { return last_.is_complete(); });
    } else {
      last_.synchronize();
      memory_->leave();
    }
  } catch (const std::exception&) {  // a CUDA error, after which no stream waits
  }
  watch_.remove_link(this);
}

void WatchedPeerMemory::let_streams_pass(const std::function<bool()>& have_passed) const {
  if (ranks_->device().is_cpu()) return;  // a waiting thread notices a failure itself
  const auto end = std::chrono::steady_clock::now() + kPassing;
  do {
    for (const std::int64_t index : awaited_) memory_->raise_at_once(word(index), kEndOfWaits);
    std::this_thread::sleep_for(kBetweenLooks);
  } while (!have_passed() && std::chrono::steady_clock::now() < end);
}

bool WatchedPeerMemory::fits(std::int64_t num_bytes) {
  if (reason_.empty() && num_bytes > num_bytes_) open(num_bytes);
  return reason_.empty();
}

// Stays watched until all ranks have closed: a rank may fail before, and this one's stream wait for its words. The
// current stream has waited for the work of each exchange.
void WatchedPeerMemory::close() {
  if (memory_ == nullptr) return;
  memory_->close();
  watch_.remove_link(this);
  memory_.reset();
  num_bytes_ = 0;
  ++num_closings_;
}

void WatchedPeerMemory::open(std::int64_t num_bytes) {
  close();
  PeerMemoryResult opened = open_peer_memory(ranks_, num_bytes, num_words_ * kWordBytes);
  memory_ = std::move(opened.memory);
  reason_ = std::move(opened.reason);
  if (memory_ == nullptr) return;
  num_bytes_ = num_bytes;
  // The thread of the watch cannot know when: it makes no device calls, and last_ belongs to other threads.
  watch_.add_link(this, ranks_, [this] { let_streams_pass([] { return false; }); });
}

std::int64_t WatchedPeerMemory::word(std::int64_t index) const { return index * kWordBytes; }

}  // namespace d9d

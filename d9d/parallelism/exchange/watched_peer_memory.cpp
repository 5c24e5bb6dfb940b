#include "d9d/parallelism/exchange/watched_peer_memory.h"

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

WatchedPeerMemory::WatchedPeerMemory(std::shared_ptr<Communicator> ranks, LinkWatch& watch, std::int64_t num_kinds)
    : ranks_(std::move(ranks)), watch_(watch), num_kinds_(num_kinds) {}

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
    for (std::int64_t writer = 0; writer < ranks_->size(); ++writer) {
      for (std::int64_t kind = 0; kind < num_kinds_; ++kind) {
        memory_->raise_at_once(word(writer, ranks_->rank(), kind), kEndOfWaits);
      }
    }
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
  PeerMemoryResult opened =
      open_peer_memory(ranks_, num_bytes, ranks_->size() * ranks_->size() * num_kinds_ * kWordBytes);
  memory_ = std::move(opened.memory);
  reason_ = std::move(opened.reason);
  if (memory_ == nullptr) return;
  num_bytes_ = num_bytes;
  // The thread of the watch cannot know when: it makes no device calls, and last_ belongs to other threads.
  watch_.add_link(
      this, ranks_, [this] { let_streams_pass([] { return false; }); }, [this] { return late(); });
}

void WatchedPeerMemory::begin() const {
  ranks_->throw_if_failed();
  timeout_ = watch_.timeout();
  ++num_begun_;
}

// A rank that has not come to an exchange has neither read what this one offers nor offered anything.
LinkWatch::Late WatchedPeerMemory::late() {
  LinkWatch::Late result{.ranks = {}, .timeout = timeout_};
  const std::int64_t num_begun = num_begun_, rank = ranks_->rank();
  if (std::exchange(num_seen_, num_begun) != num_begun) return result;
  for (std::int64_t other = 0; other < ranks_->size(); ++other) {
    for (std::int64_t kind = 0; kind < num_kinds_; ++kind) {
      if (!memory_->is_raised(word(rank, other, kind), 1) || memory_->is_raised(word(other, rank, kind), 1)) continue;
      result.ranks.push_back(other);
      break;
    }
  }
  return result;
}

std::int64_t WatchedPeerMemory::word(std::int64_t writer, std::int64_t reader, std::int64_t kind) const {
  return ((writer * ranks_->size() + reader) * num_kinds_ + kind) * kWordBytes;
}

}  // namespace d9d

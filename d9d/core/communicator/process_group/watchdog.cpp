#include "d9d/core/communicator/process_group/watchdog.h"

#include <charconv>
#include <numeric>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "d9d/base/check.h"
#include "d9d/base/log.h"

namespace d9d {
namespace {

using std::chrono::milliseconds;

// A message has up to three lines: the event, the key of the group, and the reason.
constexpr const char* kStop = "stop";
constexpr const char* kAbort = "abort";
constexpr const char* kWhere = "where";
constexpr const char* kAnswer = "answer";
constexpr const char* kWholeJob = "*";
constexpr const char* kNoAnswer = "no answer";
constexpr const char* kWithoutAnswer = "without_answer";  // key of the answer found by the rank that asked all

// Time between two polls of the store.
constexpr milliseconds kPeriod{500};
// How long a rank that lost a connection waits for a message with the reason, which was sent before the connection
// closed.
constexpr milliseconds kReasonDelay{300};
// How long a rank may take to report its position.
constexpr milliseconds kAnswerDelay{1000};
constexpr milliseconds kPoll{5};
// How long a rank waits for the diagnosis by the rank that asks the others.
constexpr milliseconds kDiagnosisDelay{3000};

std::string take_line(std::string& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string line = text.substr(0, end);
  text.erase(0, end + 1);
  return line;
}

std::string answer_key(const GroupState& group, std::int64_t rank) { return cat("where/", group.key(), "/", rank); }

bool is_timeout(const std::string& cause) { return cause.find("imed out") != std::string::npos; }

std::string alive_key(std::int64_t rank) { return cat("alive/", rank); }

void append(std::string& list, const char* separator, const std::string& entry) {
  list += cat(list.empty() ? "" : separator, entry);
}

}  // namespace

Watchdog::Watchdog(c10d::Store& store, std::int64_t rank, std::int64_t world_size)
    : rank_(rank), world_size_(world_size), mailbox_(store, rank), listener_([this] { listen(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    must_stop_ = true;
    wake_up_.notify_all();
  }
  listener_.join();
}

void Watchdog::add(const std::shared_ptr<GroupState>& group) {
  std::optional<GroupFailure> failure;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& known) { return known.expired(); });
    groups_.push_back(group);
    failure = job_failure_;
  }
  if (failure) group->fail(*failure);
}

std::vector<std::shared_ptr<GroupState>> Watchdog::groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<GroupState>> result;
  for (const auto& known : groups_) {
    if (auto group = known.lock()) result.push_back(std::move(group));
  }
  return result;
}

std::optional<GroupFailure> Watchdog::job_failure() const {
  const std::lock_guard lock(mutex_);
  return job_failure_;
}

std::optional<std::string> Watchdog::own_reason() const {
  const std::lock_guard lock(mutex_);
  return job_failure_ && !job_failure_->is_own ? std::nullopt : own_reason_;
}

void Watchdog::keep_own_reason(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!own_reason_) own_reason_ = reason;
}

void Watchdog::fail_all(const GroupFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (job_failure_) return;
    job_failure_ = failure;
  }
  // The failure is recorded in all groups before the first is interrupted: on CUDA an interrupt waits for the device,
  // which may wait for a flag that another part of the program (LinkWatch) sets when its own group has failed.
  std::vector<std::shared_ptr<GroupState>> failed = groups();
  std::erase_if(failed, [&](const auto& group) { return !group->record(failure); });
  for (const auto& group : failed) group->interrupt();
}

// Messages are sent before connections close, so that peers know the reason when their operations fail.
void Watchdog::abort_job(const std::string& reason) {
  if (job_failure()) return;
  keep_own_reason(reason);
  try {
    for (std::int64_t rank = 0; rank < world_size_; ++rank) {
      if (rank != rank_) mailbox_.send(rank, cat(kAbort, "\n", kWholeJob, "\n", reason));
    }
  } catch (const std::exception&) {  // without a store, peers only see closed connections
  }
  fail_all({.reason = reason, .is_own = true});
}

void Watchdog::abort_job_after_wait(const std::string& reason) {
  if (job_failure()) return;
  std::string silent;
  try {
    silent = ranks_without_answer();
  } catch (const std::exception&) {  // without a store nobody can be asked
  }
  abort_job(reason + silent);
}

void Watchdog::abort_group(GroupState& group, const std::string& reason) {
  keep_own_reason(reason);
  try {
    for (const std::int64_t rank : group.group().ranks) {
      if (rank != rank_) mailbox_.send(rank, cat(kAbort, "\n", group.key(), "\n", reason));
    }
  } catch (const std::exception&) {
  }
  group.fail({.reason = reason, .is_own = true});
}

void Watchdog::listen() {
  try {
    while (sleep()) {
      while (const std::optional<std::string> message = mailbox_.receive()) {
        if (!obey(*message)) return;
      }
    }
  } catch (const std::exception&) {
    fail_all({.reason = "the store of the job is gone: the process that hosts it has ended or is out of reach"});
  }
}

bool Watchdog::sleep() {
  std::unique_lock lock(mutex_);
  wake_up_.wait_for(lock, kPeriod, [&] { return must_look_ || must_stop_; });
  must_look_ = false;
  return !must_stop_;
}

void Watchdog::look_now() {
  const std::lock_guard lock(mutex_);
  must_look_ = true;
  wake_up_.notify_all();
}

bool Watchdog::obey(const std::string& message) {
  std::string rest = message;
  const std::string what = take_line(rest);
  if (what == kStop) return false;
  if (what == kAnswer) {
    mailbox_.leave(alive_key(rank_), kAnswer);
    return true;
  }
  const std::string key = take_line(rest);
  if (key == kWholeJob) {
    fail_all({.reason = rest});
    return true;
  }
  for (const auto& group : groups()) {
    if (group->key() != key) continue;
    if (what == kAbort) group->fail({.reason = rest});
    if (what == kWhere) {
      const Position position = group->position();
      mailbox_.leave(answer_key(*group, rank_), cat(position.number, "\n", position.operation));
    }
  }
  return true;
}

GroupFailure Watchdog::explain(GroupState& group, const FailedOperation& failed) {
  look_now();
  if (const auto known = group.failure(is_timeout(failed.cause) ? milliseconds{} : kReasonDelay)) return *known;
  std::string reason;
  try {
    if (!mailbox_.is_first(cat("failed/", group.key()))) {
      const auto deadline = std::chrono::steady_clock::now() + kDiagnosisDelay;
      while (std::chrono::steady_clock::now() < deadline) {
        look_now();
        if (const auto told = group.failure(kPeriod / 10)) return *told;
      }
    }
    reason = diagnose(group, failed);
    // A rank for which this group's ranks wait may itself wait in another group, so all ranks are asked.
    if (is_timeout(failed.cause) && reason.find(kNoAnswer) == std::string::npos) reason += ranks_without_answer();
  } catch (const c10::Error&) {  // without a store the other ranks cannot be asked
    reason = cat("rank ", rank_, " ", failed.where, " of group '", group.group().name, "' failed: ", failed.cause);
  }
  abort_group(group, reason);
  return group.failure().value();
}

void Watchdog::tell_who_is_missing(const GroupState& group, const FailedOperation& operation, milliseconds waited) {
  try {
    if (!mailbox_.is_first(cat("waits/", group.key(), "/", group.position().number))) return;
    FailedOperation late = operation;
    late.cause = "timed out";
    late.timeout = waited;
    write_line_to_stderr(cat("[core::communicator] ", diagnose(group, late)));
  } catch (const c10::Error&) {  // without a store the other ranks cannot be asked
  }
}

std::vector<std::int64_t> Watchdog::ask(const std::vector<std::int64_t>& ranks, const std::string& message,
                                        const std::function<bool(std::int64_t)>& has_answered) {
  std::vector<std::int64_t> silent;
  for (const std::int64_t rank : ranks) {
    if (rank == rank_) continue;
    mailbox_.send(rank, message);
    silent.push_back(rank);
  }
  const auto deadline = std::chrono::steady_clock::now() + kAnswerDelay;
  while (!silent.empty() && std::chrono::steady_clock::now() < deadline) {
    std::erase_if(silent, has_answered);
    std::this_thread::sleep_for(kPoll);
  }
  return silent;
}

// The ranks are asked once per job: later callers read the answer that the first one found.
std::string Watchdog::ranks_without_answer() {
  if (!mailbox_.is_first(cat("asks/", kWithoutAnswer))) {
    const auto deadline = std::chrono::steady_clock::now() + kAnswerDelay;
    while (std::chrono::steady_clock::now() < deadline) {
      if (const auto found = mailbox_.find(kWithoutAnswer)) return *found;
      std::this_thread::sleep_for(kPoll);
    }
    return "";
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(world_size_));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::int64_t> silent =
      ask(all, kAnswer, [&](std::int64_t rank) { return mailbox_.find(alive_key(rank)).has_value(); });
  std::string names;
  for (const std::int64_t rank : silent) append(names, ", ", cat("rank ", rank));
  const std::string found =
      silent.empty() ? "" : cat(" There is ", kNoAnswer, " from ", names, ": stopped or out of reach.");
  mailbox_.leave(kWithoutAnswer, found);
  return found;
}

std::map<std::int64_t, Position> Watchdog::ask_positions(const GroupState& group) {
  std::map<std::int64_t, Position> positions = {{rank_, group.position()}};
  (void)ask(group.group().ranks, cat(kWhere, "\n", group.key(), "\n"), [&](std::int64_t rank) {
    std::optional<std::string> answer = mailbox_.find(answer_key(group, rank));
    if (!answer) return false;
    const std::string number = take_line(*answer);
    std::from_chars(number.data(), number.data() + number.size(), positions[rank].number);
    positions[rank].operation = *answer;
    return true;
  });
  return positions;
}

std::string Watchdog::diagnose(const GroupState& group, const FailedOperation& failed) {
  const std::map<std::int64_t, Position> positions = ask_positions(group);
  const Position mine = positions.at(rank_);
  std::string missing;
  std::string silent;
  std::string different;
  for (const std::int64_t rank : group.group().ranks) {
    const auto found = positions.find(rank);
    if (found == positions.end()) {
      append(silent, ", ", cat("rank ", rank));
      append(missing, "; ", cat("rank ", rank, " (", kNoAnswer, ")"));
    } else if (found->second.number < mine.number) {
      append(missing, "; ", cat("rank ", rank, " ", to_string(found->second)));
    } else if (found->second.number == mine.number && found->second.operation != mine.operation && different.empty()) {
      different = cat("rank ", rank, " ", to_string(found->second));
    }
  }
  const std::string& name = group.group().name;
  if (missing.empty() && !different.empty() && !failed.awaited) {
    return cat("expected the same operation on all ranks of group '", name, "', got rank ", rank_, " ", to_string(mine),
               ", ", different, ". All ranks must call the same collectives in the same order.");
  }
  if (!is_timeout(failed.cause)) {
    const std::string dead = silent.empty() ? "" : cat("; ", kNoAnswer, " from ", silent, ": ended or out of reach");
    return cat("rank ", rank_, " ", failed.where, " of group '", name, "' failed: ", failed.cause, dead, ".");
  }
  const double seconds = static_cast<double>(failed.timeout.count()) / 1e3;
  if (failed.awaited) {
    return cat("rank ", rank_, " waited ", seconds, " s in group '", name, "' for ", *failed.awaited,
               silent.empty() ? "" : cat("; ", kNoAnswer, " from ", silent),
               ". Both sides must name the same shapes and dtypes in the same order.");
  }
  return cat("rank ", rank_, " ", failed.where, " waited ", seconds, " s in group '", name,
             "' for: ", missing.empty() ? "messages of ranks that began it too" : missing, ".");
}

void announce_end_of_store(c10d::Store& store, std::int64_t world_size) {
  Mailbox mailbox(store, 0);
  for (std::int64_t rank = 0; rank < world_size; ++rank) mailbox.send(rank, kStop);
}

}  // namespace d9d

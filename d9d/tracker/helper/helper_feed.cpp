#include "d9d/tracker/helper/helper_feed.h"

#include <algorithm>
#include <array>
#include <exception>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/tracker/value_json.h"

namespace d9d {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Lines that a process may have without an answer; more wait in the queue.
constexpr std::size_t kMaxUnsure = 8192;
constexpr std::chrono::seconds kForEnding{5};  // of a process that has closed its run

std::string line_of(const TrackerPoint& point, const TrackerValue& value) {
  return Json::array({point.step, point.name, point.context, value_json(value)})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string close_line(RunOutcome outcome) {
  constexpr std::array<const char*, 3> kOutcomes = {"completed", "failed", "stopped"};
  return Json{{"close", kOutcomes.at(static_cast<std::size_t>(outcome))}}.dump();
}

std::string text_of(const Json& json) { return json.is_string() ? json.get<std::string>() : json.dump(); }

}  // namespace

HelperFeed::HelperFeed(Parts parts) : parts_(std::move(parts)), heard_at_(Clock::now()), thread_([this] { run(); }) {}

HelperFeed::~HelperFeed() { close(RunOutcome::kFailed); }

void HelperFeed::add(const TrackerPoint& point, const TrackerValue& value) {
  {
    const std::scoped_lock lock(mutex_);
    if (queue_.size() < parts_.limits.max_kept) {
      queue_.emplace_back(point, value);
      return;
    }
    if (num_dropped_++ > 0) return;
  }
  parts_.log.warning("values of the tracker '", parts_.name, "' are lost from step ", point.step,
                     " on: ", parts_.limits.max_kept, " wait for its process or the disk of its spool");
}

void HelperFeed::hurry() {
  {
    const std::scoped_lock lock(mutex_);
    hurries_ = true;
  }
  wake_.notify_one();
}

void HelperFeed::close(RunOutcome outcome) {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    outcome_ = outcome;
  }
  wake_.notify_one();
  thread_.join();
}

HelperFeed::Values HelperFeed::take() {
  std::unique_lock lock(mutex_);
  // While the process has values to answer, hear() waits.
  const auto wait = unsure_.empty() ? parts_.limits.tick : std::chrono::milliseconds(0);
  wake_.wait_for(lock, wait, [&] { return hurries_ || outcome_.has_value(); });
  may_restart_ |= std::exchange(hurries_, false);
  if (!is_feeding_) return std::exchange(queue_, {});
  const auto num_taken = static_cast<std::ptrdiff_t>(std::min(queue_.size(), kMaxUnsure - unsure_.size()));
  Values taken(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.begin() + num_taken));
  queue_.erase(queue_.begin(), queue_.begin() + num_taken);
  return taken;
}

void HelperFeed::run() {
  std::optional<RunOutcome> outcome;
  while (!outcome) {
    for (const auto& [point, value] : take()) pass_on(line_of(point, value));
    hear();
    bool is_behind = false;
    {
      const std::scoped_lock lock(mutex_);
      is_behind = queue_.size() > parts_.limits.max_queued;
      may_restart_ |= std::exchange(hurries_, false);
      if (queue_.empty()) outcome = outcome_;
    }
    const bool has_caught_up = !is_feeding_ && !is_lost_ && unsure_.empty();
    if ((is_lost_ || has_caught_up) && std::exchange(may_restart_, false)) is_lost_ ? restart() : replay();
    if (is_feeding_ && is_behind) stop_feeding("takes values more slowly than they come");
  }
  finish(*outcome);
}

void HelperFeed::pass_on(std::string line) {
  if (!is_feeding_) return put_aside(line);
  if (unsure_.empty()) heard_at_ = Clock::now();
  process().send(line);
  unsure_.push_back(std::move(line));
}

void HelperFeed::hear() {
  if (is_lost_) return;
  while (const auto answer = process().receive(unsure_.empty() ? std::chrono::milliseconds(0) : parts_.limits.tick)) {
    understand(*answer);
  }
  if (process().has_ended() && !is_closed_ && !is_lost_) {
    lose_process(cat("has ended with ", process().wait_for_end(kForEnding), failure_.empty() ? "" : ": ", failure_));
  } else if (is_feeding_ && !unsure_.empty() && Clock::now() - heard_at_ > parts_.limits.without_answer) {
    stop_feeding("does not answer");
  }
}

void HelperFeed::understand(const std::string& answer) {
  const Json json = Json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  heard_at_ = Clock::now();
  if (json.contains("done") && json["done"].is_number_integer()) take_as_done(json["done"].get<std::int64_t>());
  if (json.contains("refused") && !std::exchange(has_refused_, true)) {
    parts_.log.warning("the tracker '", parts_.name, "' leaves out a value: ", text_of(json["refused"]));
  }
  if (json.contains("failed")) failure_ = text_of(json["failed"]);
  if (json.contains("closed")) is_closed_ = true;
}

void HelperFeed::take_as_done(std::int64_t num_done) {
  if (num_done - num_answered_ > std::ssize(unsure_)) {
    (void)process().wait_for_end(std::chrono::milliseconds(0));
    return lose_process("answers more values than it has got");
  }
  for (; num_answered_ < num_done; ++num_answered_) unsure_.pop_front();
}

void HelperFeed::stop_feeding(const std::string& reason) {
  is_feeding_ = false;
  if (std::exchange(has_warned_, true)) return;
  parts_.log.warning("the helper process of the tracker '", parts_.name, "' ", reason,
                     ". Training goes on; values go to '", parts_.spool.path().string(),
                     "', which the next run with this tracker adds to this one");
}

void HelperFeed::lose_process(const std::string& reason) {
  is_lost_ = true;
  stop_feeding(reason);
  for (const std::string& line : std::exchange(unsure_, {})) put_aside(line);
}

void HelperFeed::restart() {
  parts_.spool.close();
  try {
    parts_.process = parts_.restart();
  } catch (const std::exception&) {
    return;  // values still go to the spool
  }
  parts_.log.info("the tracker '", parts_.name, "' goes on in another process");
  is_lost_ = false;
  is_feeding_ = true;
  num_answered_ = 0;
  failure_.clear();
}

void HelperFeed::replay() {
  parts_.spool.close();
  process().send(Json{{"replay", parts_.spool.path().string()}}.dump());
  is_feeding_ = true;
}

void HelperFeed::put_aside(std::string_view line) {
  if (!can_put_aside_) return;
  try {
    parts_.spool.add(line);
  } catch (const std::exception& error) {
    can_put_aside_ = false;
    parts_.log.warning("values of the tracker '", parts_.name, "' are lost: ", error.what());
  }
}

void HelperFeed::finish(RunOutcome outcome) {
  const auto deadline = Clock::now() + parts_.limits.for_closing;
  const auto is_answering = [&] { return Clock::now() - heard_at_ <= parts_.limits.without_answer; };
  while (!is_lost_ && !unsure_.empty() && is_answering() && Clock::now() < deadline) hear();
  if (!is_lost_ && unsure_.empty()) {
    if (!is_feeding_ && may_restart_) replay();
    process().send(close_line(outcome));
    process().finish_input();
    while (!is_closed_ && !is_lost_ && Clock::now() < deadline) {
      if (const auto answer = process().receive(parts_.limits.tick)) understand(*answer);
      if (process().has_ended()) hear();
    }
  }
  if (!is_closed_ && !is_lost_) {
    (void)process().wait_for_end(std::chrono::milliseconds(0));
    lose_process("does not answer");
  }
  if (!is_closed_ || parts_.spool.is_open()) put_aside(close_line(outcome));
  parts_.spool.close();
  (void)process().wait_for_end(kForEnding);
  if (num_dropped_ > 0) parts_.log.warning("the tracker '", parts_.name, "' has lost ", num_dropped_, " values");
}

}  // namespace d9d

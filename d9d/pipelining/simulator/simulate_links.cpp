#include "d9d/pipelining/simulator/simulate_links.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/pipelining/simulator/transfer_times.h"

namespace d9d::detail {
namespace {

// The messages of one directed link, in the order in which they are sent.
class Inbox {
 public:
  Inbox(const LinkCosts& costs, std::optional<std::int64_t> num_slots) : costs_(costs), num_slots_(num_slots) {}

  void send(const MessageSpan& message) {
    messages_.push_back(message);
    start_messages();
  }

  // Returns the oldest message that has not been received; null while its arrival is unknown.
  [[nodiscard]] const MessageSpan* oldest() const {
    return num_received_ < num_started_ ? &messages_[num_received_] : nullptr;
  }

  void receive(double time) {
    messages_[num_received_++].received = time;
    start_messages();
  }

  [[nodiscard]] const std::vector<MessageSpan>& messages() const { return messages_; }

 private:
  // Starts messages as long as the time at which their receive buffer becomes free is known.
  void start_messages() {
    for (; num_started_ < messages_.size(); ++num_started_) {
      MessageSpan& message = messages_[num_started_];
      message.start = std::max(message.ready, free_at_);
      if (num_slots_ && std::cmp_greater_equal(num_started_, *num_slots_)) {
        const double slot_free = messages_[num_started_ - static_cast<std::size_t>(*num_slots_)].received;
        if (slot_free == kUnknownTime) return;
        message.start = std::max(message.start, slot_free);
      }
      free_at_ = message.start + costs_.time;
      message.arrival = free_at_ + costs_.latency;
    }
  }

  LinkCosts costs_;
  std::optional<std::int64_t> num_slots_;
  std::vector<MessageSpan> messages_;
  std::size_t num_started_ = 0;
  std::size_t num_received_ = 0;
  double free_at_ = 0;
};

// Advances each rank as long as the times that it needs are known. The result does not depend on the order of ranks.
class LinkSimulator {
 public:
  LinkSimulator(const PipelineProgram& program, const SimulationOptions& options)
      : program_(program),
        options_(options),
        positions_(program.ranks.size()),
        now_(program.ranks.size()),
        spans_(program.ranks.size()),
        made_(program),
        received_(program) {}

  Simulation run() {
    for (bool has_progress = true; has_progress;) {
      has_progress = false;
      for (std::size_t rank = 0; rank < positions_.size(); ++rank) {
        while (positions_[rank] < program_.ranks[rank].size() && advance(rank)) has_progress = true;
      }
    }
    Simulation result;
    for (std::size_t rank = 0; rank < positions_.size(); ++rank) {
      check_ended(rank);
      result.computations.insert(result.computations.end(), spans_[rank].begin(), spans_[rank].end());
    }
    for (const auto& [link, inbox] : inboxes_) {
      result.messages.insert(result.messages.end(), inbox.messages().begin(), inbox.messages().end());
    }
    return result;
  }

 private:
  void check_ended(std::size_t rank) const {
    const auto& actions = program_.ranks[rank];
    const std::size_t position = positions_[rank];
    D9D_CHECK(position == actions.size(), ConfigError, "[pipelining::simulate] rank ", rank,
              " waits for ever at action ", position, ", ", to_text(actions[position]),
              ". Correct the program; validate() says what is wrong.");
  }

  // Runs the next action of the rank. Returns false if a time that the action needs is not known yet.
  bool advance(std::size_t rank) {
    const auto& actions = program_.ranks[rank];
    const std::size_t first = positions_[rank];
    if (const auto* message = std::get_if<MessageAction>(&actions[first]); message != nullptr && is_send(*message)) {
      send(transfer_of(*message));
      ++positions_[rank];
      return true;
    }
    if (!is_receive(actions[first])) return compute(rank, compute_parts(actions[first]));
    std::size_t next = first;
    while (next < actions.size() && is_receive(actions[next])) ++next;
    return receive(rank, next < actions.size() && holds<ComposedAction>(actions[next]));
  }

  static bool is_receive(const Action& action) {
    const auto* message = std::get_if<MessageAction>(&action);
    return message != nullptr && !is_send(*message);
  }

  Inbox& inbox_of(const DirectedLink& link) {
    return inboxes_.try_emplace(link, costs_of(options_.costs, link), options_.num_inbox_slots).first->second;
  }

  void send(const Transfer& transfer) {
    const auto link = *link_of(transfer, program_.stages);
    inbox_of(link).send({.transfer = transfer, .link = link, .ready = made_[transfer], .received = kUnknownTime});
  }

  // is_for_part: the message delays only the part of a composed action that uses it, not the rank.
  bool receive(std::size_t rank, bool is_for_part) {
    const Transfer transfer = transfer_of(std::get<MessageAction>(program_.ranks[rank][positions_[rank]]));
    const auto link = *link_of(transfer, program_.stages);
    const MessageSpan* message = inbox_of(link).oldest();
    if (message == nullptr) return false;
    D9D_CHECK(message->transfer == transfer, ConfigError, "[pipelining::simulate] rank ", rank, " is at ",
              to_text(receive_of(transfer)), " where the next message of its link is ",
              to_text(send_of(message->transfer)), " of rank ", link.from,
              ". Receive the messages of a link in the order in which they are sent.");
    const double time = std::max(now_[rank], message->arrival);
    if (!is_for_part) now_[rank] = time;
    received_[transfer] = time;
    inbox_of(link).receive(time);
    ++positions_[rank];
    return true;
  }

  // Returns the time when the input of `part` is available, or kUnknownTime while it is not known.
  double input_time(const ComputeAction& part) {
    const auto input = input_of(part, program_.stages.num_stages());
    if (!input) return 0;
    return link_of(*input, program_.stages) ? received_[*input] : made_[*input];
  }

  bool compute(std::size_t rank, std::span<const ComputeAction> parts) {
    const auto is_missing = [&](const ComputeAction& part) { return input_time(part) == kUnknownTime; };
    if (std::ranges::any_of(parts, is_missing)) return false;
    double free_at = now_[rank];
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) free_at -= overlap_of(options_.costs, parts[i - 1], parts[i]);
      const double start = std::max(free_at, input_time(parts[i]));
      free_at = start + duration_of(options_.costs, parts[i]);
      add_span({.action = parts[i],
                .rank = static_cast<std::int64_t>(rank),
                .start = start,
                .end = free_at,
                .is_composed = parts.size() > 1});
    }
    ++positions_[rank];
    return true;
  }

  void add_span(const ComputeSpan& span) {
    const auto rank = static_cast<std::size_t>(span.rank);
    now_[rank] = std::max(now_[rank], span.end);
    if (const auto output = output_of(span.action, program_.stages.num_stages())) made_[*output] = span.end;
    spans_[rank].push_back(span);
  }

  const PipelineProgram& program_;
  const SimulationOptions& options_;
  std::vector<std::size_t> positions_;  // index of each rank's next action
  std::vector<double> now_;             // the time until which each rank is busy
  std::vector<std::vector<ComputeSpan>> spans_;
  std::map<DirectedLink, Inbox> inboxes_;
  TransferTimes made_;      // time when a transfer is computed on the source's rank
  TransferTimes received_;  // time when a transfer is received on the target's rank
};

}  // namespace

Simulation simulate_links(const PipelineProgram& program, const SimulationOptions& options) {
  return LinkSimulator(program, options).run();
}

}  // namespace d9d::detail

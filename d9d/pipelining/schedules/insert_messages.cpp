#include "d9d/pipelining/schedules/insert_messages.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <queue>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d {
namespace {

struct Message {
  Transfer transfer;
  double arrival;
};

// The state of a directed link while programs are built.
struct OpenLink {
  double free_at = 0;
  std::deque<Message> unreceived;  // messages in sending order
};

// Runs the computations in simulated time. Actions of all ranks are appended to their programs in one common order of
// time: each receive after its send, and each send after the receive that frees its buffer. So when the programs run
// with any other times, ranks never wait in a circle.
class MessagePlacer {
 public:
  MessagePlacer(const PipelineProgram& computations, const MessagePlacement& placement)
      : computations_(computations), placement_(placement), result_(computations), ranks_(computations.ranks.size()) {
    for (auto& rank : result_.ranks) rank.clear();
  }

  PipelineProgram place() {
    for (double now = 0; now < kNever; now = std::min(next_time(ends_), next_time(arrivals_))) {
      for (; next_time(ends_) == now; ends_.pop()) end_action(ends_.top().second, now);
      while (next_time(arrivals_) == now) arrivals_.pop();
      while (send_all(now) || make_room(now) || start_all(now)) {
      }
    }
    check_completed();
    return std::move(result_);
  }

 private:
  struct Rank {
    std::size_t position = 0;  // index of the rank's next computation
    bool is_busy = false;
    std::deque<Transfer> unsent;         // outputs in sending order; the rank continues when all are sent
    std::map<Transfer, double> present;  // computed or received by this rank, with times of availability
  };
  using Event = std::pair<double, std::size_t>;  // time, rank
  using Events = std::priority_queue<Event, std::vector<Event>, std::greater<>>;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  static double next_time(const Events& events) { return events.empty() ? kNever : events.top().first; }
  [[nodiscard]] const Action& next_action(std::size_t rank) const {
    return computations_.ranks[rank][ranks_[rank].position];
  }

  // send_all(), start_all() and make_room() return whether they appended anything to a program.
  bool send_all(double now) {
    bool has_sent = false;
    for (auto& rank : ranks_) {
      for (; !rank.unsent.empty() && has_room(rank.unsent.front()); rank.unsent.pop_front()) {
        send(rank.unsent.front(), now);
        has_sent = true;
      }
    }
    return has_sent;
  }

  bool start_all(double now) {
    bool has_started = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const bool is_done = ranks_[rank].position == computations_.ranks[rank].size();
      if (is_done || ranks_[rank].is_busy || !ranks_[rank].unsent.empty() || !has_inputs(rank, now)) continue;
      start(rank, now);
      has_started = true;
    }
    return has_started;
  }

  // If a send waits for a free receive buffer, the receiver is not computing, and the oldest message of the link has
  // been delivered, appends its receive to the receiver's program.
  bool make_room(double now) {
    for (const auto& sender : ranks_) {
      if (sender.unsent.empty()) continue;
      const auto link = *link_of(sender.unsent.front(), computations_.stages);
      if (ranks_[static_cast<std::size_t>(link.to)].is_busy || links_[link].unreceived.front().arrival > now) continue;
      receive_oldest(link);
      return true;
    }
    return false;
  }

  [[nodiscard]] bool has_inputs(std::size_t rank, double now) {
    const auto is_there = [&](const ComputeAction& part) {
      const auto input = input_of(part, computations_.stages.num_stages());
      if (!input) return true;
      const auto present = ranks_[rank].present.find(*input);
      if (present != ranks_[rank].present.end()) return present->second <= now;
      const auto link = link_of(*input, computations_.stages);
      if (!link) return false;
      const auto& waiting = links_[*link].unreceived;
      const auto found = std::ranges::find(waiting, *input, &Message::transfer);
      return found != waiting.end() && found->arrival <= now;
    };
    return std::ranges::all_of(compute_parts(next_action(rank)), is_there);
  }

  void start(std::size_t rank, double now) {
    const auto parts = compute_parts(next_action(rank));
    for (const auto& part : parts) {
      const auto input = input_of(part, computations_.stages.num_stages());
      const auto link = input ? link_of(*input, computations_.stages) : std::nullopt;
      while (link && !ranks_[rank].present.contains(*input)) receive_oldest(*link);
    }
    result_.ranks[rank].push_back(next_action(rank));
    double end = now;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      end += duration_of(placement_.costs, parts[i]);
      if (i > 0) end -= overlap_of(placement_.costs, parts[i - 1], parts[i]);
    }
    ranks_[rank].is_busy = true;
    ends_.emplace(end, rank);
  }

  void end_action(std::size_t rank, double now) {
    for (const auto& part : compute_parts(next_action(rank))) {
      const auto output = output_of(part, computations_.stages.num_stages());
      if (!output) continue;
      const bool is_local = !link_of(*output, computations_.stages);
      is_local ? void(ranks_[rank].present.emplace(*output, now)) : ranks_[rank].unsent.push_back(*output);
    }
    ++ranks_[rank].position;
    ranks_[rank].is_busy = false;
  }

  [[nodiscard]] bool has_room(const Transfer& transfer) {
    const auto num_slots = placement_.num_inbox_slots;
    const auto& waiting = links_[*link_of(transfer, computations_.stages)].unreceived;
    return !num_slots || *num_slots == 0 || std::ssize(waiting) < *num_slots;
  }

  void send(const Transfer& transfer, double now) {
    const auto link = *link_of(transfer, computations_.stages);
    OpenLink& open = links_[link];
    const LinkCosts& costs = costs_of(placement_.costs, link);
    result_.ranks[static_cast<std::size_t>(link.from)].emplace_back(send_of(transfer));
    open.free_at = std::max(now, open.free_at) + costs.time;
    open.unreceived.push_back({.transfer = transfer, .arrival = open.free_at + costs.latency});
    arrivals_.emplace(open.unreceived.back().arrival, static_cast<std::size_t>(link.to));
    if (placement_.num_inbox_slots == 0) receive_oldest(link);
  }

  void receive_oldest(const DirectedLink& link) {
    const auto to = static_cast<std::size_t>(link.to);
    const Message message = links_[link].unreceived.front();
    links_[link].unreceived.pop_front();
    result_.ranks[to].emplace_back(receive_of(message.transfer));
    ranks_[to].present.emplace(message.transfer, message.arrival);
  }

  void check_completed() const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      D9D_CHECK(ranks_[rank].position == computations_.ranks[rank].size(), ConfigError, "[pipelining::messages] rank ",
                rank, " waits at ", to_text(next_action(rank)),
                " for an input that no rank can compute before. Correct the order of the schedule.");
    }
  }

  const PipelineProgram& computations_;
  const MessagePlacement& placement_;
  PipelineProgram result_;
  std::vector<Rank> ranks_;
  std::map<DirectedLink, OpenLink> links_;
  Events ends_;
  Events arrivals_;
};

}  // namespace

PipelineProgram insert_messages(const PipelineProgram& computations, const MessagePlacement& placement) {
  check_costs(placement.costs, computations.stages.num_stages());
  D9D_CHECK(
      !computations.has_messages(), ConfigError,
      "[pipelining::messages] expected a program of computations, got one with messages. Take compute_only() of it.");
  return MessagePlacer(computations, placement).place();
}

}  // namespace d9d

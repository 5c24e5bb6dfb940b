#include "d9d/pipelining/simulator/simulate_one_channel.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/pipelining/simulator/transfer_times.h"

namespace d9d::detail {
namespace {

// A message that waits for its turn in the channel of one of its ranks.
struct PostedMessage {
  Transfer transfer;
  bool is_send;
  double posted;  // when everything before it in the program has been computed
};

struct ChannelRank {
  std::size_t position = 0;
  double now = 0;
  std::deque<PostedMessage> channel = {};
  double channel_free_at = 0;
};

class OneChannelSimulator {
 public:
  OneChannelSimulator(const PipelineProgram& program, const SimulationOptions& options)
      : program_(program),
        options_(options),
        ranks_(program.ranks.size()),
        spans_(program.ranks.size()),
        there_(program) {}

  Simulation run() {
    for (bool has_progress = true; has_progress;) {
      has_progress = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (ranks_[rank].position < program_.ranks[rank].size() && advance(rank)) has_progress = true;
        while (exchange(rank)) has_progress = true;
      }
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const bool is_done = ranks_[rank].position == program_.ranks[rank].size() && ranks_[rank].channel.empty();
      D9D_CHECK(is_done, ConfigError, "[pipelining::simulate] rank ", rank,
                " waits for ever in the channel of all its messages. ",
                "Place the messages with insert_messages(computations, {.num_inbox_slots = 0}).");
      result_.computations.insert(result_.computations.end(), spans_[rank].begin(), spans_[rank].end());
    }
    return std::move(result_);
  }

 private:
  bool advance(std::size_t rank) {
    ChannelRank& state = ranks_[rank];
    const Action& action = program_.ranks[rank][state.position];
    if (const auto* message = std::get_if<MessageAction>(&action)) {
      state.channel.push_back({.transfer = transfer_of(*message), .is_send = is_send(*message), .posted = state.now});
      ++state.position;
      return true;
    }
    const auto parts = compute_parts(action);
    const auto input_time = [&](const ComputeAction& part) {
      const auto input = input_of(part, program_.stages.num_stages());
      return input ? there_[*input] : 0;
    };
    if (std::ranges::any_of(parts, [&](const auto& part) { return input_time(part) == kUnknownTime; })) return false;
    for (const auto& part : parts) {
      const double start = std::max(state.now, input_time(part));
      state.now = start + duration_of(options_.costs, part);
      spans_[rank].push_back({.action = part,
                              .rank = static_cast<std::int64_t>(rank),
                              .start = start,
                              .end = state.now,
                              .is_composed = parts.size() > 1});
      const auto output = output_of(part, program_.stages.num_stages());
      if (output && !link_of(*output, program_.stages)) there_[*output] = state.now;
    }
    ++state.position;
    return true;
  }

  // Delivers the first message in the channel of `rank` if it is also the first in the channel of the message's other
  // rank. Returns whether it delivered one.
  bool exchange(std::size_t rank) {
    if (ranks_[rank].channel.empty()) return false;
    const PostedMessage message = ranks_[rank].channel.front();
    const auto link = *link_of(message.transfer, program_.stages);
    ChannelRank& sender = ranks_[static_cast<std::size_t>(link.from)];
    ChannelRank& receiver = ranks_[static_cast<std::size_t>(link.to)];
    const auto is_first = [&](const ChannelRank& state, bool is_send) {
      return !state.channel.empty() && state.channel.front().transfer == message.transfer &&
             state.channel.front().is_send == is_send;
    };
    if (!is_first(sender, true) || !is_first(receiver, false)) return false;
    const LinkCosts& costs = costs_of(options_.costs, link);
    const double start = std::max({sender.channel.front().posted, sender.channel_free_at,
                                   receiver.channel.front().posted, receiver.channel_free_at});
    const double end = start + costs.time + costs.latency;
    result_.messages.push_back({.transfer = message.transfer,
                                .link = link,
                                .ready = sender.channel.front().posted,
                                .start = start,
                                .arrival = end,
                                .received = end});
    there_[message.transfer] = end;
    for (ChannelRank* state : {&sender, &receiver}) {
      state->channel.pop_front();
      state->channel_free_at = end;
    }
    return true;
  }

  const PipelineProgram& program_;
  const SimulationOptions& options_;
  std::vector<ChannelRank> ranks_;
  std::vector<std::vector<ComputeSpan>> spans_;
  TransferTimes there_;  // when each transfer is available on the target's rank
  Simulation result_;
};

}  // namespace

Simulation simulate_one_channel(const PipelineProgram& program, const SimulationOptions& options) {
  return OneChannelSimulator(program, options).run();
}

}  // namespace d9d::detail

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/check_program.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d::detail {
namespace {

// What a rank waits for at its current action.
struct Wait {
  std::size_t rank;  // the rank that it waits for
  std::string what;
};

// Executes the programs without times, in one of the possible orders. An action that can run stays able to run whatever
// other ranks do. So if this order does not reach the end of all programs, no order does.
class WaitCheck {
 public:
  WaitCheck(const PipelineProgram& program, std::optional<std::int64_t> num_slots)
      : program_(program),
        num_slots_(num_slots),
        has_messages_(program.has_messages()),
        positions_(program.ranks.size()) {}

  void run() {
    for (bool has_progress = true; has_progress;) {
      has_progress = false;
      for (std::size_t rank = 0; rank < positions_.size(); ++rank) {
        while (!is_done(rank) && !wait_of(rank)) {
          execute(rank);
          has_progress = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < positions_.size(); ++rank) {
      if (!is_done(rank)) throw ConfigError("[pipelining::validate] " + circle_text(rank) + remedy());
    }
  }

 private:
  [[nodiscard]] bool is_done(std::size_t rank) const { return positions_[rank] == program_.ranks[rank].size(); }
  [[nodiscard]] const Action& next(std::size_t rank) const { return program_.ranks[rank][positions_[rank]]; }

  [[nodiscard]] std::optional<Wait> wait_of(std::size_t rank) {
    if (const auto* message = std::get_if<MessageAction>(&next(rank))) return wait_of(*message);
    if (has_messages_) return std::nullopt;
    for (const auto& part : compute_parts(next(rank))) {
      const auto input = input_of(part, program_.stages.num_stages());
      if (!input || !link_of(*input, program_.stages) || made_.contains(*input)) continue;
      return Wait{.rank = static_cast<std::size_t>(program_.stages.rank_of(input->source)),
                  .what = cat(input->is_forward() ? "forward" : "backward", " of stage ", input->source.value,
                              ", microbatch ", input->microbatch.value)};
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Wait> wait_of(const MessageAction& message) {
    const Transfer transfer = transfer_of(message);
    const auto link = *link_of(transfer, program_.stages);
    const Link& state = links_[link];
    if (!is_send(message)) {
      if (state.num_sent > state.num_received || is_next(link.from, send_of(transfer))) return std::nullopt;
      return Wait{.rank = static_cast<std::size_t>(link.from), .what = to_text(send_of(transfer))};
    }
    if (!num_slots_) return std::nullopt;
    if (*num_slots_ == 0) {
      if (is_next(link.to, receive_of(transfer))) return std::nullopt;
      return Wait{.rank = static_cast<std::size_t>(link.to), .what = to_text(receive_of(transfer))};
    }
    if (state.num_sent - state.num_received < *num_slots_) return std::nullopt;
    return Wait{.rank = static_cast<std::size_t>(link.to),
                .what = cat("one of ", *num_slots_, " receive buffers to be free")};
  }

  // Returns whether `message` is the next action of `rank`, in a program without receive buffers, where a send and its
  // receive wait for each other. Returns false if there are buffers.
  [[nodiscard]] bool is_next(std::int64_t rank, const MessageAction& message) const {
    const auto index = static_cast<std::size_t>(rank);
    return num_slots_ == 0 && !is_done(index) && next(index) == Action(message);
  }

  void execute(std::size_t rank) {
    if (const auto* message = std::get_if<MessageAction>(&next(rank))) {
      Link& state = links_[*link_of(transfer_of(*message), program_.stages)];
      if (num_slots_ == 0) {
        const auto link = *link_of(transfer_of(*message), program_.stages);
        ++positions_[static_cast<std::size_t>(is_send(*message) ? link.to : link.from)];
      } else {
        ++(is_send(*message) ? state.num_sent : state.num_received);
      }
    }
    for (const auto& part : compute_parts(next(rank))) {
      if (const auto output = output_of(part, program_.stages.num_stages())) made_.insert(*output);
    }
    ++positions_[rank];
  }

  // Returns text about ranks that wait in a circle: follows each rank to the rank that it waits for, until a rank comes
  // up again.
  std::string circle_text(std::size_t rank) {
    std::vector<std::size_t> order;
    while (std::ranges::find(order, rank) == order.end() && !is_done(rank)) {
      order.push_back(rank);
      rank = wait_of(rank)->rank;
    }
    order.erase(order.begin(), std::ranges::find(order, rank));
    std::string text;
    for (const std::size_t waiting : order) {
      const Wait wait = *wait_of(waiting);
      text += cat(text.empty() ? "" : ", ", place_text(program_, waiting, positions_[waiting]), " waits for rank ",
                  wait.rank, ": ", wait.what);
    }
    return text;
  }

  [[nodiscard]] std::string remedy() const {
    return has_messages_ ? cat(". Expected ranks that do not wait in a circle. Use more receive buffers, or "
                               "insert_messages() for the receive buffers that there are.")
                         : ". Expected ranks that do not wait in a circle. Correct the order of the schedule.";
  }

  struct Link {
    std::int64_t num_sent = 0;
    std::int64_t num_received = 0;
  };

  const PipelineProgram& program_;
  std::optional<std::int64_t> num_slots_;
  bool has_messages_;
  std::vector<std::size_t> positions_;
  std::map<DirectedLink, Link> links_;
  std::set<Transfer> made_;
};

}  // namespace

void check_waits(const PipelineProgram& program, std::optional<std::int64_t> num_inbox_slots) {
  WaitCheck(program, num_inbox_slots).run();
}

}  // namespace d9d::detail

// Transfers between stages: activations to the next stage, gradients to the stage before. Between ranks a transfer is a
// message on the directed link from one rank to the other; within a rank it stays in memory.
//
// Example
//   const auto transfer = output_of(ForwardAction{.stage = {0}, .microbatch = {3}}, /*num_stages=*/4);
//   transfer->target;                                   // stage 1
//   link_of(*transfer, stages);                         // {.from = 0, .to = 1}; none where both stages share a rank
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "d9d/pipelining/program/action.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

struct Transfer {
  StageIndex source;
  StageIndex target;  // source + 1: activations; source - 1: gradients
  MicrobatchIndex microbatch;
  [[nodiscard]] bool is_forward() const { return source < target; }
  auto operator<=>(const Transfer&) const = default;
};

// One direction between two ranks. Its messages are received in the order in which the sender's program sends them.
struct DirectedLink {
  std::int64_t from = 0;  // rank
  std::int64_t to = 0;
  auto operator<=>(const DirectedLink&) const = default;
};

// Returns the transfer from another stage that a computation uses; none for a forward of the first stage, a backward of
// the last stage, and W.
[[nodiscard]] std::optional<Transfer> input_of(const ComputeAction& action, std::int64_t num_stages);

// Returns the transfer to another stage that a computation outputs; none for a forward of the last stage, a backward of
// the first stage, and W.
[[nodiscard]] std::optional<Transfer> output_of(const ComputeAction& action, std::int64_t num_stages);

// Convert between a transfer and the two messages that send and receive it; is_send() tells which of the two a message
// is. The stages that transfer_of() returns may lie outside the pipeline.
[[nodiscard]] Transfer transfer_of(const MessageAction& message);
[[nodiscard]] bool is_send(const MessageAction& message);
[[nodiscard]] MessageAction send_of(const Transfer& transfer);
[[nodiscard]] MessageAction receive_of(const Transfer& transfer);

// Returns the link that a transfer takes; none if both stages are on one rank.
[[nodiscard]] std::optional<DirectedLink> link_of(const Transfer& transfer, const StagePlacement& stages);

}  // namespace d9d

#include "d9d/pipelining/program/transfer.h"

namespace d9d {
namespace {

StageIndex next(StageIndex stage) { return {stage.value + 1}; }
StageIndex before(StageIndex stage) { return {stage.value - 1}; }

std::optional<Transfer> within_pipeline(const Transfer& transfer, std::int64_t num_stages) {
  const auto exists = [&](StageIndex stage) { return stage.value >= 0 && stage.value < num_stages; };
  return exists(transfer.source) && exists(transfer.target) ? std::optional(transfer) : std::nullopt;
}

}  // namespace

std::optional<Transfer> input_of(const ComputeAction& action, std::int64_t num_stages) {
  if (holds<BackwardWeightAction>(action)) return std::nullopt;
  const StageIndex stage = stage_of(action);
  const StageIndex source = holds<ForwardAction>(action) ? before(stage) : next(stage);
  return within_pipeline({.source = source, .target = stage, .microbatch = microbatch_of(action)}, num_stages);
}

std::optional<Transfer> output_of(const ComputeAction& action, std::int64_t num_stages) {
  if (holds<BackwardWeightAction>(action)) return std::nullopt;
  const StageIndex stage = stage_of(action);
  const StageIndex target = holds<ForwardAction>(action) ? next(stage) : before(stage);
  return within_pipeline({.source = stage, .target = target, .microbatch = microbatch_of(action)}, num_stages);
}

Transfer transfer_of(const MessageAction& message) {
  const StageIndex stage = stage_of(message);
  const bool is_forward = holds<SendForwardAction>(message) || holds<ReceiveForwardAction>(message);
  if (is_send(message)) {
    return {.source = stage, .target = is_forward ? next(stage) : before(stage), .microbatch = microbatch_of(message)};
  }
  return {.source = is_forward ? before(stage) : next(stage), .target = stage, .microbatch = microbatch_of(message)};
}

bool is_send(const MessageAction& message) {
  return holds<SendForwardAction>(message) || holds<SendBackwardAction>(message);
}

MessageAction send_of(const Transfer& transfer) {
  if (transfer.is_forward()) return SendForwardAction{.stage = transfer.source, .microbatch = transfer.microbatch};
  return SendBackwardAction{.stage = transfer.source, .microbatch = transfer.microbatch};
}

MessageAction receive_of(const Transfer& transfer) {
  if (transfer.is_forward()) return ReceiveForwardAction{.stage = transfer.target, .microbatch = transfer.microbatch};
  return ReceiveBackwardAction{.stage = transfer.target, .microbatch = transfer.microbatch};
}

std::optional<DirectedLink> link_of(const Transfer& transfer, const StagePlacement& stages) {
  const DirectedLink link{.from = stages.rank_of(transfer.source), .to = stages.rank_of(transfer.target)};
  return link.from == link.to ? std::nullopt : std::optional(link);
}

}  // namespace d9d

#include "d9d/pipelining/executor/program_run.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/device/named_range.h"
#include "d9d/core/error/error_place.h"
#include "d9d/pipelining/executor/transfer_text.h"

namespace d9d {
namespace {

bool is_like(const at::Tensor& leaf, const at::Tensor& like) {
  return leaf.defined() && leaf.sizes() == like.sizes() && leaf.scalar_type() == like.scalar_type();
}

BackwardPart backward_part(const ComputeAction& action) {
  if (holds<BackwardWeightAction>(action)) return BackwardPart::kWeight;
  return holds<BackwardAction>(action) ? BackwardPart::kWhole : BackwardPart::kInput;
}

std::string text_of_step(const PlannedStep& step) {
  if (const auto* const message = std::get_if<PlannedMessage>(&step)) return to_text(message->action);
  std::string text;
  for (const PlannedCompute& part : std::get<std::vector<PlannedCompute>>(step)) {
    text += (text.empty() ? "" : "|") + to_text(part.action);
  }
  return text;
}

// Returns where an action is in the rank's program, counted from 0: "action 5 of 24: 0F2 0F3 >0B1< 0F4 0B2".
std::string place_in(const RankPlan& plan, std::size_t index) {
  constexpr std::size_t kAround = 3;
  std::string text = cat("action ", index, " of ", plan.size(), ":");
  const std::size_t first = index - std::min(index, kAround), end = std::min(plan.size(), index + kAround + 1);
  for (std::size_t i = first; i < end; ++i) {
    text += i == index ? cat(" >", text_of_step(plan[i]), "<") : cat(" ", text_of_step(plan[i]));
  }
  return text;
}

}  // namespace

ProgramRun::Arrived::Arrived(Leaves of_message, StreamEvent ready_at)
    : leaves(std::move(of_message)), ready(std::move(ready_at)), versions(leaves) {}

ProgramRun::ProgramRun(const StagePlacement& placement, const std::map<StageIndex, PipelineStage*>& stages,
                       StageLinks& links, const ComputeStreams* streams, ProgramGraphs* graphs, bool has_backward)
    : placement_(placement),
      stages_(stages),
      links_(links),
      streams_(streams),
      graphs_(graphs),
      has_backward_(has_backward) {}

void ProgramRun::run(const RankPlan& plan) {
  const at::AutoGradMode grad_mode(has_backward_);
  Steps steps = plan;
  while (!steps.empty()) {
    const std::size_t index = plan.size() - steps.size();
    steps = steps.subspan(1);
    try {
      run_step(plan[index], steps);
    } catch (const std::exception&) {
      if (placement_.num_stages() > 1) add_error_place(place_in(plan, index));
      throw;
    }
  }
  for (const auto& [transfer, versions] : output_versions_) check_unmodified(transfer, versions);
}

void ProgramRun::run_step(const PlannedStep& step, Steps& after) {
  if (const auto* const parts = std::get_if<std::vector<PlannedCompute>>(&step)) return run_computes(*parts, after);
  const MessageAction& message = std::get<PlannedMessage>(step).action;
  is_send(message) ? send(transfer_of(message)) : to_receive_.push_back(transfer_of(message));
}

void ProgramRun::send(const Transfer& transfer) {
  while (!to_receive_.empty()) receive_next();
  const auto made = unsent_outputs_.find(transfer);
  links_.send(transfer, made->second);
  unsent_outputs_.erase(made);
}

// Runs one computation or the parts of a composed action. On one stream, each part receives the message that it uses,
// so that the other parts do not wait for it. On two streams, all receives are queued on a third stream before the
// parts. A message that no part uses, which the program receives early to free a receive buffer, is received before the
// parts. Receives and sends keep the order of the program: the output of a part is sent as soon as the part has run,
// unless the program sends something else first.
void ProgramRun::run_computes(const std::vector<PlannedCompute>& parts, Steps& after) {
  const auto is_used_here = [&](const Transfer& transfer) {
    return std::ranges::any_of(parts, [&](const PlannedCompute& part) {
      return input_of(part.action, placement_.num_stages()) == std::optional(transfer);
    });
  };
  while (!std::ranges::all_of(to_receive_, is_used_here)) receive_next();
  while (streams_ != nullptr && !to_receive_.empty()) receive_next();
  if (streams_ == nullptr) {
    for (const PlannedCompute& part : parts) {
      run_part(part);
      send_made(parts, after);
    }
  } else {
    const bool are_joined = std::ranges::all_of(parts, [](const PlannedCompute& part) { return part.lane == 0; });
    const ComputeStreams::Joined joined(are_joined ? nullptr : streams_);
    for (const bool are_forwards : {false, true}) {
      for (const PlannedCompute& part : parts) {
        if (holds<ForwardAction>(part.action) == are_forwards) streams_->run(part.lane, [&] { run_part(part); });
      }
    }
    send_made(parts, after);
  }
  for (const PlannedCompute& part : parts) {
    if (holds<ForwardAction>(part.action)) continue;
    stages_.at(stage_of(part.action))->after_backward(microbatch_of(part.action), backward_part(part.action));
  }
}

// Runs the sends at the beginning of `after`, the rest of the program, up to the first whose tensors are not computed
// yet, and removes them from it. Each runs on the stream of the part that computed its tensors, or on the current
// stream if an earlier action computed them.
void ProgramRun::send_made(const std::vector<PlannedCompute>& parts, Steps& after) {
  for (; !after.empty(); after = after.subspan(1)) {
    const auto* const message = std::get_if<PlannedMessage>(&after.front());
    if (message == nullptr || !is_send(message->action)) return;
    const Transfer transfer = transfer_of(message->action);
    if (!unsent_outputs_.contains(transfer)) return;
    const auto made_it = [&](const PlannedCompute& part) {
      return output_of(part.action, placement_.num_stages()) == std::optional(transfer);
    };
    const auto maker = std::ranges::find_if(parts, made_it);
    const std::int64_t lane = maker == parts.end() ? 0 : maker->lane;
    streams_ == nullptr ? send(transfer) : streams_->run(lane, [&] { send(transfer); });
  }
}

void ProgramRun::run_part(const PlannedCompute& part) {
  const NamedRange range([&] { return to_text(part.action); });
  const auto input = input_of(part.action, placement_.num_stages());
  if (input && (has_backward_ || input->is_forward())) receive_through(*input);
  holds<ForwardAction>(part.action) ? forward(part) : run_backward(part);
}

void ProgramRun::run_backward(const PlannedCompute& part) {
  const StageIndex stage = stage_of(part.action);
  const MicrobatchIndex microbatch = microbatch_of(part.action);
  const BackwardPart which = backward_part(part.action);
  with_error_place(place_of("backward", stage, microbatch),
                   [&] { which == BackwardPart::kWeight ? weight_backward(part) : backward(part); });
}

void ProgramRun::receive_through(const Transfer& transfer) {
  while (!arrived_.contains(transfer)) {
    D9D_ASSERT(!to_receive_.empty(), "stage ", transfer.target.value, " uses microbatch ", transfer.microbatch.value,
               " before its message");
    receive_next();
  }
}

void ProgramRun::receive_next() {
  const Transfer transfer = to_receive_.front();
  to_receive_.pop_front();
  Leaves leaves;
  StreamEvent ready;
  const auto receive = [&] { leaves = links_.receive(transfer, like_of(transfer)); };
  streams_ == nullptr ? receive() : void(ready = streams_->receive(receive));
  arrived_.emplace(transfer, Arrived(std::move(leaves), std::move(ready)));
}

ProgramRun::Leaves ProgramRun::like_of(const Transfer& transfer) const {
  if (!transfer.is_forward()) return live_.at(Key(transfer.target, transfer.microbatch)).gradients_like;
  return stages_.at(transfer.target)->transfer(transfer.microbatch, StageBoundary::kIncoming);
}

void ProgramRun::store_output(const Transfer& transfer, Leaves leaves) {
  if (link_of(transfer, placement_)) {
    if (transfer.is_forward()) output_versions_.emplace(transfer, leaves);
    unsent_outputs_.emplace(transfer, std::move(leaves));
  } else {
    arrived_.emplace(transfer, Arrived(std::move(leaves)));
  }
}

// Returns the tensors of a transfer, without a copy, and keeps them alive for the current stream: autograd may free an
// input or a gradient while the device still reads it.
ProgramRun::Leaves ProgramRun::take_input(const Transfer& transfer) {
  Arrived arrived = std::move(arrived_.extract(transfer).mapped());
  arrived.ready.wait();
  check_unmodified(transfer, arrived.versions);
  for (const at::Tensor& leaf : arrived.leaves) {
    if (streams_ != nullptr) keep_for_current_stream(leaf);
  }
  return std::move(arrived.leaves);
}

// Throws StateError if a tensor of the transfer was modified in place since the transfer was computed or received. A
// link may read the memory of an output until the message has been received, and stages of one rank share the memory of
// a transfer.
void ProgramRun::check_unmodified(const Transfer& transfer, const TensorVersions& versions) {
  const auto modified = versions.first_modified();
  D9D_CHECK(!modified, StateError, "[pipelining::executor] expected tensor ", *modified, " that stage ",
            transfer.source.value, " sends to stage ", transfer.target.value, " for microbatch ",
            transfer.microbatch.value, " to stay unmodified, got one that was modified in place before it was used. ",
            "Return a clone() of memory that is written again.");
}

ProgramRun::Leaves ProgramRun::compute(const PlannedCompute& part, Leaves inputs, const ProgramGraphs::Work& work) {
  return graphs_ == nullptr ? work(std::move(inputs)) : graphs_->run(part.action, std::move(inputs), work);
}

void ProgramRun::forward(const PlannedCompute& part) {
  const StageIndex stage = stage_of(part.action);
  const MicrobatchIndex microbatch = microbatch_of(part.action);
  Leaves arrived;
  if (!is_first(stage)) {
    arrived = take_input({.source = {stage.value - 1}, .target = stage, .microbatch = microbatch});
  }
  PipelineStage& stage_object = *stages_.at(stage);
  // Called before forward, which may drop the inputs that the shapes are derived from.
  const Leaves announced =
      is_last_stage(stage) ? Leaves() : stage_object.transfer(microbatch, StageBoundary::kOutgoing);
  Live live{.gradients_like = differentiable(announced)};
  stage_object.begin_forward(microbatch);
  Leaves made = compute(part, std::move(arrived),
                        [&](Leaves inputs) { return compute_forward(part, std::move(inputs), announced, live); });
  stage_object.end_forward(microbatch);
  if (!is_last_stage(stage)) {
    store_output({.source = stage, .target = {stage.value + 1}, .microbatch = microbatch}, std::move(made));
  }
  if (has_backward_) live_.emplace(Key(stage, microbatch), std::move(live));
}

ProgramRun::Leaves ProgramRun::compute_forward(const PlannedCompute& part, Leaves arrived, const Leaves& announced,
                                               Live& live) {
  const StageIndex stage = stage_of(part.action);
  const MicrobatchIndex microbatch = microbatch_of(part.action);
  for (const at::Tensor& leaf : differentiable(arrived)) leaf.set_requires_grad(has_backward_);
  live.arrived = std::move(arrived);
  Leaves made = with_error_place(place_of("forward", stage, microbatch), [&] {
    return stages_.at(stage)->forward(microbatch, live.arrived, part.backward_follows);
  });
  if (is_last_stage(stage)) {
    if (!has_backward_) return {};
    D9D_CHECK(made.size() == 1 && made.front().defined() && made.front().dim() == 0 && made.front().requires_grad(),
              StateError, "[pipelining::executor] expected a loss of the last stage, a scalar with a graph, got ",
              transfer_text(made), " (", place_of("forward", stage, microbatch), ").");
    live.loss_options = made.front().options();
    live.graph = StageGraph(made);
    return {};
  }
  check_announced(stage, microbatch, announced, made);
  live.graph = StageGraph(differentiable(made));
  for (at::Tensor& leaf : made) leaf = leaf.detach();
  return made;
}

void ProgramRun::backward(const PlannedCompute& part) {
  const StageIndex stage = stage_of(part.action);
  const MicrobatchIndex microbatch = microbatch_of(part.action);
  const auto found = live_.extract(Key(stage, microbatch));
  Live& live = found.mapped();
  Leaves arrived;
  if (!is_last_stage(stage)) {
    arrived = take_input({.source = {stage.value + 1}, .target = stage, .microbatch = microbatch});
  }
  if (const auto sent =
          output_versions_.extract({.source = stage, .target = {stage.value + 1}, .microbatch = microbatch})) {
    check_unmodified(sent.key(), sent.mapped());  // the message has been received, since its gradient has arrived
  }
  PipelineStage& stage_object = *stages_.at(stage);
  const BackwardPart which = backward_part(part.action);
  Leaves made;
  stage_object.backward(microbatch, which, part.is_last, [&] {
    made = compute(part, std::move(arrived), [&](Leaves gradients) {
      if (is_last_stage(stage)) gradients = {at::ones({}, live.loss_options)};
      const auto run_graph = [&] {
        if (streams_ != nullptr) live.graph.accumulate_on_current_stream();
        live.graph.backward(std::move(gradients));
      };
      if (which == BackwardPart::kWhole) {
        run_graph();
      } else {
        if (!deferred_.contains(stage)) deferred_.try_emplace(stage, stage_object.weights());
        of_weights_.emplace(Key(stage, microbatch), deferred_.at(stage).keep(run_graph));
      }
      return is_first(stage) ? Leaves() : input_gradients(stage, microbatch, live.arrived);
    });
  });
  if (is_first(stage)) return;
  store_output({.source = stage, .target = {stage.value - 1}, .microbatch = microbatch}, std::move(made));
}

void ProgramRun::weight_backward(const PlannedCompute& part) {
  const StageIndex stage = stage_of(part.action);
  const MicrobatchIndex microbatch = microbatch_of(part.action);
  stages_.at(stage)->backward(microbatch, BackwardPart::kWeight, part.is_last, [&] {
    (void)compute(part, {}, [&](const Leaves&) {
      of_weights_.extract(Key(stage, microbatch)).mapped().run();
      return Leaves();
    });
  });
}

ProgramRun::Leaves ProgramRun::input_gradients(StageIndex stage, MicrobatchIndex microbatch,
                                               const Leaves& arrived) const {
  Leaves gradients;
  for (const at::Tensor& leaf : differentiable(arrived)) {
    at::Tensor& gradient = leaf.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(leaf);  // the loss does not depend on this input
    D9D_CHECK(is_like(gradient, leaf), StateError, "[pipelining::executor] expected a gradient like its tensor, ",
              transfer_text({leaf}), ", got ", transfer_text({gradient}), " (", place_of("backward", stage, microbatch),
              ").");
    gradients.push_back(std::exchange(gradient, at::Tensor()));
  }
  return gradients;
}

void ProgramRun::check_announced(StageIndex stage, MicrobatchIndex microbatch, const Leaves& announced,
                                 const Leaves& made) {
  D9D_CHECK(std::ranges::equal(made, announced, is_like), StateError, "[pipelining::executor] expected stage ",
            stage.value, " to return the tensors that it announced, ", transfer_text(announced), ", got ",
            transfer_text(made), " for microbatch ", microbatch.value, ". Correct its forward or its transfer().");
}

std::string ProgramRun::place_of(const char* what, StageIndex stage, MicrobatchIndex microbatch) const {
  return cat(what, " of stage ", stage.value, ", microbatch ", microbatch.value);
}

}  // namespace d9d

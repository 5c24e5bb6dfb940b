#include "d9d/pipelining/executor/pipeline_executor.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "d9d/base/check.h"
#include "d9d/pipelining/executor/announced_transfers.h"
#include "d9d/pipelining/executor/compare_transfers.h"
#include "d9d/pipelining/executor/program_run.h"

namespace d9d {
namespace {

std::optional<ComputeStreams> streams_of(const DistContext& context) {
  if (!context.device().is_cuda()) return std::nullopt;
  return std::optional<ComputeStreams>(std::in_place, context.world());
}

}  // namespace

PipelineExecutor::PipelineExecutor(const DistContext& context, PipelineSchedule schedule, const StageLinksConfig& links)
    : context_(context),
      schedule_(std::move(schedule)),
      num_inbox_slots_(links.num_inbox_slots),
      rank_(context.mesh(MeshDomain::kRegular).axis_coordinate("pp")),
      placement_(placement_of(schedule_, context.mesh(MeshDomain::kRegular).axis_size("pp"))),
      links_(context, placement_, links),
      streams_(streams_of(context)) {}

PipelineExecutor::Planned& PipelineExecutor::plan_for(std::int64_t num_microbatches) {
  const auto found = plans_.find(num_microbatches);
  if (found != plans_.end()) return found->second;
  const PipelineProgram program =
      build_program(schedule_, placement_.num_ranks(), num_microbatches, {.num_inbox_slots = num_inbox_slots_});
  Planned planned{.plan = plan_rank(program, rank_),
                  .has_backward = program.has_backward(),
                  .has_two_streams = false,
                  .text = to_text(program)};
  planned.has_two_streams = streams_.has_value() && std::ranges::any_of(planned.plan, [](const PlannedStep& step) {
                              const auto* const parts = std::get_if<std::vector<PlannedCompute>>(&step);
                              return parts != nullptr && can_run_at_once(*parts);
                            });
  return plans_.emplace(num_microbatches, std::move(planned)).first->second;
}

bool PipelineExecutor::runs_at_once(std::int64_t num_microbatches) {
  return streams_.has_value() && plan_for(num_microbatches).has_two_streams;
}

std::map<std::int64_t, LinkStep> PipelineExecutor::link_steps(const std::map<StageIndex, PipelineStage*>& stages,
                                                              std::int64_t num_microbatches) const {
  std::map<std::int64_t, LinkStep> steps;
  for (const auto& [stage, computes] : stages) {
    for (const StageBoundary boundary : {StageBoundary::kIncoming, StageBoundary::kOutgoing}) {
      const StageIndex before{boundary == StageBoundary::kIncoming ? stage.value - 1 : stage.value};
      const StageIndex after{before.value + 1};
      if (before.value < 0 || after.value == placement_.num_stages()) continue;
      const std::int64_t peer = placement_.rank_of(before == stage ? after : before);
      if (peer == rank_) continue;
      const AnnouncedTransfers announced = announced_transfers(*computes, boundary, num_microbatches);
      LinkStep& step =
          steps.try_emplace(peer, LinkStep{.transfers = cat(num_microbatches, " microbatches")}).first->second;
      step.largest_bytes = std::max(step.largest_bytes, announced.largest_bytes);
      step.transfers += cat("; stage ", before.value, " to ", after.value, ": ", announced.text);
    }
  }
  return steps;
}

void PipelineExecutor::run(const std::vector<PipelineStage*>& stages, std::int64_t num_microbatches,
                           ProgramGraphs* graphs) {
  D9D_CHECK(stages.size() == this->stages().size(), StateError, "[pipelining::executor] expected the ",
            this->stages().size(), " stages of rank ", rank_, " of the pipeline, got ", stages.size(), ".");
  std::map<StageIndex, PipelineStage*> by_index;
  for (std::size_t i = 0; i < stages.size(); ++i) by_index.emplace(this->stages()[i], stages[i]);
  const bool has_links = placement_.num_ranks() > 1;
  const bool has_peers = has_links && !context_.device().is_meta();  // a meta device only computes shapes
  if (has_peers && (context_.device().is_cpu() || !has_compared_)) {
    compare_transfers(context_, placement_, by_index, num_microbatches);
    has_compared_ = true;
  }
  Planned& planned = plan_for(num_microbatches);
  if (const std::string text = std::exchange(planned.text, ""); has_peers && !text.empty()) {
    compare_programs(context_, schedule_.name, text);
  }
  const ComputeStreams* const streams = planned.has_two_streams && graphs == nullptr ? &*streams_ : nullptr;
  try {
    if (has_links) links_.begin_step(link_steps(by_index, num_microbatches));
    ProgramRun(placement_, by_index, links_, streams, graphs, planned.has_backward).run(planned.plan);
    links_.finish();
  } catch (const CommunicationError&) {
    links_.give_up();
    throw;
  } catch (...) {
    links_.give_up();
    if (has_peers)
      context_.world()->throw_if_failed();  // values received after a failure are arbitrary and cause other errors
    throw;
  }
  if (graphs != nullptr) graphs->end_recording();
}

}  // namespace d9d

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/check_program.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d::detail {
namespace {

using Position = std::optional<std::size_t>;  // index in the program of the stage's rank

// Positions of the computations of one microbatch on one stage.
struct Computed {
  Position forward;
  Position backward;  // B or I
  Position weight;    // B or W
};

[[noreturn]] void refuse_incomplete(const PipelineProgram& program, StageIndex stage, std::int64_t microbatch,
                                    const char* missing) {
  throw ConfigError(cat("[pipelining::validate] rank ", program.stages.rank_of(stage), " never runs ", missing,
                        " of stage ", stage.value, ", microbatch ", microbatch, ". Add it to the schedule."));
}

// Rejects a number of microbatches for which forwards are missing, before tables of that size are allocated: the text
// of a program may contain any index.
void check_number(const PipelineProgram& program) {
  std::set<std::pair<StageIndex, std::int64_t>> forwards;
  for (const RankProgram& rank : program.ranks) {
    for (const Action& action : rank) {
      for (const ComputeAction& part : compute_parts(action)) {
        if (holds<ForwardAction>(part)) forwards.emplace(stage_of(part), microbatch_of(part).value);
      }
    }
  }
  if (program.num_microbatches <= std::ssize(forwards) / program.stages.num_stages()) return;
  for (StageIndex stage{0}; stage.value < program.stages.num_stages(); ++stage.value) {
    for (std::int64_t microbatch = 0; microbatch < program.num_microbatches; ++microbatch) {
      if (!forwards.contains({stage, microbatch})) refuse_incomplete(program, stage, microbatch, "F");
    }
  }
}

class ComputationCheck {
 public:
  explicit ComputationCheck(const PipelineProgram& program)
      : program_(program),
        computed_(static_cast<std::size_t>(program.stages.num_stages() * program.num_microbatches)) {}

  void run() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t position = 0; position < program_.ranks[rank].size(); ++position) {
        const Action& action = program_.ranks[rank][position];
        const auto parts = compute_parts(action);
        expect(!holds<ComposedAction>(action) || parts.size() >= 2, rank, position,
               "at least two parts of a composed action");
        for (const auto& part : parts) visit(part, rank, position);
      }
    }
    check_complete();
  }

 private:
  void expect(bool condition, std::size_t rank, std::size_t position, const std::string& rule) const {
    D9D_CHECK(condition, ConfigError, "[pipelining::validate] ", place_text(program_, rank, position), ": expected ",
              rule, ". Correct the schedule.");
  }

  Computed& computed(StageIndex stage, MicrobatchIndex microbatch) {
    return computed_[static_cast<std::size_t>(stage.value * program_.num_microbatches + microbatch.value)];
  }

  void visit(const ComputeAction& part, std::size_t rank, std::size_t position) {
    const StageIndex stage = stage_of(part);
    const MicrobatchIndex microbatch = microbatch_of(part);
    const bool is_stage = stage.value >= 0 && stage.value < program_.stages.num_stages();
    expect(is_stage && program_.stages.rank_of(stage) == static_cast<std::int64_t>(rank), rank, position,
           "a stage of this rank in " + to_text(part));
    expect(microbatch.value >= 0 && microbatch.value < program_.num_microbatches, rank, position,
           cat("one of ", program_.num_microbatches, " microbatches in ", to_text(part)));
    check_input(part, rank, position);
    Computed& here = computed(stage, microbatch);
    const auto is_before = [&](const Position& other) { return other && *other < position; };
    if (holds<ForwardAction>(part)) {
      expect(!here.forward, rank, position, to_text(part) + " once, got it twice");
      here.forward = position;
    } else if (holds<BackwardWeightAction>(part)) {
      expect(is_before(here.backward), rank, position, "the input pass (I) before " + to_text(part));
      expect(!here.weight, rank, position, "one B or W up to " + to_text(part) + ", got two");
      here.weight = position;
    } else {
      expect(is_before(here.forward), rank, position, "the forward before " + to_text(part));
      expect(!here.backward, rank, position, "one B or I up to " + to_text(part) + ", got two");
      here.backward = position;
      if (holds<BackwardAction>(part)) here.weight = position;
    }
  }

  // If the input of `part` comes from another stage of the same rank, checks that this stage has computed it before.
  void check_input(const ComputeAction& part, std::size_t rank, std::size_t position) {
    const auto input = input_of(part, program_.stages.num_stages());
    if (!input || link_of(*input, program_.stages)) return;
    const Computed& source = computed(input->source, input->microbatch);
    const Position& made = input->is_forward() ? source.forward : source.backward;
    expect(made && *made < position, rank, position,
           cat(input->is_forward() ? "the forward" : "the backward", " of stage ", input->source.value, ", microbatch ",
               input->microbatch.value, " before ", to_text(part), ", which uses it"));
  }

  void check_complete() {
    const bool has_backward = program_.has_backward();
    for (std::int64_t stage = 0; stage < program_.stages.num_stages(); ++stage) {
      for (std::int64_t microbatch = 0; microbatch < program_.num_microbatches; ++microbatch) {
        const Computed& here = computed({stage}, {microbatch});
        const char* missing = !here.forward                    ? "F"
                              : has_backward && !here.backward ? "B or I"
                              : has_backward && !here.weight   ? "W after its I"
                                                               : nullptr;
        if (missing != nullptr) refuse_incomplete(program_, {stage}, microbatch, missing);
      }
    }
  }

  const PipelineProgram& program_;
  std::vector<Computed> computed_;  // [stage][microbatch]
};

}  // namespace

std::string place_text(const PipelineProgram& program, std::size_t rank, std::size_t position) {
  const Action& action = program.ranks.at(rank).at(position);
  std::string text = cat("rank ", rank, ", action ", position, " (", to_text(action));
  const auto add = [&](const auto& one, bool is_first) {
    text += cat(is_first ? ": " : "; ", "stage ", stage_of(one).value, ", microbatch ", microbatch_of(one).value);
  };
  bool is_first = true;
  for (const auto& part : compute_parts(action)) {
    add(part, is_first);
    is_first = false;
  }
  if (const auto* message = std::get_if<MessageAction>(&action)) add(*message, true);
  return text + ")";
}

void check_computations(const PipelineProgram& program) {
  D9D_CHECK(program.num_microbatches >= 1 && program.stages.num_ranks() >= 1 &&
                std::cmp_equal(program.ranks.size(), program.stages.num_ranks()),
            ConfigError, "[pipelining::validate] expected a microbatch and a program for each of ",
            program.stages.num_ranks(), " ranks, got ", program.num_microbatches, " microbatches and ",
            program.ranks.size(), " programs. Correct the schedule.");
  check_number(program);
  ComputationCheck(program).run();
}

}  // namespace d9d::detail

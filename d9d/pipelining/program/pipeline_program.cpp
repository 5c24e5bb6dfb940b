#include "d9d/pipelining/program/pipeline_program.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// "r3: 3F0 3B0" is the program of rank 3.
std::pair<std::int64_t, RankProgram> parse_line(const std::string& line) {
  const auto colon = line.find(':');
  const auto begin = line.find_first_not_of(" \t");
  const std::string name = colon == std::string::npos ? "" : line.substr(begin, colon - begin);
  const bool is_rank = name.size() >= 2 && name.size() < 8 && name[0] == 'r' &&
                       name.find_first_not_of("0123456789", 1) == std::string::npos;
  D9D_CHECK(is_rank, ConfigError, "[pipelining::program] expected lines r{rank}: {actions}, got '", line,
            "'. Correct the program.");
  return {std::stoll(name.substr(1)), parse_rank_program(std::string_view(line).substr(colon + 1))};
}

StagePlacement placement_of(const std::vector<RankProgram>& ranks) {
  std::map<StageIndex, std::int64_t> rank_of;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& action : ranks[rank]) {
      for (const auto& part : compute_parts(action)) {
        const auto [place, is_new] = rank_of.emplace(stage_of(part), static_cast<std::int64_t>(rank));
        D9D_CHECK(is_new || place->second == static_cast<std::int64_t>(rank), ConfigError,
                  "[pipelining::program] expected each stage on one rank, got ", to_text(part), " on rank ", rank,
                  " and stage ", stage_of(part).value, " on rank ", place->second, ". Correct the program.");
      }
    }
  }
  std::vector<std::int64_t> result;
  for (const auto& [stage, rank] : rank_of) {
    D9D_CHECK(stage.value == static_cast<std::int64_t>(result.size()), ConfigError,
              "[pipelining::program] expected stages without gaps, got stage ", stage.value, " but no stage ",
              result.size(), ". Correct the program.");
    result.push_back(rank);
  }
  return StagePlacement(std::move(result));
}

std::int64_t count_microbatches(const std::vector<RankProgram>& ranks) {
  std::int64_t count = 0;
  for (const auto& program : ranks) {
    for (const auto& action : program) {
      for (const auto& part : compute_parts(action)) count = std::max(count, microbatch_of(part).value + 1);
    }
  }
  return count;
}

}  // namespace

bool PipelineProgram::has_backward() const {
  return std::ranges::any_of(ranks, [](const RankProgram& program) {
    return std::ranges::any_of(program, [](const Action& action) {
      return std::ranges::any_of(compute_parts(action), [](const auto& part) { return !holds<ForwardAction>(part); });
    });
  });
}

bool PipelineProgram::has_messages() const {
  return std::ranges::any_of(ranks, [](const RankProgram& program) {
    return std::ranges::any_of(program, [](const Action& action) { return holds<MessageAction>(action); });
  });
}

PipelineProgram compute_only(PipelineProgram program) {
  for (auto& rank : program.ranks)
    std::erase_if(rank, [](const Action& action) { return holds<MessageAction>(action); });
  return program;
}

std::string to_text(const PipelineProgram& program) {
  std::string text;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    text += "r" + std::to_string(rank) + ": " + to_text(program.ranks[rank]) + "\n";
  }
  return text;
}

PipelineProgram parse_program(std::string_view text) {
  PipelineProgram program;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto [rank, actions] = parse_line(line);
    D9D_CHECK(rank == static_cast<std::int64_t>(program.ranks.size()), ConfigError,
              "[pipelining::program] expected the ranks in order, got r", rank, " after ", program.ranks.size(),
              " ranks. Correct the program.");
    program.ranks.push_back(std::move(actions));
  }
  program.stages = placement_of(program.ranks);
  D9D_CHECK(program.stages.num_ranks() == static_cast<std::int64_t>(program.ranks.size()), ConfigError,
            "[pipelining::program] expected computations on each of ", program.ranks.size(), " ranks, got ",
            program.stages.num_ranks(), " that have some. Correct the program.");
  program.num_microbatches = count_microbatches(program.ranks);
  return program;
}

}  // namespace d9d

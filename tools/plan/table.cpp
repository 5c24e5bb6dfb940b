#include "tools/plan/table.h"

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <sstream>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"
#include "d9d/base/config/record_json.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d::plan {
namespace {

using Row = std::vector<std::string>;

const Row kHeader = {"",     "elements",    "parameters", "optimizer", "gathered", "gradients", "microbatch",
                     "kept", "activations", "messages",   "exchanges", "working",  "total"};

std::string ranks_text(const DeviceMeshParameters& mesh, std::int64_t pipeline_rank) {
  const std::int64_t count = mesh.world_size() / mesh.pipeline_parallel, first = pipeline_rank * count;
  return count == 1 ? cat("rank ", first) : cat("ranks ", first, "-", first + count - 1);
}

Row rank_row(const RankMemory& rank, const DeviceMeshParameters& mesh) {
  return {ranks_text(mesh, rank.pipeline_rank),
          cat(rank.sum_of(&StageMemory::num_parameters)),
          byte_size_text(rank.sum_of(&StageMemory::parameters)),
          byte_size_text(rank.sum_of(&StageMemory::optimizer)),
          byte_size_text(rank.sum_of(&StageMemory::gathered)),
          byte_size_text(rank.sum_of(&StageMemory::gradients)),
          "",
          "",
          byte_size_text(rank.activations()),
          byte_size_text(rank.messages),
          byte_size_text(rank.exchanges),
          byte_size_text(rank.working),
          byte_size_text(rank.total)};
}

Row stage_row(const StageMemory& stage) {
  const bool waits = stage.num_waiting > 0;
  return {cat("  stage ", stage.stage.value),
          cat(stage.num_parameters),
          byte_size_text(stage.parameters),
          byte_size_text(stage.optimizer),
          byte_size_text(stage.gathered),
          byte_size_text(stage.gradients),
          cat(byte_size_text(stage.activations), stage.deferred > 0 ? " + " + byte_size_text(stage.deferred) : ""),
          cat("x ", stage.num_live, stage.deferred > 0 ? cat(" + ", stage.num_waiting) : ""),
          byte_size_text(stage.num_live * stage.activations + (waits ? stage.num_waiting * stage.deferred : 0)),
          "",
          "",
          "",
          ""};
}

std::string mesh_text(const DeviceMeshParameters& mesh) {
  std::string text;
  for_each_field<DeviceMeshParameters>([&](const auto& field) {
    const std::int64_t degree = mesh.*field.member;
    if (degree > 1) text += cat(text.empty() ? "" : ", ", field.name, " ", degree);
  });
  return cat(mesh.world_size(), mesh.world_size() == 1 ? " rank" : " ranks", text.empty() ? "" : cat(" (", text, ")"));
}

}  // namespace

std::int64_t most_bytes(const PlannedJob& job) {
  return std::ranges::max_element(job.ranks, {}, &RankMemory::total)->total;
}

std::string table_text(const PlannedJob& job, std::optional<std::int64_t> memory) {
  std::vector<Row> rows = {kHeader};
  std::vector<std::string> notes = {""};  // of each row
  for (const RankMemory& rank : job.ranks) {
    rows.push_back(rank_row(rank, job.request.mesh));
    const std::int64_t rest = memory.value_or(rank.total) - rank.total;
    notes.push_back(
        !memory ? "" : cat(rest < 0 ? "  does not fit: lacks " : "  fits, leaves ", byte_size_text(std::abs(rest))));
    for (const StageMemory& stage : rank.stages) {
      rows.push_back(stage_row(stage));
      notes.emplace_back();
    }
  }
  std::vector<std::size_t> widths(kHeader.size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::ostringstream text;
  text << job.model << " on " << mesh_text(job.request.mesh) << ", "
       << schedule_of(job.request.trainer.pipelining.schedule).name << ", " << job.request.num_microbatches
       << " microbatches of " << job.request.num_sequences << " x " << job.request.sequence_length << '\n';
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text << std::left << std::setw(static_cast<int>(widths[0])) << rows[i][0] << std::right;
    for (std::size_t column = 1; column < kHeader.size(); ++column) {
      text << "  " << std::setw(static_cast<int>(widths[column])) << rows[i][column];
    }
    text << notes[i] << '\n';
  }
  return text.str();
}

}  // namespace d9d::plan

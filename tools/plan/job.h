// A job as d9d_plan reads it: of one of the families of models, with whatever the plan does not need filled in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "d9d/base/config/json_text.h"
#include "d9d/loop/measure/memory_plan.h"

#include "tools/plan/options.h"

namespace d9d::plan {

struct Job {
  Json json;
  bool is_of_model = false;  // the file has the sizes of a model alone
  std::string family = {};   // its name: as --help says
  bool has_experts = false;
};

// Of a job's file what it says, of a model's file a job that trains it, with the overrides of the command line. Throws
// ConfigError for a file that is neither, naming what it lacks; IoError.
[[nodiscard]] Job read_job(const Options& options);

struct PlannedJob {
  std::string model;      // its family and layers, for the table
  MemoryRequest request;  // what was planned
  std::vector<RankMemory> ranks;
};

// Throws ConfigError as the job itself would, with `source` as the file's name.
[[nodiscard]] PlannedJob plan_job(const Job& job, const Options& options);

}  // namespace d9d::plan

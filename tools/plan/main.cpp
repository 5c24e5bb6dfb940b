// Prints what each rank of a job keeps in memory, and what does not fit, without devices.
//
//   d9d_plan examples/qwen3_dense/pretrain/pretrain.json --memory 24GiB
//   d9d_plan d9d/models/qwen3_dense/presets/8B.json --mesh pipeline_parallel=4,data_parallel_shard=2
//   d9d_plan d9d/models/qwen3_moe/presets/30B-A3B.json --ranks 8 --memory 80GiB
//   d9d_plan --help
#include <iostream>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"
#include "d9d/core/launch/launch.h"

#include "tools/plan/job.h"
#include "tools/plan/meshes.h"
#include "tools/plan/options.h"
#include "tools/plan/remedies.h"
#include "tools/plan/table.h"

namespace d9d::plan {
namespace {

constexpr int kError = 1;
constexpr int kDoesNotFit = 3;

void print_remedies(const Job& job, const PlannedJob& planned, const Options& options) {
  std::cout << "\nSingle changes that lower what the largest rank needs, " << byte_size_text(most_bytes(planned))
            << ":\n";
  for (const Remedy& remedy : find_remedies(job, planned, options)) {
    std::cout << "  " << byte_size_text(remedy.bytes) << (remedy.bytes <= *options.memory ? ", fits" : "") << ": ";
    for (const std::string& override : remedy.overrides) std::cout << override << ' ';
    std::cout << "(" << remedy.note << ")\n";
  }
}

int run(const std::vector<std::string>& words) {
  const Options options = parse_options(words);
  if (options.wants_help) {
    std::cout << kUsage;
    return 0;
  }
  at::set_num_threads(1);  // nothing that is computed has the size of a model
  const Job job = read_job(options);
  if (options.num_ranks) {
    const std::vector<MeshMemory> meshes = plan_meshes(job, options);
    std::cout << meshes_text(meshes, options);
    const MeshMemory& best = meshes.front();
    if (!best.refusal.empty()) return kError;
    return options.memory && best.bytes > *options.memory ? kDoesNotFit : 0;
  }
  const PlannedJob planned = plan_job(job, options);
  std::cout << table_text(planned, options.memory);
  if (!options.memory || most_bytes(planned) <= *options.memory) return 0;
  print_remedies(job, planned, options);
  return kDoesNotFit;
}

}  // namespace
}  // namespace d9d::plan

int main(int argc, char** argv) {
  int exit_code = 0;
  const int error_code = d9d::run_reporting_errors([&] { exit_code = d9d::plan::run({argv + 1, argv + argc}); });
  return error_code != 0 ? error_code : exit_code;
}

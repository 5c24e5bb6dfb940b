// Converts a folder of safetensors: names, dtypes, formats of weights, sizes of files. Exports checkpoints of jobs.
//
//   d9d_convert Qwen3-0.6B Qwen3-0.6B-packed --qkv packed --workers 8
//   d9d_convert run/checkpoints/save-1000 exported
//   d9d_convert --help
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/base/progress/progress_bar.h"
#include "d9d/core/launch/launch.h"
#include "d9d/model_state/convert_model_state.h"
#include "d9d/model_state/mapping_report.h"

#include "tools/convert/conversion.h"
#include "tools/convert/options.h"
#include "tools/convert/source.h"

namespace {

namespace fs = std::filesystem;
using d9d::cat;

void check_target(const d9d::convert::Options& options) {
  std::error_code error;
  D9D_CHECK(!fs::equivalent(options.source, options.target, error) || error, d9d::UsageError,
            "[convert] expected another folder than SOURCE as TARGET, got '", options.target.string(), "' twice.");
  D9D_CHECK(options.overwrite || !fs::exists(options.target) || fs::is_empty(options.target), d9d::UsageError,
            "[convert] expected '", options.target.string(),
            "' not to exist, got a folder with files. Choose another, ", "or replace it with --overwrite.");
}

void convert(const d9d::convert::Options& options, const d9d::convert::Source& source,
             const d9d::ModelExport& conversion) {
  const d9d::InterruptScope interrupt;
  d9d::ProgressBar* shown = nullptr;
  std::optional<d9d::ProgressBar> bar;
  const auto on_progress = [&](const d9d::ConvertProgress& progress) {
    if (!bar) {
      const auto total = std::max<std::int64_t>(1, static_cast<std::int64_t>(progress.num_tensors));
      bar.emplace(d9d::ProgressBarOptions{
          .label = "convert", .total = total, .line_period = std::max<std::int64_t>(1, total / 10)});
      shown = &*bar;
    }
    shown->update(static_cast<std::int64_t>(progress.num_written),
                  {d9d::short_number(static_cast<double>(progress.bytes_written)) + "B"});
    D9D_CHECK(!interrupt.requested(), d9d::IoError, "[convert] expected to write '", options.target.string(),
              "', got interrupted. Nothing was left there.");
  };
  const auto unused = d9d::convert_model_state(options.target, conversion.mapper, source.tensors,
                                               {.max_shard_bytes = d9d::convert::parse_bytes(options.max_shard_size),
                                                .num_workers = static_cast<int>(options.workers),
                                                .files = conversion.files,
                                                .only_file = conversion.only_file,
                                                .on_progress = on_progress});
  bar.reset();
  for (const std::string& warning : conversion.warnings) std::cerr << "convert: " << warning << "\n";
  if (conversion.is_whole) {
    for (const std::string& name : unused) std::cerr << "convert: unused: " << name << "\n";
  }
  if (source.has_untied_head) {
    std::cerr
        << "convert: lm_head.weight is not the embedding, though config.json says tie_word_embeddings: wrote false "
           "there, as transformers takes it\n";
  }
  if (source.ignored_index) {
    std::cerr << "convert: read model.safetensors, and nothing of the shards in " << *source.ignored_index << "\n";
  }
  std::cout << "convert: wrote " << options.target.string() << "\n";
}

int run(int argc, const char* const* argv) {
  d9d::convert::Options options = d9d::convert::parse_options(argc, argv);
  if (!options.dry_run) check_target(options);
  const d9d::convert::Source source = d9d::convert::open_source(options);
  const d9d::ModelExport conversion = d9d::convert::plan_conversion(options, source);
  if (!options.dry_run) {
    convert(options, source, conversion);
    return 0;
  }
  const d9d::MappingReport report = d9d::report_mapping(conversion.mapper, source.tensors);
  std::cout << d9d::text_of(report);
  return report.missing.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  const int error_code = d9d::run_reporting_errors([&] { exit_code = run(argc, argv); });
  return error_code != 0 ? error_code : exit_code;
}

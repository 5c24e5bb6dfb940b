#include "d9d/data/loader/data_loader.h"

#include <algorithm>
#include <cmath>
#include <exception>

namespace d9d::detail {
namespace {

std::string list_of(const std::vector<std::int64_t>& samples) {
  std::string list;
  for (const std::int64_t sample : samples) list += cat(list.empty() ? "" : ", ", sample);
  return list;
}

}  // namespace

void check_loader_options(const LoaderOptions& options) {
  D9D_CHECK(options.num_workers >= 0, ConfigError, "[data::DataLoader] expected num_workers >= 0, got ",
            options.num_workers, ". Use 0 to read in the calling thread.");
  D9D_CHECK(options.prefetch_factor >= 1, ConfigError, "[data::DataLoader] expected prefetch_factor >= 1, got ",
            options.prefetch_factor, ". Use num_workers = 0 to read nothing ahead.");
  D9D_CHECK(options.timeout_seconds >= 0, ConfigError, "[data::DataLoader] expected timeout >= 0 seconds, got ",
            options.timeout_seconds, ". Use 0 to wait for ever.");
}

void check_no_padding(const GlobalBatchSampler& sampler) {
  D9D_CHECK(sampler.num_padding() == 0, ConfigError,
            "[data::DataLoader] expected samples that make the last step even over ranks, or ones that can become "
            "padding, got ",
            sampler.num_padding(),
            " places too many with drop_last = false: a sample in them would count twice. Set data.drop_last to true, "
            "or declare `void make_padding(Sample&)` beside your sample, which makes its loss weigh nothing.");
}

std::string describe_loader(const LoaderOptions& options) {
  if (options.num_workers == 0) return "loader: reads each microbatch when it is needed";
  return cat("loader: ", counted(options.num_workers, "worker"), ", each ",
             counted(options.prefetch_factor, "microbatch", "es"), " ahead");
}

void throw_sample_error(std::int64_t sample, const char* what) {
  std::throw_with_nested(
      IoError(cat("[data::DataLoader] expected to read sample ", sample, " of the dataset, got: ", what)));
}

double timeout_seconds(const LoaderOptions& options, bool is_first) {
  const bool has_limit = options.timeout_seconds > 0;
  return is_first && has_limit ? std::max(options.timeout_seconds, options.first_timeout_seconds)
                               : options.timeout_seconds;
}

void throw_timeout(const LoaderOptions& options, bool is_first, const std::vector<std::int64_t>& samples) {
  throw IoError(cat("[data::DataLoader] expected to read samples ", list_of(samples), " of the dataset within ",
                    timeout_seconds(options, is_first), " seconds, got none. Check the storage that is read, or raise ",
                    is_first ? "trainer.timeout.init_timeout or " : "", "the timeout of the data."));
}

void throw_stopped(const std::vector<std::int64_t>& samples) {
  throw IoError(cat("[data::DataLoader] stopped, as asked, in the wait for samples ", list_of(samples),
                    " of the dataset: a step without data cannot be completed. Check the storage that is read; a job "
                    "that saves continues from its newest checkpoint."));
}

double patience_seconds(const LoaderOptions& options) {
  const double patience = options.patience.count();
  return options.timeout_seconds > 0 ? std::min(options.timeout_seconds, patience) : patience;
}

void warn_long_wait(const LoaderOptions& options, bool is_first, const std::vector<std::int64_t>& samples,
                    double seconds) {
  const double limit = timeout_seconds(options, is_first);
  options.log.warning("data: has waited ", std::round(10 * seconds) / 10, " s for samples ", list_of(samples),
                      " of the dataset", limit > 0 ? cat(", at most ", limit) : "",
                      is_first ? ": the first that are read, for which it may open its files" : "");
}

void warn_left_behind(const LoaderOptions& options, const std::vector<std::int64_t>& samples) {
  options.log.warning("data: left the reading of samples ", list_of(samples), " behind, which did not end within ",
                      patience_seconds(options), " seconds. Check the storage that is read.");
}

}  // namespace d9d::detail
